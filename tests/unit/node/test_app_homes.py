"""Each app is started with a Flower folder of its own: nobody's earlier installation is found."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flower_ldp.node.app_executor import FreshHomes

#: Says which folder it has and what is in it, leaves a file there, and waits for its input's end.
_SAYS = """
import os, sys
home = os.environ["FLWR_HOME"]
print(home, os.listdir(home), oct(os.stat(home).st_mode & 0o777), flush=True)
open(os.path.join(home, "left"), "w").close()
"""


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FreshHomes:
    """Return a starter of apps, in a node whose own Flower folder has an installation in it."""
    own = tmp_path / "home" / "apps" / "ward.pinned-app.1.0.0.0f0f0f0f"
    own.mkdir(parents=True)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return FreshHomes()


def said(homes: FreshHomes, tmp_path: Path, name: str) -> tuple[str, str]:
    with (tmp_path / name).open("w+") as file:
        command = ["/bin/sh", "-c", f'exec "{sys.executable}" -S -c "$0" >{file.name}', _SAYS]
        process = homes(command, subprocess.DEVNULL)
        assert process.wait(60) == 0
        home, rest = file.read().split(" ", 1)
    return home, rest.strip()


def test_an_app_finds_nothing_of_an_earlier_one(homes: FreshHomes, tmp_path: Path) -> None:
    first, second = (said(homes, tmp_path, name) for name in ("first", "second"))
    assert first[0] != second[0]
    assert first[1] == second[1] == "[] 0o700"
    assert not Path(first[0]).exists()  # gone when the next one was started
    homes.close()
    assert not Path(second[0]).exists()


def test_apps_started_at_once_share_no_folder(homes: FreshHomes, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: said(homes, tmp_path, f"app-{n}"), range(4)))
    assert len({home for home, _ in found}) == 4
    assert {rest for _, rest in found} == {"[] 0o700"}


def test_apps_run_in_the_nodes_environment(
    homes: FreshHomes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node is often started by its path, with another environment's commands in sight."""
    other = tmp_path / "bin" / "flwr-clientapp"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", f"{other.parent}:/usr/bin:/bin")
    found = tmp_path / "found"
    command = ["/bin/sh", "-c", f"command -v flwr-clientapp >{found}"]
    assert homes(command, subprocess.DEVNULL).wait(60) == 0
    assert Path(found.read_text().strip()).parent == Path(sys.executable).parent


def test_what_cannot_be_started_leaves_no_folder(homes: FreshHomes, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    with pytest.raises(OSError, match="nowhere"):
        homes(["/nowhere/app"], subprocess.DEVNULL)
    assert set(tmp_path.iterdir()) == before

"""Fixtures that more than one folder of tests uses, and the order of tests in three processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests run beside each other and start processes that do: threads of torch and numpy would wait
# for each other's cores. Set before either is imported, and inherited by what tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
#: Files that mostly wait, for heartbeats and timeouts of a minute. They come first.
WAITING = ("test_slow_link.py", "test_faults.py")
#: Folders whose files keep two cores busy: no more than two of these files run at once.
ENGINES = ("simulation", "network")
ENGINES_AT_ONCE = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes the longest, so that short tests fill the time at the end."""
    items.sort(key=lambda item: (item.path.name not in WAITING, not _has_engine(item.path)))


def _has_engine(path: Path) -> bool:
    return path.parent.name in ENGINES and path.name not in WAITING


@pytest.fixture(scope="module", autouse=True)
def _turn(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Wait until fewer than two other files run engines."""
    if not _has_engine(request.path):
        yield
        return
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.getbasetemp().parent
        names = [f"engine-{number}.lock" for number in range(ENGINES_AT_ONCE)]
        turns = [stack.enter_context((folder / name).open("w")) for name in names]
        while not any(_taken(turn.fileno()) for turn in turns):
            time.sleep(0.5)
        yield


def _taken(turn: int) -> bool:
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def simulation_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped policy for simulations, named by the environment, with a new ledger."""
    path = tmp_path / "simulation_policy.yaml"
    shutil.copyfile(ROOT / "configs" / path.name, path)
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(path))
    return path

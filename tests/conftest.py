"""Fixtures that more than one folder of tests uses, and the order of tests in three processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

# Tests run beside each other and start processes that do: threads of torch and numpy would wait
# for each other's cores. Set before either is imported, and inherited by what tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parents[1]
#: Files that mostly wait, for heartbeats and timeouts of a minute. They come first, in one process.
WAITING = ("test_slow_link.py", "test_faults.py")
#: Folders whose files keep two cores busy: no more than two of these files run at once.
ENGINES = ("simulation", "network")
ENGINES_AT_ONCE = 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes the longest, so that short tests fill the time at the end."""
    items.sort(key=lambda item: (item.path.name not in WAITING, not _has_engine(item.path)))


def _has_engine(path: Path) -> bool:
    return path.parent.name in ENGINES and path.name not in WAITING


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Give each file to one process, and what waits to the same one."""
    return _WaitingTogether(config, log)


class _WaitingTogether(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "waiting" if Path(file).name in WAITING else file


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
    import fcntl  # POSIX alone has it; tests without an engine run elsewhere too

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

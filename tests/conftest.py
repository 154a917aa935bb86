"""Fixtures that more than one folder of tests uses, and the order of tests in several processes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.extras import skipping
from tests.nursery import HURRY, Nursery

# Tests run beside each other and start processes that do: threads of torch and numpy would wait
# for each other's cores. Set before either is imported, and inherited by what tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A test is no measure of time, and the same each time.
settings.register_profile(
    "tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
#: Files that mostly wait, for heartbeats and timeouts. They come first, in two processes.
WAITING = {
    "network/test_slow_link.py": "waiting for links",
    "network/test_faults.py": "waiting for nodes",
}
#: Folders whose files keep two cores busy: no more than two of these files run at once.
ENGINES = ("simulation", "network")
#: And files of other folders.
MORE_ENGINES = ("test_guarded_app.py", "test_sandboxed_app.py")
ENGINES_AT_ONCE = 2
#: The longest of them, in minutes and not in seconds: they come before the others.
LONGEST = (
    "test_federation.py",
    "test_superlink_restart.py",
    "test_guarded_app.py",
    "test_split_engine.py",
    "test_flower_apps.py",
    "test_engine.py",
    "test_deployment.py",
    "test_tutorials.py",
    "test_sandboxed_app.py",
    "test_split_lm.py",
    "test_deployment_samples.py",
)
#: What marks the tests of a folder: `pytest -m "not engine"` starts no engine and no network.
MARKS = {
    "simulation": pytest.mark.engine,
    "network": pytest.mark.engine,
    "hostile": pytest.mark.engine,
    "long": pytest.mark.slow,
}


@pytest.fixture(autouse=True)
def _late_failures_are_not_the_next_tests() -> Iterator[None]:
    """Call off what a test left to be logged and counted after its end.

    An app that is late for a fixed moment is noted a second after it, in a thread of its own.
    """
    yield
    for thread in threading.enumerate():
        late = getattr(getattr(thread, "function", None), "__name__", "") == "_failed"
        if late and isinstance(thread, threading.Timer):
            thread.cancel()
            thread.join()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes the longest, so that short tests fill the time at the end."""
    for item in items:
        if mark := MARKS.get(_folder(item.path)):
            item.add_marker(mark)
    items.sort(key=lambda item: (_name(item.path) not in WAITING, *_turn_of(item.path)))


def _turn_of(path: Path) -> tuple[bool, int, bool]:
    engine = _has_engine(path)
    place = LONGEST.index(path.name) if engine and path.name in LONGEST else len(LONGEST)
    return not engine, place, _folder(path) not in ("long", "statistical")


def _has_engine(path: Path) -> bool:
    engine = _folder(path) in ENGINES or path.name in MORE_ENGINES
    return engine and _name(path) not in WAITING


def _folder(path: Path) -> str:
    """Return the folder of a file, if it is one of tests itself: tests/unit has namesakes."""
    return path.parent.name if path.parent.parent.name == TESTS.name else ""


def _name(path: Path) -> str:
    return f"{_folder(path)}/{path.name}"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector: what a session imports and collects stays for good.

    Walking it again and again takes a sixth of the collection, and time in each test later.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip where a fixture needs an extra that is not installed."""
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip where a test needs an extra that is not installed."""
    with skipping():
        return (yield)


_NURSERY = pytest.StashKey[Nursery]()


def pytest_configure(config: pytest.Config) -> None:
    """Have one process load what engines and networks load, beside the collection."""
    if not hasattr(config, "workerinput") and _wants_engines(config):
        nursery = Nursery.start(config.args if config.option.numprocesses else None)
        if nursery is not None:
            config.stash[_NURSERY] = nursery


def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Have the processes of tests handed over as well: they load what engines load, and more."""
    if _NURSERY in config.stash:
        config.stash[_NURSERY].wait_until_there()
        own = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(HURRY), *([own] if own else [])])
        os.environ["TESTS_WORKER"] = "1"


def pytest_unconfigure(config: pytest.Config) -> None:
    """End it."""
    nursery = config.stash.get(_NURSERY, None)
    if nursery is not None:
        nursery.stop()


def _wants_engines(config: pytest.Config) -> bool:
    asked = config.args if "not engine" not in config.option.markexpr else []
    return any(_holds_engines(Path(one.partition("::")[0])) for one in asked)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Start a process for each core; five at least where engines and networks mostly wait."""
    cores = os.cpu_count() or 2
    return max(5, cores) if _wants_engines(config) else cores


def _holds_engines(path: Path) -> bool:
    """Tell whether the path is, holds or lies in a folder of engines (tests/unit has namesakes)."""
    path = path.resolve()
    folders = [TESTS / name for name in (*ENGINES, "hostile")]
    return any(path.is_relative_to(one) or one.is_relative_to(path) for one in folders)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Give each file to one process, what waits to two of them, and engines to two at once."""
    return _TwoEngines(config, log)


class _TwoEngines(LoadFileScheduling):
    """A process that would wait for its turn with an engine tests something else meanwhile."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return WAITING.get(_name(Path(file)), file)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: Any) -> str:
        first = next(iter(self.workqueue))
        others = [self.assigned_work[one] for one in self.nodes if one is not node]
        running = sum(any(map(_is_engine, _unfinished(work))) for work in others)
        if not _is_engine(first) or running < ENGINES_AT_ONCE:
            return first
        return next((scope for scope in self.workqueue if not _is_engine(scope)), first)


def _is_engine(scope: str) -> bool:
    return _has_engine(Path(scope))


def _unfinished(work: dict[str, dict[str, bool]]) -> list[str]:
    return [scope for scope, tests in work.items() if not all(tests.values())]


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

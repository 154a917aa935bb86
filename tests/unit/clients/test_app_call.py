"""What an app that fails holds in its hands, and when its failure is counted."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier
from typing import Any

import pytest
from flwr.app import Context

from flower_ldp.clients import ldp_mod
from flower_ldp.clients.ldp_mod import AppCall
from flower_ldp.clients.session import TrainingSession
from flower_ldp.errors import ReleaseError
from tests.fixtures import context, wait_for_counts

AFTER = 0.4


@dataclass
class Owner:
    """Says when an answer leaves, and when it was told of a failure."""

    answer_after: float | None = None
    is_simulation: bool = False
    told: list[float] = field(default_factory=list)

    def failed(self) -> None:
        self.told.append(time.monotonic())


class Large:
    """Stands for arrays and open files."""


def holding(seen: list[weakref.ref[Large]], *, chained: bool) -> Callable[[Context], bytes]:
    def compute(_: Context) -> bytes:
        large = Large()
        seen.append(weakref.ref(large))
        try:
            raise MemoryError
        except MemoryError as error:
            kept = error  # a cycle, which only the collector would find  # noqa: F841
            if chained:
                raise RuntimeError from error
            raise

    return compute


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("after", [None, AFTER])
def test_what_a_failing_app_held_is_free_before_anything_else_is_done(
    after: float | None, chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ldp_mod, "QUIET", 0.0)
    seen: list[weakref.ref[Large]] = []
    free: list[bool] = []

    class Asks(Owner):
        def failed(self) -> None:
            free.append(seen[0]() is None)

    call = AppCall(Asks(after), time.monotonic(), context())
    assert call.run(holding(seen, chained=chained), bytes) == b""
    assert free == [True]


def wrong(_: Context) -> bytes:
    raise ValueError


def late(_: Context) -> bytes:
    time.sleep(AFTER + 0.2)
    return b"late"


@pytest.mark.parametrize("app", [wrong, late])
@pytest.mark.parametrize("quiet", [AFTER / 4, 2 * AFTER])
def test_no_failure_is_counted_between_the_moment_and_the_answer(
    app: Callable[[Context], bytes], quiet: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ldp_mod, "QUIET", quiet)
    owner, arrived = Owner(AFTER), time.monotonic()
    assert AppCall(owner, arrived, context()).run(app, lambda: b"neutral") == b"neutral"
    left = time.monotonic()
    assert left - arrived >= AFTER
    early = app is wrong and quiet < AFTER
    assert bool(owner.told) is early
    # The process waits for those that are not daemons.
    assert not any(t.daemon for t in threading.enumerate() if isinstance(t, threading.Timer))
    wait_for_counts()
    (told,) = owner.told
    assert (told < arrived + AFTER) if early else (told > left)


def test_a_context_that_cannot_be_copied_as_a_whole_fails_no_call_with_a_moment() -> None:
    flowers = context()
    setattr(flowers, "of_another_mod", threading.Lock())  # noqa: B010  no attribute of Flower's
    seen: list[bool] = []

    def compute(own: Context) -> bytes:
        seen.append(hasattr(own, "of_another_mod"))
        return b"report"

    assert AppCall(Owner(AFTER), time.monotonic(), flowers).run(compute, bytes) == b"report"
    assert seen == [False]


def begins(session: TrainingSession, together: Barrier) -> bool:
    together.wait()
    try:
        session.begin()
    except ReleaseError:
        return False
    return True


def test_of_threads_that_begin_together_one_gets_the_steps() -> None:
    granted: Any = None  # of no matter here
    for _ in range(20):
        session = TrainingSession(granted, {})
        with ThreadPoolExecutor(16) as threads:
            assert sum(threads.map(partial(begins, session), [Barrier(16)] * 16)) == 1

"""The steps of a round are used once, however many threads ask for them together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from flower_ldp.clients.session import TrainingSession
from flower_ldp.errors import ReleaseError

THREADS = 16


def test_of_threads_that_begin_together_one_gets_the_steps() -> None:
    granted: Any = None  # of no matter here
    for _ in range(20):
        session, together = TrainingSession(granted, {}), Barrier(THREADS)

        def gets_them(
            _: int, session: TrainingSession = session, together: Barrier = together
        ) -> bool:
            together.wait()
            try:
                session.begin()
            except ReleaseError:
                return False
            return True

        with ThreadPoolExecutor(THREADS) as threads:
            assert sum(threads.map(gets_them, range(THREADS))) == 1

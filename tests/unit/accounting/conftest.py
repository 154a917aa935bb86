"""A ledger in a new file, with a clock that tests set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flower_ldp.accounting import Ledger
from tests.fixtures import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path, clock: Clock) -> Iterator[Ledger]:
    """A ledger that is verified when its test is over."""
    with Ledger.open(path, create=True, clock=clock, durable=False) as opened:
        yield opened
        opened.verify()

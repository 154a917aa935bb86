"""Damaged files, at random and with fixed seeds: an error, or the true totals.

The file holds one data set and a part of another, three runs, and a sealed report for most
messages; and an account by zCDP. After the damage everything that can be asked is asked. Each
answer must be a LedgerError or the truth: a smaller total, a second free draw or a charge over a
limit fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from flower_ldp.accounting.amounts import Amount
from flower_ldp.accounting.ledger import Charge, Ledger, Limit, NumberLimit
from flower_ldp.accounting.zcdp import zcdp_cost
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError
from flower_ldp.privacy import PrivacyEvent, Unit

DATA, RUNS, MESSAGES = ("a", "b#cut/0"), (1, 2, 2**64 - 1), 4
SPENT = len(RUNS) * MESSAGES * 10**11
AMPLE = Limit(Unit.CLIENT, "life", 1e6)
BY_ZCDP = Limit(Unit.CLIENT, "life", 1.0, 1e-5, release_deltas=1e-8)
#: Everything is spent: within the run, for life, and in the last year.
SPENT_UP = [
    Limit(Unit.CLIENT, "run", 0.1 * MESSAGES),
    Limit(Unit.CLIENT, "life", SPENT / 1e12),
    Limit(Unit.CLIENT, "window", SPENT / 1e12, window_seconds=3.2e7),
]
FLIPS, CUTS, ANSWERS = 80, 20, 3


def charge(data: str, run: int, message: object) -> Charge:
    event = PrivacyEvent("signds", 0.1)
    return Charge(data, run, f"message-{message}", "train", b"request", (event,))


def report(data: str, run: int, message: int) -> bytes:
    return f"{data} {run} {message}".encode() * 20


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Return a folder in memory if there is one: damage has nothing to do with disks."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    path = folder / "whole.sqlite"
    with Ledger.open(path, create=True) as ledger:
        for message in range(MESSAGES):
            for run in RUNS:
                for data in DATA:
                    receipt = ledger.charge(charge(data, run, message), [AMPLE])
                    if message:
                        ledger.seal(receipt, report(data, run, message))
        for data in DATA:
            for _ in range(ANSWERS):
                ledger.count(data, "again")
        ledger.charge(charge("by zcdp", 1, 0), [BY_ZCDP])
    return path.read_bytes()


def interrogate(path: Path) -> int:
    """Ask everything; return the number of answers that were errors."""
    try:
        ledger = Ledger.open(path, timeout=0.0)
    except LedgerError:
        return 1
    with ledger:
        return sum(failed(q, ledger) for q in QUESTIONS)


def failed(question: Callable[[Ledger], None], ledger: Ledger) -> bool:
    try:
        question(ledger)
    except LedgerError:
        return True
    return False


def totals(ledger: Ledger) -> None:
    for data in DATA:
        assert ledger.totals(data) == dict.fromkeys(Unit, Amount(SPENT))
        for run in RUNS:
            assert ledger.totals(data, run) == dict.fromkeys(Unit, Amount(MESSAGES * 10**11))

    rho = zcdp_cost(PrivacyEvent("signds", 0.1))
    assert all(ledger.spent_zcdp("by zcdp", unit) == rho for unit in Unit)


def spent_up(ledger: Ledger) -> None:
    for data in DATA:
        for run in RUNS:
            for limit in SPENT_UP:
                with pytest.raises((BudgetExhausted, LedgerError)):
                    ledger.charge(charge(data, run, "over"), [limit])


def numbers(ledger: Ledger) -> None:
    most = NumberLimit(len(RUNS) * MESSAGES)
    for data in DATA:
        with pytest.raises((BudgetExhausted, LedgerError)):
            ledger.charge(charge(data, 1, "over"), [AMPLE], numbers=[most])
        with pytest.raises((BudgetExhausted, LedgerError)):
            ledger.count(data, "acknowledged", ANSWERS)
        assert ledger.number(data, most) == most.most
        assert ledger.counts(data)["again"] == ANSWERS


def repeats(ledger: Ledger) -> None:
    """Deliver every message again: no draw may be free."""
    for data in DATA:
        before = ledger.totals(data)[Unit.CLIENT].epsilon
        drawn = 0
        for run in RUNS:
            for message in range(MESSAGES):
                try:
                    receipt = ledger.charge(charge(data, run, message), [AMPLE])
                except (LedgerError, RefusalError):
                    continue
                if receipt.report is None:
                    drawn += 1
                else:
                    assert receipt.report == report(data, run, message)
        assert ledger.totals(data)[Unit.CLIENT].epsilon == before + drawn * 10**11


def goes_on(ledger: Ledger) -> None:
    for data in DATA:
        before = ledger.totals(data)[Unit.CLIENT].epsilon
        assert before >= SPENT
        ledger.seal(ledger.charge(charge(data, 1, "new"), [AMPLE]), b"new")
        assert ledger.totals(data)[Unit.CLIENT].epsilon == before + 10**11


def verified(ledger: Ledger) -> None:
    ledger.verify()
    for data in DATA:
        own = [e.events[0].cost.epsilon for e in ledger.entries() if e.data_id == data]
        assert sum(own) == ledger.totals(data)[Unit.CLIENT].epsilon >= SPENT


QUESTIONS = (totals, spent_up, numbers, repeats, goes_on, verified)


def put(folder: Path, content: bytes) -> Path:
    path = folder / "damaged.sqlite"
    path.unlink(missing_ok=True)
    Path(f"{path}-journal").unlink(missing_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return path


def test_whole_file_answers_everything(folder: Path, whole: bytes) -> None:
    assert interrogate(put(folder, whole)) == 0


def test_bytes_changed_at_random_offsets(folder: Path, whole: bytes) -> None:
    chance = random.Random(1)
    damaged = 0
    for trial in range(FLIPS):
        content = bytearray(whole)
        # Half of the trials in the first pages' headers, where the structure is.
        for _ in range(chance.choice([1, 1, 4, 64])):
            page = 4096 * chance.randrange(len(whole) // 4096)
            offset = chance.randrange(4096 if trial % 2 else 128)
            content[page + offset] = chance.randrange(256)
        damaged += interrogate(put(folder, bytes(content))) > 0
    assert FLIPS / 4 < damaged < FLIPS


def test_pages_zeroed_swapped_or_set_back(folder: Path, whole: bytes) -> None:
    pages = [whole[i : i + 4096] for i in range(0, len(whole), 4096)]
    for number in range(len(pages)):
        other = (number + 1) % len(pages)
        for content in (bytes(4096), pages[other], bytes(100) + pages[number][100:]):
            changed = [*pages[:number], content, *pages[number + 1 :]]
            assert interrogate(put(folder, b"".join(changed))) > 0


def test_any_two_pages_swapped(folder: Path, whole: bytes) -> None:
    """Opened and verified alone: a page read as another table's holds values of other types."""
    pages = [whole[i : i + 4096] for i in range(0, len(whole), 4096)]
    for one, other in combinations(range(len(pages)), 2):
        changed = [*pages]
        changed[one], changed[other] = pages[other], pages[one]
        path = put(folder, b"".join(changed))
        with pytest.raises(LedgerError), Ledger.open(path, timeout=0.0, durable=False) as ledger:
            ledger.verify()


def test_truncated_at_random_lengths(folder: Path, whole: bytes) -> None:
    chance = random.Random(2)
    pages = len(whole) // 4096
    lengths = [chance.randrange(len(whole)) for _ in range(CUTS)]
    for length in [*lengths, *(4096 * page for page in range(pages)), len(whole) - 1]:
        path = put(folder, whole[:length])
        with pytest.raises(LedgerError, match=r"damaged|not a ledger"):
            Ledger.open(path)


def test_bytes_added_at_the_end_change_nothing(folder: Path, whole: bytes) -> None:
    assert interrogate(put(folder, whole + b"more" * 3_000)) == 0


def test_damaged_journal_of_a_killed_charge(folder: Path, whole: bytes) -> None:
    """Random bytes in the journal's place are no journal, and change nothing."""
    chance = random.Random(3)
    for _ in range(8):
        path = put(folder, whole)
        Path(f"{path}-journal").write_bytes(chance.randbytes(chance.randrange(1, 9_000)))
        assert interrogate(path) == 0

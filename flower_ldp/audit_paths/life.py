"""The audit case of a life by zCDP: a server that stops when it has learned, and changes the rule.

It asks for bits about one value until the account refuses, or the reports are as telling as the
claim. Then the owner's policy says ``by: sums``, with a budget for anything, and it asks again.
"""

import itertools
import tempfile
import weakref
from functools import partial
from pathlib import Path

import numpy as np

from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.accounting.ledger.charges import Limit
from flower_ldp.audit import Case, Contrast
from flower_ldp.errors import BudgetExhausted, RefusalError
from flower_ldp.mechanisms import BinaryResponse
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.policy.sections import Life
from flower_ldp.privacy import PrivacyEvent, Unit

#: Sums would allow so many bits, and zCDP allows more.
_PARTS = 32
#: Bits of one message.
_BITS = 16


class _Account:
    """An owner's ledger, and the two lives of its policy."""

    def __init__(self, epsilon: float, delta: float) -> None:
        folder = tempfile.TemporaryDirectory(prefix="flower-ldp-audit-")
        self.ledger = Ledger.open(Path(folder.name) / "ledger.sqlite", create=True, durable=False)
        weakref.finalize(self, folder.cleanup)
        self.names = map("audit-{}".format, itertools.count())
        self.small, self.large = BinaryResponse(epsilon / _PARTS), BinaryResponse(100.0)
        self.by_zcdp = _limits(Life(epsilon=epsilon, delta=delta, by="zcdp"))
        self.by_sums = _limits(Life(epsilon=1e6))

    def answer(
        self, name: str, message: str, limits: list[Limit], value: int, rng: RandomSource
    ) -> int | None:
        """Return ones less zeros of a message's report, or None if it is refused."""
        bit, bits = (self.large, 1) if limits is self.by_sums else (self.small, _BITS)
        event = PrivacyEvent(bit.name, bit.epsilon, count=bits)
        try:
            self.ledger.charge(Charge(name, 1, message, "train", b"audit", (event,)), limits)
        except (BudgetExhausted, RefusalError):
            return None
        return sum(2 * bit.randomize(value, rng) - 1 for _ in range(bits))


def life(epsilon: float, delta: float) -> Case:
    """Return the case of an account whose life is by zCDP, at (epsilon, delta)."""
    account = _Account(epsilon, delta)
    contrast = Contrast("a server that adapts", (1, 0), np.array, "ones, less zeros")
    title = f"life (by zCDP; epsilon {epsilon:g}, delta {delta:g})"
    return Case(
        title, epsilon, partial(_learned, account), (contrast,), [(1, 0)], draws=200, delta=delta
    )


def _limits(total: Life) -> list[Limit]:
    more = {"release_deltas": total.deltas}
    return [Limit(Unit.CLIENT, "life", total.epsilon, total.delta, **more)]


def _learned(account: _Account, value: int, rng: RandomSource) -> int:
    """Return ones less zeros of all reports about a value; many for a report by the other rule."""
    name, learned = next(account.names), 0
    for number in itertools.count():
        found = account.answer(name, f"{number}", account.by_zcdp, value, rng)
        learned += found or 0
        if found is None or abs(learned) >= _PARTS:
            break
    after = account.answer(name, "changed", account.by_sums, value, rng)
    return learned + 10**6 * (after or 0)

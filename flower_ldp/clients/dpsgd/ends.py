"""That a plan is over: in the ledger, and where that cannot be written, kept until it can be.

Evaluations and scaling of one run end in the same way: by what is sealed for the one that failed
as a whole (:func:`run_marks`), in the one writing that there is. Where it cannot be written,
nothing leaves.

An app that failed as a whole ends its plan, and no epsilon covers what a second such failure
would tell. So a ledger that cannot be written at that moment, being locked or on a full disk, must
not let the plan go on. Its end is then owed: an empty file beside the ledger
(``<ledger>-ended-...``), which takes no space, says so to every process, and the process remembers
it besides. Before the plan's next round the end is written to the ledger, or the round is refused.
Where neither the ledger nor the file can be written, nothing leaves for the message either: to the
server it is a gap, as when the process is killed.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.clients.calling import cause_of
from flower_ldp.errors import BudgetExhausted
from flower_ldp.files import make_whole
from flower_ldp.own_log import say

_log = logging.getLogger("flower_ldp")

_GOING_ON, _ENDED = "ldp-report", "ldp-ended-"
#: What follows the ledger's name in that of the file.
ENDED_SUFFIX = "-ended-"
#: Files of the ends that this process could not write to their ledgers.
_owed: set[Path] = set()


def run_marks(run_id: int) -> tuple[bytes, bytes]:
    """Return what sealed reports about examples begin with in a run, and what its last one does."""
    going_on, ended = (f"{word} {run_id:020d}:".encode() for word in (_GOING_ON, _ENDED))
    return going_on, ended


def check_going_on(ledger: Ledger, charge: Charge, run_id: int) -> None:
    """Refuse a new release about examples once one of the run has failed as a whole.

    Raises
    ------
    BudgetExhausted
        If one has. What was charged before is answered as it was.
    LedgerError
        If the ledger cannot be read.
    """
    if ledger.has_charge(charge.data_id, charge.run_id, charge.message_id):
        return
    if ledger.has_report(charge.data_id, run_marks(run_id)[1]):
        raise BudgetExhausted(f"run {run_id}: an app failed as a whole, and its evaluations ended")


@dataclass(frozen=True)
class PlanEnd:
    """The end of one plan, before and after it has come.

    Parameters
    ----------
    file : Path
        There while the end is not in the ledger, and should be.
    write : callable
        Writes it to the ledger; any number of times is as good as once.
    """

    file: Path
    write: Callable[[], None]

    @classmethod
    def beside(cls, ledger: Path, rounds: str, write: Callable[[], None]) -> PlanEnd:
        """Return the end of the plan whose rounds are charged to this account."""
        ledger = Path(os.path.realpath(ledger))
        name = hashlib.sha256(rounds.encode()).hexdigest()[:40]
        return cls(ledger.with_name(f"{ledger.name}{ENDED_SUFFIX}{name}"), write)

    def settle(self) -> None:
        """Write an end that is owed, so that the ledger refuses the next round.

        Raises
        ------
        LedgerError
            If it still cannot be written. No round may begin.
        """
        if self.file in _owed or os.path.lexists(self.file):
            self.write()
            _owed.discard(self.file)
            with suppress(OSError):  # then it is written once more
                self.file.unlink(missing_ok=True)

    def come(self) -> None:
        """End the plan, here and now or before its next round. Raises nothing."""
        try:
            self.write()
        except Exception as error:
            _owed.add(self.file)
            say(_log, logging.ERROR, "the plan's end is not in the ledger yet: %s", cause_of(error))
            try:
                make_whole(self.file, b"")
            except OSError as also:
                say(_log, logging.ERROR, "nor in a file beside it: %s", cause_of(also))

    @property
    def is_lost(self) -> bool:
        """Whether it has come and only this process knows."""
        return self.file in _owed and not os.path.lexists(self.file)

"""Whether a proposed plan's noise is enough: computed once, and not for who only asks.

The computation takes seconds of a processor, and a server could propose plans without end. So it
comes last, when the policy and the ledger would take the plan: one that passes is charged, which
the budget ends. One that does not pass costs nothing, so of each run few of those are computed:
a plan that was found wanting is remembered, and who has proposed several of them is refused
without a look. All of it is about public numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from threading import Lock

from flower_ldp.accounting.dpsgd import check_noise
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.refusals import REFUSED_POLICY

#: How many plans of one run are found wanting before no other is computed.
MOST_WANTING = 8
#: How many runs are remembered.
_MOST_RUNS = 256


@dataclass(frozen=True)
class Proposals:
    """What was found of the plans that servers proposed, by run."""

    _wanting: OrderedDict[Hashable, dict[TrainingPlan, str]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def check(self, run: Hashable, plan: TrainingPlan) -> None:
        """Return if a plan's noise is enough.

        One at a time: however many messages come at once, they take one processor.

        Parameters
        ----------
        run : hashable
            Whose proposals are counted together.
        plan : TrainingPlan
            What is proposed.

        Raises
        ------
        RefusalError
            With ``REFUSED_POLICY`` if it is not, or so many plans of the run had too little that
            no other is computed.
        """
        with self._lock:
            found = self._wanting.get(run, {})
            if plan in found:
                raise RefusalError(REFUSED_POLICY, found[plan])
            if len(found) >= MOST_WANTING:
                raise RefusalError(
                    REFUSED_POLICY,
                    f"{len(found)} plans of this run had too little noise: no other is looked at",
                )
            try:
                check_noise(plan)
            except ModuleNotFoundError as error:
                raise RefusalError(REFUSED_POLICY, str(error)) from error
            except ValueError as error:
                self._remember(run, {**found, plan: str(error)})
                raise RefusalError(REFUSED_POLICY, str(error)) from error

    def _remember(self, run: Hashable, found: dict[TrainingPlan, str]) -> None:
        self._wanting[run] = found
        self._wanting.move_to_end(run)
        while len(self._wanting) > _MOST_RUNS:
            self._wanting.popitem(last=False)


#: Of this process.
PROPOSALS = Proposals()

"""Whether a run's steps are noise, from the reports alone: post-processing, free of cost.

Reports that say nothing are uniform (or zeros with noise), and the square length of the sum of N
of them has a known mean and variance (:class:`~flower_ldp.mechanisms.worth.PureNoise`). What it has
beyond, relative to it, estimates the signal x of what clients have in common, so also of those
that disagree. All reports since the run's begin are added up: in the first quarter of a run
directions turn little, and no optimizer's momentum has to be known. The sum is looked at **once**,
since many looks would find noise sometime: after a quarter of the reports, and when a good run
would by then show four standard deviations of noise. It is warned of if it shows less than two, or
if two more would still make the run a hopeless one. So a run at the edge of good is warned of about
once in 44 times, and pure noise is not about as often. That the steps *are* noise is said in the
second case alone. In the first they cannot be told from it yet: clients that have little in common,
a tenth of a good run's signal, may still train an easy model.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.advice.outlook import Outlook
from flower_ldp.mechanisms.worth import GOOD_COSINE, POOR_COSINE, Verdict, signal_of

_log = logging.getLogger("flwr")
#: Share of a run's reports after which its steps are looked at, at the earliest.
LOOKED_AT = 0.25
#: A signal below so many standard deviations is none.
_FEWEST = 2.0
#: So many a good run must show, or nothing is said.
_SHOWN = 4.0


class NoiseWatch:
    """Of one run: says once what it can learn, and once that its steps are noise."""

    def __init__(self) -> None:
        self._outlook: Outlook | None = None
        self._sum: NDArray[np.float64] | None = None
        self._reports = 0

    @property
    def watches(self) -> bool:
        """Whether sums are wanted still."""
        return self._outlook is not None

    def begin(self, outlook: Outlook) -> None:
        """Log the verdict on a run that begins, and watch its steps from here on."""
        self._outlook = outlook
        level = logging.INFO if outlook.verdict is Verdict.GOOD else logging.WARNING
        _log.log(
            level,
            "outlook: %s Of clients that agree, the steps of %s rounds of %s clients have the "
            "expected cosine %.3f with their direction, and a round's step %.3f.",
            outlook.judgement(),
            f"{outlook.rounds:,}",
            f"{outlook.clients_per_round:,}",
            outlook.run_cosine,
            outlook.round_cosine,
        )

    def add(self, summed: NDArray[Any], reports: int) -> None:
        """Take in a round's sum of reports, and warn if all so far are noise.

        Parameters
        ----------
        summed : ndarray, shape (d,)
            In the units of a report.
        reports : int
            How many it has; at least 1.
        """
        if self._outlook is None:
            return
        if self._sum is None:
            self._sum = np.zeros(len(summed))
        self._sum += summed
        self._reports += reports
        noise = self._outlook.plan(self._outlook.weights).pure_noise
        progress = min(self._reports / self._outlook.reports, 1.0)
        deviation = noise.deviation(self._reports)
        good = signal_of(GOOD_COSINE) * progress
        # One report has the length of any: noise and signal differ in products of two.
        if self._reports < 2 or progress < LOOKED_AT or good < _SHOWN * deviation:
            return
        signal = noise.signal(float(self._sum @ self._sum), self._reports)
        most = (signal + _FEWEST * deviation) / progress
        if signal < _FEWEST * deviation or most < signal_of(POOR_COSINE):
            told = "are noise" if most < signal_of(POOR_COSINE) else "cannot be told from noise yet"
            self._warn(told, self._outlook, signal, deviation, good)
        self._outlook = self._sum = None

    def _warn(
        self, told: str, outlook: Outlook, signal: float, deviation: float, good: float
    ) -> None:
        advice = f"Good would be {outlook.remedies}."
        if outlook.verdict is Verdict.GOOD:
            advice = (
                "Clients that agree would be enough: these have little in common, or their "
                "training moves nothing. An evaluation on the server tells whether it is enough."
            )
        _log.warning(
            "the steps %s: the sum of %s reports has %+.4f of the noise's square length "
            "beyond it, %+.1f standard deviations, where a good run would have %.4f. %s",
            told,
            f"{self._reports:,}",
            signal,
            signal / deviation,
            good,
            advice,
        )

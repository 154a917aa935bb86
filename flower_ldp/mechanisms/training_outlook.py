r"""Outlook of a private training, from public numbers and public rows alone.

Let a step's rows have clipped gradients :math:`g_i` of length at most C and mean
:math:`\bar g`. The step adds noise of deviation :math:`\sigma C / B` to each entry of the mean,
for B rows a step. After T steps at S sites, the weights have moved along one row's
gradient by :math:`T \langle \bar g, g_i \rangle`, with noise of a deviation of at most
:math:`\sqrt{T / S}\, \sigma C^2 / B`, both times the learning rate. In the mean over rows the ratio
is at least

.. math:: z = a \sqrt{T S}\, B / \sigma, \qquad a = |\bar g|^2 / C^2.

The *agreement* a is the mean product of two rows' clipped gradients, over C². The number of
weights does not appear: noise across a row's gradient leaves its output as it is, to first order. A
mean row moves the right way with probability :math:`\Phi(z)`, which is 0.84 for z = 1. It is 0.6,
ten points above a coin, for z = 1/4. Whether a model without noise learns is not forecast.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from numpy.typing import NDArray

from flower_ldp.facts import Fact
from flower_ldp.mechanisms.base import Verdict
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.parameter_bounds import Bounded, check_fields

__all__ = ["TrainingOutlook", "TrainingRemedies"]

#: The least ratio of a good run, and the largest of a hopeless one.
GOOD_RATIO, HOPELESS_RATIO = 1.0, 0.25
#: Least and largest agreement times (classes - 1) of nine measured models before training. For
#: balanced classes and a linear model of zeros it is at most 1.
TYPICAL_AGREEMENT = (0.06, 0.4)
#: More sites are no advice.
_MOST_SITES = 1_000
#: With less of the wanted ratio no change is named.
_LEAST_SHORT = 1e-6
#: Less noise is no advice: it has an epsilon that means nothing.
_LEAST_NOISE = 0.3
#: With less noise, more steps or a larger rate at the same epsilon can add a tenth to the ratio.
_SPARSE = 1.0


@dataclass(frozen=True)
class TrainingRemedies:
    """Changes that would each make a run good; None where a kind of change cannot.

    Parameters
    ----------
    examples : int or None
        At least so many rows or patients of a site, at the same rate and noise.
    sites : int or None
        At least so many sites like this one, at most 1,000.
    noise : float or None
        At most this noise, at least 0.3. It has a larger epsilon.
    """

    examples: int | None
    sites: int | None
    noise: float | None

    def __str__(self) -> str:
        ways = []
        if self.examples is not None:
            ways.append(f"at least about {self.examples:,} rows a site")
        if self.sites is not None:
            ways.append(f"at least about {self.sites:,} such sites")
        if self.noise is not None:
            ways.append(f"noise of at most about {self.noise:g}, at a larger epsilon")
        return ", or ".join(ways) or "rows whose gradients agree"


@dataclass(frozen=True)
class TrainingOutlook:
    """The expected learning of a planned private training.

    Parameters
    ----------
    plan : TrainingPlan
    examples : int
        Rows or patients of a site; in [1, 10^12].
    sites : int
        Whose models are averaged; in [1, 10^6].
    classes : int
        Of the model's output, 2 for a number; in [2, 2^32].
    agreement : float, optional
        Measured by :func:`flower_ldp.training.public_agreement`; in [-1, 1]. By default the
        interval of measured models.

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

    Examples
    --------
    >>> plan = TrainingPlan(rounds=4, steps=5, rate=0.2, noise=5.81, epsilon=1.0, delta=1e-5)
    >>> outlook = TrainingOutlook(plan, examples=1300, classes=10)
    >>> outlook.verdict.value, round(outlook.ratios[0], 2)
    ('good', 1.33)
    """

    plan: TrainingPlan
    examples: Annotated[int, Bounded("[1, 10^12]")]
    sites: Annotated[int, Bounded("[1, 10^6]")] = 1
    classes: Annotated[int, Bounded("[2, 2^32]")] = 2
    agreement: Annotated[float | None, Bounded("[-1, 1]")] = None

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def ratios(self) -> tuple[float, float]:
        """The least and the largest likely ratio of signal to noise; equal if measured."""
        taken = self.plan.rounds * self.plan.steps * self.sites
        alike = math.sqrt(taken) * self.plan.mean_size(self.examples) / self.plan.noise
        if self.agreement is not None:
            return (found := max(self.agreement, 0.0) * alike), found
        low, high = (one / (self.classes - 1) * alike for one in TYPICAL_AGREEMENT)
        return low, high

    @property
    def verdict(self) -> Verdict:
        """Good, uncertain or hopeless."""
        low, high = self.ratios
        if low >= GOOD_RATIO:
            return Verdict.GOOD
        return Verdict.HOPELESS if high <= HOPELESS_RATIO else Verdict.UNCERTAIN

    @property
    def remedies(self) -> TrainingRemedies | None:
        """Changes that would make it good; None if it is."""
        if self.verdict is Verdict.GOOD:
            return None
        short = self.ratios[0] / GOOD_RATIO
        if short < _LEAST_SHORT:
            return TrainingRemedies(None, None, None)
        # Of two digits, so rounded up by 5 % at most.
        sites, noise = self.sites / short**2, 0.95 * self.plan.noise * short
        return TrainingRemedies(
            examples=two_digits(self.examples / short),
            sites=two_digits(sites) if sites <= _MOST_SITES else None,
            noise=float(f"{noise:.2g}") if noise >= _LEAST_NOISE else None,
        )

    def facts(self) -> list[Fact]:
        """Return the ratios and the verdict."""
        remedies = self.remedies
        return [
            Fact("outlook.signal_to_noise", list(self.ratios)),
            Fact("outlook.verdict", self.verdict.value),
            Fact("outlook.judgement", self.judgement(), "verdict"),
            Fact("outlook.remedies", None if remedies is None else asdict(remedies)),
        ]

    def judgement(self) -> str:
        """Return the verdict in words, with what would make it good."""
        low, high = (f"{one:.2g}" if one < 10 else f"{one:,.0f}" for one in self.ratios)
        times = low if low == high else f"{low} to {high}"
        told = (
            f"{self.verdict.value}: along a row's gradient the run's signal is {times} times its "
            "noise"
        )
        if self.remedies is None:
            return f"{told}. Small models that learn without noise learn; deep ones may not."
        return f"{told}. Good would be {self.remedies}. {' '.join(self._routes())}"

    def _routes(self) -> list[str]:
        ways = []
        if self.agreement is None:
            ways.append(
                "Gradients of public rows narrow this (public_agreement in flower_ldp.training)."
            )
        if self.plan.noise < _SPARSE:
            ways.append(
                "More steps, or more rows a step by a larger rate, gain at the same epsilon."
            )
        if self.plan.clip is not None:
            ways.append("A smaller clip, or none, lets short gradients count as much as long ones.")
        ways.append(
            "Fewer steps at the same epsilon gain nothing. Or train the last layer alone, over "
            "features from public data, because its gradients agree more: "
            "model.requires_grad_(False), then model.NAME.requires_grad_(True)."
        )
        return ways


def outputs(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the outputs of a model's last layer by its array's first axis, at least 2.

    Without an array of two axes they are 2: vectors are coefficients of one number.
    """
    found = [one for one in arrays.values() if one.dtype.kind == "f" and one.ndim]
    is_matrix = any(one.ndim > 1 for one in found)
    return min(max(2, int(found[-1].shape[0])), 1 << 32) if is_matrix else 2


def two_digits(value: float, rounded: Callable[[float], int] = math.ceil) -> int:
    """Return a number rounded to two digits, or to an integer."""
    step = 10.0 ** max(math.floor(math.log10(max(value, 1.0))) - 1, 0)
    return int(rounded(value / step) * step)

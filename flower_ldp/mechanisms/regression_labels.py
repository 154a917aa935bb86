r"""RR-on-bins: randomized response on a regression label, optimal for a public prior.

A public grid of n values is cut into d bins of neighbouring values. A label's bin goes through
d-ary response, and a report j stands for an output :math:`\hat y_j`. With the prior p and loss l,
bins and outputs minimize the expected loss of a report,

.. math:: \frac{1}{e^\epsilon + d - 1} \sum_j \sum_y p_y\, e^{\epsilon [y \in B_j]}\, l(\hat y_j, y)

No epsilon-LDP report of a grid value has a smaller one (Theorem 1 of the source). By these weights,
a bin's best output is the mean of all values, or their median. A dynamic program finds the bins in
O(n^3) steps. The best d bins of the first values are d - 1 of fewer values, and one more. Two bins
may have one output, so d is at least 2.

**Relation**: any two labels, for a fixed prior.

**Unit**: the label, or what ``unit`` names.

**Guarantee**: one report is epsilon-LDP, and tight.

**Proof**: the bin is a deterministic function of the label and of public data. The response to it
is epsilon-LDP (:mod:`flower_ldp.mechanisms.randomized_response`).

**Exactness**: that of the response, whatever the bins are. They are found in doubles: rounding
may make the loss larger by about 1e-12 of that of a constant.

**Invalid input**: a number between two grid values counts as the nearer one, beyond the grid as
its end. NaN, and anything that is no number, gets a uniform bin, randomized.

**Estimate**: let :math:`m_j` be the prior's mean in bin j, and :math:`\bar m` the mean of all
:math:`m_j`. Then :math:`v_j = (m_j - (1 - t)\,\bar m)/t` has the mean :math:`m_j` over reports of a
label in bin j. Sums of v are unbiased for labels replaced by their bin's mean. Up to a constant,
squared losses are so too. They are biased for labels within a bin, for invalid labels and for the
absolute loss. Outputs are biased towards the prior's centre.

**Source**: Ghazi, Kamath, Kumar, Leeman, Manurangsi, Varadarajan, Zhang, "Regression with Label
Differential Privacy", 2023 (arXiv 2212.06074), Algorithms 1 and 2.

**Grid and prior are public**: they must not depend on the private labels, unless through reports
that are paid for. Reports about other labels add no cost, and reports about the same label do.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms import inputs
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.mechanisms.randomized_response import KaryResponse, LabelMechanism
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import Unit

#: Each loss by the power of the distance.
LOSSES = {"absolute": 1, "squared": 2}
# The search takes the cube of this many steps: seconds.
_MOST_VALUES = 512
# Losses that differ by less are rounding: the fewest bins are taken.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class RROnBins(LabelMechanism):
    """Randomized response on the bin of a regression label.

    A report is the number of a bin; :meth:`decode` and :meth:`unbiased` make labels of it.

    Parameters
    ----------
    epsilon : float
        Per release of one label; in (0, 100].
    values : sequence of float, shape (n,)
        The grid: 2 to 512 finite numbers that ascend. **Public**.
    prior : sequence of float, shape (n,)
        How likely each value is. **Public**. Entries are at least 0 and need not add up to 1; all
        zeros count as uniform.
    loss : {"squared", "absolute"}
        The loss that bins and outputs minimize.
    unit : Unit
        Whose label it is.

    Attributes
    ----------
    categories : int
        d, the number of bins.
    edges : tuple of float
        Where all bins but the first begin, halfway between two grid values.
    outputs : tuple of float
        The value that each bin's number stands for.

    Raises
    ------
    ValueError
        If a parameter is none of these.

    Examples
    --------
    >>> mechanism = RROnBins(epsilon=3.0, values=range(10), prior=[1] * 10)
    >>> mechanism.edges, [round(output, 2) for output in mechanism.outputs]
    ((3.5, 6.5), [1.85, 4.93, 7.48])
    >>> RROnBins(100.0, [0, 1, 5], [1, 1, 1]).randomize(4.2, RandomSource.seeded(0))
    2
    """

    epsilon: Annotated[float, Bounded("(0, 100]")]
    values: Sequence[float] = field(repr=False)
    prior: Sequence[float] = field(repr=False)
    loss: str = "squared"
    name: str = "rr_on_bins"
    unit: Unit = Unit.LABEL
    categories: int = field(init=False)
    edges: tuple[float, ...] = field(init=False, repr=False)
    outputs: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {self.loss!r}")
        values, (prior,) = self._grid(), self._read_prior()
        weights = prior / prior.max()
        starts = best_bins(values, weights, self.epsilon, self.loss)
        bins = np.searchsorted(starts, np.arange(len(values)), side="right")
        within = bins == np.arange(1, len(starts) + 1)[:, np.newaxis]
        outputs = _centers(values, _weighted(weights, within, self.epsilon), self.loss)
        edges = values[starts[1:] - 1] / 2 + values[starts[1:]] / 2
        for name, found in (
            ("values", values),
            ("prior", prior),
            ("edges", edges),
            ("outputs", outputs),
        ):
            object.__setattr__(self, name, tuple(found.tolist()))
        object.__setattr__(self, "categories", len(starts))

    def _grid(self) -> Floats:
        found = np.asarray(self.values)
        if found.dtype.kind not in "iuf" or found.ndim != 1 or not 2 <= len(found) <= _MOST_VALUES:
            raise ValueError(f"values must be 2 to {_MOST_VALUES} numbers")
        found = inputs.as_double(found)
        with np.errstate(over="ignore", invalid="ignore"):
            is_finite = np.isfinite(found[-1] - found[0])
        if not (is_finite and (found[:-1] < found[:-1] / 2 + found[1:] / 2).all()):
            raise ValueError("values must be finite and ascend")
        return found

    def _read_prior(self) -> Floats:
        rows = inputs.read_prior(self.name, self.prior, len(self.values), ())
        return rows if rows.any() else np.ones_like(rows)

    @property
    def law_terms(self) -> tuple[float, ...]:
        """The edges."""
        return self.edges

    @cached_property
    def response(self) -> KaryResponse:
        """The randomizer of a bin's number."""
        return KaryResponse(self.epsilon, self.categories, self.name, self.unit)

    def read(self, values: object) -> Ints:
        """Return the bin of each label, int64, -1 for what is no number. **Private**."""
        found = inputs.as_double(inputs.real_array(inputs.plain_vector(values)))
        bins = np.searchsorted(self.edges, found, side="right")
        return np.where(np.isnan(found), inputs.INVALID, bins)

    def _read_one(self, value: object) -> int:
        found = self.read(value)
        return int(found) if found.shape == () else inputs.INVALID

    def randomize(self, value: object, rng: RandomSource) -> int:
        """Return a report of one label, the number of a bin."""
        return self.response.randomize(self._read_one(value), rng)

    def log_prob(self, report: Any, value: object) -> float:
        """Return log P(report | label), or ValueError for no bin."""
        return self.response.log_prob(report, self._read_one(value))

    def likelihood(self, reports: ArrayLike, prior: ArrayLike | None = None) -> Floats:
        """Return P(report | bin), with every bin along a last axis; there must be no prior."""
        return self.response.likelihood(reports, prior)

    def decode(self, reports: ArrayLike) -> Floats:
        """Return the outputs of reports: the smallest expected loss, biased to the centre."""
        return np.asarray(self.outputs)[inputs.check_labels("reports", reports, self.categories)]

    def unbiased(self, reports: ArrayLike) -> Floats:
        """Return values whose mean over reports is the prior's mean in the label's bin."""
        values, bins = np.asarray(self.values), self.read(self.values)
        # The small number makes the mean of a bin without mass that of its values.
        law = np.asarray(self.prior) / max(self.prior) + np.finfo(np.float64).tiny
        means = np.bincount(bins, law * values) / np.bincount(bins, law)
        levels = (means - (1.0 - self.truth) * means.mean()) / self.truth
        return np.asarray(levels[inputs.check_labels("reports", reports, self.categories)])


def best_bins(values: Floats, weights: Floats, epsilon: float, loss: str) -> NDArray[np.intp]:
    """Return the place of the first value of each of the best bins, two at least.

    Values ascend. Weights are the prior's, at least 0, with a sum that is finite and not 0.
    """
    n, other = len(values), math.exp(-epsilon)
    places, scaled = np.arange(n), (values - values[0]) / (values[-1] - values[0])
    # Row: last value of a bin; column: its first one. Losses without the law's common factor.
    costs = np.full((n, n), np.inf)
    for first in range(n):
        within = (first <= places) & (places <= places[first:, np.newaxis])
        rows = _weighted(weights, within, epsilon)
        away = np.abs(scaled - _centers(scaled, rows, loss)[:, np.newaxis])
        costs[first:, first] = (rows * away ** LOSSES[loss]).sum(axis=1)
    best, begins = costs[:, 0], [np.zeros(n, dtype=np.intp)]
    losses: list[float] = []
    for bins in range(2, n + 1):
        # Each bin costs at least e^-epsilon times the loss of a constant: no more are better.
        if losses and bins * other * costs[-1, 0] >= min(losses) * (1.0 + (bins - 1) * other):
            break
        total = costs + np.append(np.inf, best[:-1])
        begins.append(total.argmin(axis=1))
        best = total[places, begins[-1]]
        losses.append(best[-1] / (1.0 + (bins - 1) * other))
    fewest = int(np.argmax(np.array(losses) <= min(losses) * (1.0 + _ROUNDING))) + 2
    starts, last = [], n - 1
    for row in reversed(begins[:fewest]):
        starts.append(row[last])
        last = row[last] - 1
    return np.array(starts[::-1])


def _weighted(weights: Floats, within: NDArray[np.bool_], epsilon: float) -> Floats:
    """Return weights in a row for each bin, those outside of it times e^-epsilon."""
    return np.asarray(weights * np.where(within, 1.0, math.exp(-epsilon)))


def _centers(values: Floats, rows: Floats, loss: str) -> Floats:
    """Return the value of the least loss by each row of weights: the mean, or lower median."""
    if loss == "squared":
        return np.asarray(rows @ values / rows.sum(axis=1))
    sums = np.cumsum(rows, axis=1)
    return np.asarray(values[(sums >= sums[:, -1:] / 2).argmax(axis=1)])

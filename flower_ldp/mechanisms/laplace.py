r"""Laplace mechanism for rows on the probability simplex, on an integer grid.

A softmax row is rounded to integers :math:`n_1, \dots, n_k \ge 0` that add up to G, the steps per
unit. Discrete Laplace noise of rate :math:`\epsilon / 2G` is added to each.

**Relation**: any two rows.

**Unit**: one row; a client that sends n rows, all of which may change, pays n epsilon.

**Guarantee**: a row is epsilon-LDP, and tight for k >= 2 (two one-hot rows).

**Proof**: rounded rows have L1 norm G, so their L1 distance is at most 2G. Each step of distance
changes a log-probability by at most :math:`\epsilon / 2G`.

**Exactness**: integers and exact discrete noise, since floating-point noise reveals its input
(Mironov 2012). Entries are rounded down and the missing units go to the largest remainders, so the
sum is exactly G. The proof needs nothing else of the rounding.

**Invalid input**: a row off the simplex counts as its centre: each entry is
:math:`\lfloor G/k \rfloor`, and the missing units go to a uniform subset of the entries. If there
are not as many rows and entries as agreed, all rows count as the centre.

**Estimate**: report / G is the rounded row plus noise of mean zero.

**Source**: Dwork, McSherry, Nissim, Smith 2006; Ghosh, Roughgarden, Sundararajan 2009 (discrete).
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms.base import Mechanism, NoProtectionWarning
from flower_ldp.mechanisms.inputs import as_double, note, read_rows
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.random import Bools, Floats, Ints, RandomSource, uniform, uniform_subset
from flower_ldp.parameter_bounds import Bounded, Checked, check_in
from flower_ldp.privacy import PrivacyEvent, as_fraction

#: Largest L1 distance of two rows on the simplex.
SIMPLEX_SENSITIVITY = 2
#: From here on an epsilon is warned of.
EPSILON_WARNED = 100.0
_LEAST_BITS = 10


def check_epsilon(epsilon: float) -> None:
    """Raise ValueError unless epsilon is in [1e-6, 1e6]; warn above 100."""
    check_in("[1e-6, 1e6]", "epsilon", epsilon)
    if epsilon > EPSILON_WARNED:
        warnings.warn(
            f"epsilon = {epsilon:,g} a release protects nothing: it lets odds about the data "
            f"change by 10^{epsilon / math.log(10):,.0f} times",
            NoProtectionWarning,
            stacklevel=4,
        )


def grid_steps(bits: int | None, least: int, epsilon: float) -> int:
    """Return 2^bits; by default at least 2^least and so large that a step costs at most 2^-10."""
    if bits is None:
        bits = max(least, math.ceil(math.log2(epsilon * 1024)))
    return 1 << bits


def round_to_grid(rows: NDArray[np.floating[Any]], steps: int) -> Ints:
    """Round rows on the simplex, shape (n, k), to int64 that add up to ``steps`` exactly.

    Rows are float64, finite, not negative, with sums near 1, which are made 1. ``steps`` is at most
    2^40.
    """
    scaled = rows * (steps / rows.sum(axis=1, keepdims=True))
    whole = np.floor(scaled)
    grid: Ints = whole.astype(np.int64)
    missing = steps - grid.sum(axis=1)
    # Largest remainders first; among equals the earlier entry.
    order = np.argsort(whole - scaled, axis=1, kind="stable")
    units = (np.arange(rows.shape[1]) < missing[:, None]).astype(np.int64)
    np.put_along_axis(grid, order, np.take_along_axis(grid, order, axis=1) + units, axis=1)
    if (grid < 0).any() or (grid.sum(axis=1) != steps).any():
        raise ValueError("rows could not be rounded to the grid: their sums are too far from 1")
    return grid


class IntegerNoise(Mechanism[Any, Any]):
    """Discrete Laplace noise on integers; the base of frozen dataclasses."""

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        super().__post_init__()
        self._check()
        _ = self.noise

    def _check(self) -> None:
        """Check fields without an interval."""

    @property
    @abstractmethod
    def sensitivity(self) -> int:
        """L1 distance of neighbours' integers, in grid steps."""

    @cached_property
    def noise(self) -> DiscreteLaplace:
        """The noise that is added, in grid steps."""
        return DiscreteLaplace(as_fraction(self.epsilon) / self.sensitivity)


@dataclass(frozen=True)
class Laplace(IntegerNoise):
    """Discrete Laplace noise on rows of class probabilities.

    Parameters
    ----------
    epsilon : float
        Per row and per client, for any change of the row; in [1e-6, 1e6], with a warning above 100.
        Texts that publish noise of scale 1 / epsilon mean half of this: :attr:`published_epsilon`.
    classes : int
        Entries of a row, k, in [2, 2^20].
    rows : int
        Rows of one release, n, at least 1. Public.
    grid_bits : int, optional
        The grid has G = 2^grid_bits steps per unit, in [0, 40]. By default G and the noise's scale
        in steps are at least 1,024.

    Examples
    --------
    >>> import numpy as np
    >>> mechanism = Laplace(epsilon=4.0, classes=3)
    >>> report = mechanism.randomize(np.array([[0.9, 0.1, 0.0]]), RandomSource.from_os())
    >>> mechanism.estimate(report).shape
    (1, 3)
    """

    epsilon: float
    classes: Annotated[int, Bounded("[2, 2^20]")]
    rows: Annotated[int, Bounded("[1, inf)")] = 1
    grid_bits: Annotated[int | None, Bounded("[0, 40]")] = None
    name: str = "laplace"

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon for each row, per client."""
        return (PrivacyEvent(self.name, self.epsilon, count=self.rows),)

    @property
    def steps(self) -> int:
        """G."""
        return grid_steps(self.grid_bits, _LEAST_BITS, self.epsilon / SIMPLEX_SENSITIVITY)

    @property
    def sensitivity(self) -> int:
        """2 G."""
        return SIMPLEX_SENSITIVITY * self.steps

    @property
    def published_epsilon(self) -> float:
        """Half of epsilon, as texts that take a sensitivity of 1 call it."""
        return self.epsilon / SIMPLEX_SENSITIVITY

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of an entry of :meth:`estimate`."""
        return self.noise.standard_deviation / self.steps

    def _rounded(self, value: object) -> tuple[Ints, Bools]:
        rows, good = read_simplex_rows(value, (self.rows, self.classes))
        return round_to_grid(rows, self.steps), good

    def _neutral_rows(self, count: int, rng: RandomSource) -> Ints:
        least, missing = divmod(self.steps, self.classes)
        found = np.full((count, self.classes), least, dtype=np.int64)
        if missing > count:
            for row in found:
                row[uniform_subset(rng, self.classes, missing)] += 1
            return found
        # The first steps of Fisher and Yates, in all rows at once.
        rows, order = np.arange(count), np.tile(np.arange(self.classes), (count, 1))
        for place in range(missing):
            other = place + uniform(self.classes - place, count, rng)
            chosen = order[rows, other]
            order[rows, other] = order[:, place]
            found[rows, chosen] += 1
        return found

    def randomize(self, value: object, rng: RandomSource) -> Ints:
        """Return a report, int64 in grid steps, negative ones and more than G among them.

        ``value`` and report have the shape (rows, classes). A row is on the simplex if its sum is
        within 1e-3 of 1.
        """
        rounded, good = self._rounded(value)
        (wrong,) = np.nonzero(~good)
        if len(wrong):
            note(self.name, f"{len(wrong)} of {self.rows} rows are not on the simplex")
            rounded[wrong] = self._neutral_rows(len(wrong), rng)
        return rounded + self.noise.sample(rounded.size, rng).reshape(rounded.shape)

    def log_prob(self, report: Ints, value: object) -> float:
        """Return log P(report | value) as :meth:`DiscreteLaplace.probability`."""
        rounded, good = self._rounded(value)
        distance = (np.asarray(report) - rounded)[good]
        known = math.fsum(self.noise.log_prob(int(x)) for x in distance.ravel())
        return known + math.fsum(map(self._log_neutral, np.asarray(report)[~good]))

    def _log_neutral(self, row: Ints) -> float:
        least, missing = divmod(self.steps, self.classes)
        rate, above = float(self.noise.rate), int((row > least).sum())
        below = self.classes - above
        law = math.fsum(self.noise.log_prob(int(x) - least) for x in row)
        # A unit more at an entry multiplies its probability by e^rate if the report is above
        # the centre there, else by e^-rate; so only how many of the places are above matters.
        ways = [
            math.log(math.comb(above, i) * math.comb(below, missing - i)) + rate * (2 * i - missing)
            for i in range(max(0, missing - below), min(above, missing) + 1)
        ]
        largest = max(ways)
        law += largest + math.log(math.fsum(math.exp(way - largest) for way in ways))
        return law - math.log(math.comb(self.classes, missing))

    def estimate(self, report: Ints) -> Floats:
        """Return unbiased estimates of rounded rows, float64, which may lie off the simplex.

        ``report`` is int64 of shape (any number, classes), from any number of clients.
        """
        return np.asarray(report, dtype=np.float64) / self.steps


@dataclass(frozen=True)
class LaplacePlan(Checked):
    """One setting of the noise on a row of probabilities, under all its names.

    Parameters
    ----------
    epsilon : float
        True epsilon per row and client, for any change of the row; positive.
    """

    epsilon: Annotated[float, Bounded("(0, inf)")]

    @classmethod
    def from_published(cls, epsilon: float) -> LaplacePlan:
        """Return the plan of what a text with sensitivity 1 calls ``epsilon``.

        Examples
        --------
        >>> LaplacePlan.from_published(230260).epsilon
        460520.0
        """
        return cls(float(epsilon) * SIMPLEX_SENSITIVITY)

    @classmethod
    def from_noise(cls, below: float, probability: float) -> LaplacePlan:
        """Return the plan whose absolute noise on an entry is ``below`` a positive bound so often.

        It is for continuous noise; the grid changes it by less than a part in a thousand.
        ValueError for a ``probability`` outside (0, 1) and other bounds.

        Examples
        --------
        >>> plan = LaplacePlan.from_noise(below=1e-5, probability=0.9)
        >>> round(plan.published_epsilon), round(plan.epsilon)
        (230259, 460517)
        """
        check_in("(0, inf)", "below", below)
        check_in("(0, 1)", "probability", probability)
        return cls(-math.log1p(-probability) * SIMPLEX_SENSITIVITY / below)

    @property
    def published_epsilon(self) -> float:
        """As :attr:`Laplace.published_epsilon`."""
        return self.epsilon / SIMPLEX_SENSITIVITY

    @property
    def scale(self) -> float:
        """Scale b = 2 / epsilon, also the mean absolute noise on an entry."""
        return SIMPLEX_SENSITIVITY / self.epsilon

    def noise_below(self, probability: float) -> float:
        """Return the bound on absolute noise that holds so often."""
        check_in("(0, 1)", "probability", probability)
        return -math.log1p(-probability) * self.scale


#: How far from 1 the sum of a row may be; half precision needs most of it.
ROW_SUM_TOLERANCE = 1e-3


def project_to_simplex(rows: ArrayLike) -> Floats:
    """Return the nearest row on the simplex for each row, float64 (Held, Wolfe, Crowder 1974).

    It is post-processing. Rows of another shape than (n, k) or (k,), or not finite, raise
    ValueError.

    Examples
    --------
    >>> project_to_simplex([0.5, 1.0, -3.0]).tolist()
    [0.25, 0.75, 0.0]
    """
    given = np.asarray(rows, dtype=np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] == 0:
        raise ValueError(f"rows must have shape (n, k) or (k,) with k >= 1, got {given.shape}")
    if not np.isfinite(given).all():
        raise ValueError("rows must be finite, got NaN or infinity")
    # The same multiple of ones on every entry changes nothing but large numbers' rounding.
    flat = given.reshape(-1, given.shape[-1])
    flat = flat - flat.max(axis=1, keepdims=True)
    falling = -np.sort(-flat, axis=1)
    shift = (np.cumsum(falling, axis=1) - 1.0) / np.arange(1, flat.shape[1] + 1)
    size = (falling > shift).sum(axis=1)
    tau = np.take_along_axis(shift, size[:, None] - 1, axis=1)
    return np.asarray(np.maximum(flat - tau, 0.0).reshape(given.shape))


def read_simplex_rows(value: object, shape: tuple[int, int]) -> tuple[Floats, Bools]:
    """Return private rows as a float64 copy, and which are on the simplex; others are its centre.

    ``shape`` is the public one, n and k. A value of another shape has no valid row.
    """
    found = read_rows(value, shape)
    if found is None:
        return np.full(shape, 1.0 / shape[1]), np.zeros(shape[0], dtype=np.bool_)
    rows = as_double(found)
    with np.errstate(all="ignore"):
        good = (rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1.0) <= ROW_SUM_TOLERANCE)
    rows[~good] = 1.0 / shape[1]
    return rows, good


def check_simplex_rows(name: str, rows: NDArray[Any], classes: int | None) -> Floats:
    """Return rows of shape (n, k) as float64, or raise unless they are on the simplex.

    The error shows no entry: rows are private.

    Raises
    ------
    ValueError
        If the shape or dtype is another, or a row is not finite, is negative anywhere or does not
        add up to 1 within 1e-3.
    """
    given = np.asarray(rows)
    if given.ndim != 2 or given.shape[1] < 2 or classes not in (None, given.shape[1]):
        wanted = "k >= 2" if classes is None else str(classes)
        raise ValueError(f"{name} must have shape (n, {wanted}), got {given.shape}")
    if given.dtype.kind != "f":
        raise ValueError(f"{name} must be an array of floats, got dtype {given.dtype}")
    found, good = read_simplex_rows(given, given.shape)
    if not good.all():
        wanted = f"finite, not negative, and add up to 1 within {ROW_SUM_TOLERANCE}"
        raise ValueError(f"rows of {name} must be {wanted}")
    return found

r"""SignDS: a few dimension indices and one random sign instead of a model update.

An update u has d entries. A sign s is drawn from a fair coin, independent of u. S is the set of
the K = floor(k d) largest entries of s u. The report is s and an h-subset J of the dimensions with

.. math:: P(J \mid u, s) \propto e^{\epsilon\,[\,|J \cap S| \ge v_{th}\,]},

drawn as v = |J n S| from its exact law, then v members of S and h - v others, uniformly without
replacement.

**Relation**: any two updates of one client (replace-one on a client's whole data).

**Unit**: client.

**Guarantee**: one report is epsilon-LDP, and tight.

**Proof**: s is independent of u. For given s, the number of h-subsets with v members in S depends
on |S| = K, d and h alone, hence so does the normalizer, and two inputs' probabilities of one J
differ by a factor of e^epsilon at most. This needs exactly K members for every input: equal entries
at the edge, such as exact zeros, are ordered by position. h and v_th depend on public configuration
only.

**Exactness**: the law is held in integers and S has exactly K members
(:mod:`~flower_ldp.mechanisms.signds_size`, :mod:`~flower_ldp.mechanisms.topk`).

**Invalid input**: an update that is not finite, or of another shape, gets a fair sign and a uniform
h-subset: the law of distinct entries in uniformly random places, since S is then a uniform K-subset
for either sign. Zeros would not do: by position they favour the same K entries in every report.

**Source**: Jiang, Zhou, Grossklags, "SignDS-FL: Local Differentially Private Federated Learning
with Sign-based Dimension Selection", ACM TIST 13(5), 2022.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.facts import Fact
from flower_ldp.mechanisms import signds_size
from flower_ldp.mechanisms.base import Mechanism, NullDistribution, UpdatePlan
from flower_ldp.mechanisms.inputs import note, read_vector
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource, uniform_subset
from flower_ldp.mechanisms.subset_code import encoded_length
from flower_ldp.mechanisms.topk import TopSet, top_set
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import as_fraction, rounded_up

#: Below this size of S the report says little; :class:`SmallTopSetWarning` tells.
SMALL_TOP_SET = 50
#: Bytes of a report before its indices.
HEADER_BYTES = 2
_LARGEST_K = 0.25


class SmallTopSetWarning(UserWarning):
    """K is below 50: too few dimensions for a useful report."""


@dataclass(frozen=True)
class SignDS(Mechanism[object, "Selection"]):
    """Dimension selection by the exponential mechanism.

    Parameters
    ----------
    epsilon : float
        Per release, per client (pure LDP); in (0, 100].
    k : float or None
        Fraction of dimensions that count as largest; in (0, 0.25]. None chooses it, and h if
        ``dim_out`` is 0, for the best cosine (:mod:`flower_ldp.mechanisms.signds_size`).
    threshold_ratio : float
        With ``k``, the least expected fraction of reported dimensions in S, which decides h as
        published; in [0.5, 1].
    dim_out : int
        Number h of reported dimensions, or 0 to choose it; in [0, 4096].

    Examples
    --------
    >>> plan = SignDS(epsilon=100.0, k=0.2).plan(66_404)
    >>> plan.dim_out, plan.threshold, round(plan.expected_inside, 3)
    (238, 143, 142.823)
    >>> plan = SignDS(epsilon=100.0).plan(66_404)
    >>> plan.top_size, plan.dim_out, plan.threshold
    (16601, 128, 105)
    """

    name = "signds"

    epsilon: Annotated[float, Bounded("(0, 100]")]
    k: Annotated[float | None, Bounded(f"(0, {_LARGEST_K:g}]")] = None
    threshold_ratio: Annotated[float, Bounded("[0.5, 1]")] = 0.6
    dim_out: Annotated[int, Bounded(f"[0, {signds_size.MAX_DIM_OUT}]")] = 0

    def plan(self, dimension: int, *, quiet: bool = False) -> SelectionPlan:
        """Return K, h, v_th and the law of v for an update of ``dimension`` entries.

        Parameters
        ----------
        dimension : int
            d, in [1, 2^32 - 1] and at least ``dim_out``; ValueError otherwise.
        quiet : bool
            Whether to omit the warning.

        Warns
        -----
        SmallTopSetWarning
            If K is below 50.
        """
        plan = _plan(self, dimension)
        if plan.top_size < SMALL_TOP_SET and not quiet:
            warnings.warn(
                f"k * d = {self.k or plan.top_size / dimension:g} * {dimension} leaves "
                f"K = {plan.top_size} dimensions in S; below {SMALL_TOP_SET} a report says "
                f"little: {_advice(self, dimension)}",
                SmallTopSetWarning,
                stacklevel=2,
            )
        return plan

    def sized(self, dimension: int) -> SignDS:
        """Return the selection for a proposal, with k and h written out.

        Two machines may choose different K and h from doubles. ValueError as :meth:`plan`.
        """
        if self.k is not None:
            return self
        plan = _plan(self, dimension)
        # The middle of all k with floor(k d) = K, so that no rounding of k changes K.
        k = min((plan.top_size + 0.5) / dimension, _LARGEST_K)
        return replace(self, k=k, dim_out=plan.dim_out)

    def randomize(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> Selection:
        """Return a private report of an update of floats, shape (d,).

        ``dimension`` is d, public; by default the number of entries. ValueError as :meth:`plan`.
        """
        return self.randomize_with_top(value, rng, dimension)[0]

    def randomize_with_top(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> tuple[Selection, TopSet | None]:
        """Return a report, and the **private** set S for :class:`MagRR`'s bit; None if invalid."""
        update, dimension = read_vector(value, dimension)
        plan = _plan(self, dimension)
        sign = rng.sign()
        try:
            top = None if update is None else top_set(update, plan.top_size, sign)
        except ValueError:  # it is not finite
            top = None
        if top is None:
            note(self.name, f"the update is no {dimension} finite numbers")
            return Selection(uniform_subset(rng, dimension, plan.dim_out), sign), None
        inside = plan.law.sample(rng)
        indices = top.sample(inside, plan.dim_out - inside, rng)
        return Selection(indices, sign), top

    def log_prob(self, report: Selection, value: object, dimension: int | None = None) -> float:
        """Return log P(report | value), with S from a stable sort, to check the sampler's search.

        Raises
        ------
        ValueError
            If ``report`` does not hold h distinct dimensions and a sign.
        """
        update, dimension = read_vector(value, dimension)
        plan = _plan(self, dimension)
        _check_report(report, plan)
        if update is None or not np.isfinite(update).all():
            return -math.log(2 * math.comb(dimension, plan.dim_out))
        top = top_by_sort(update, plan.top_size, report.sign)
        inside = int(np.isin(report.indices, top).sum())
        probability = plan.law.subset_probability(inside)
        return math.log(probability.numerator) - math.log(probability.denominator) - math.log(2)

    def estimate(self, reports: Iterable[Selection], dimension: int) -> Floats:
        """Return an unbiased estimate, float64 of shape (d,), of the mean top-set direction.

        A client's direction is +1 at its K largest entries, -1 at its K smallest, else 0. A report
        adds its sign at its indices; its mean is half the contrast times the direction.

        Raises
        ------
        ValueError
            If there is no report, or the contrast is 0 (:attr:`SelectionPlan.unbiasing`).
        """
        plan = _plan(self, dimension)
        reports = list(reports)
        if not reports:
            raise ValueError("reports must hold at least one report")
        total = sum_of_signs(reports, dimension)
        return total.astype(np.float64) * (plan.unbiasing / len(reports))


def _advice(mechanism: SignDS, dimension: int) -> str:
    if mechanism.k is None:
        return "k was chosen by what a report is worth; only a larger epsilon or model helps"
    if _LARGEST_K * dimension >= SMALL_TOP_SET:
        return f"raise k to {rounded_up(SMALL_TOP_SET / dimension, 3):g} at least, or leave it out"
    return (
        f"no k does better for so few weights (it is at most {_LARGEST_K:g}); with the Gaussian "
        "mechanism every weight takes part"
    )


def _check_report(report: Selection, plan: SelectionPlan) -> None:
    distinct = np.unique(report.indices)
    right = len(distinct) == len(report.indices) == plan.dim_out and report.sign in (-1, 1)
    if not (right and distinct[0] >= 0 and distinct[-1] < plan.dimension):
        of = f"{plan.dim_out} distinct dimensions in [0, {plan.dimension})"
        raise ValueError(f"report must hold a sign and {of}")


@lru_cache(maxsize=32)
def _plan(mechanism: SignDS, dimension: int) -> SelectionPlan:
    check_in(f"[1, {signds_size.MAX_DIMENSION}]", "dimension", dimension)
    check_in(f"[0, {dimension}]", "dim_out", mechanism.dim_out)
    if mechanism.k is None:
        top_size, dim_out = signds_size.best_sizes(dimension, mechanism.epsilon, mechanism.dim_out)
    else:
        top_size = max(1, math.floor(as_fraction(mechanism.k) * dimension))
        dim_out = mechanism.dim_out or signds_size.largest_dim_out(
            dimension, top_size, mechanism.epsilon, mechanism.threshold_ratio
        )
    threshold = signds_size.best_threshold(dimension, top_size, dim_out, mechanism.epsilon)
    law = signds_size.SelectionLaw.of(dimension, top_size, dim_out, threshold, mechanism.epsilon)
    return SelectionPlan(dimension, top_size, dim_out, threshold, law)


@dataclass(frozen=True)
class SelectionPlan(UpdatePlan):
    """The sizes and the law of SignDS for one dimension; all of it public.

    ``dimension`` is d, ``top_size`` K = max(1, floor(k d)), ``dim_out`` h and ``threshold`` v_th;
    ``law`` is that of v.
    """

    dimension: int
    top_size: int
    dim_out: int
    threshold: int
    law: signds_size.SelectionLaw = field(repr=False)

    def describe(self, of: str) -> list[Fact]:
        """Return sizes and value of a report, under keys in ``of``."""
        expected = self.expected_inside
        share = f"{expected:.6f} ({expected / self.dim_out:.0%})"
        return [
            Fact(f"{of}.h", self.dim_out, "h, weights in a report", f" of {self.dimension:,}"),
            Fact(f"{of}.top_size", self.top_size, "K, weights in the top set"),
            Fact(f"{of}.v_th", self.threshold, "v_th, favoured from"),
            Fact(f"{of}.expected_inside", expected, "E[v], expected of the top set", text=share),
            Fact(f"{of}.contrast", self.contrast),
            Fact(f"{of}.worth", self.worth, "worth of a report"),
        ]

    @property
    def sizes(self) -> dict[str, int]:
        """The chosen sizes by name."""
        return {"top_size": self.top_size, "h": self.dim_out, "v_th": self.threshold}

    @property
    def summary(self) -> str:
        """The chosen sizes in words."""
        return f"K = {self.top_size:,}, h = {self.dim_out:,}"

    @property
    def report_bytes(self) -> int:
        """Number of bytes of every report."""
        return HEADER_BYTES + encoded_length(self.dimension, self.dim_out)

    @property
    def expected_inside(self) -> float:
        """E[v]."""
        return self.law.mean()

    @property
    def contrast(self) -> float:
        """P(j in J | j in S) - P(j in J | j not in S)."""
        rest = self.dimension - self.top_size
        if rest == 0:
            return self.expected_inside / self.top_size
        # E[v] / K - (h - E[v]) / (d - K), of which a small epsilon's digits would be lost.
        excess = self.law.mean_above(self.dim_out * self.top_size, self.dimension)
        return excess * self.dimension / (self.top_size * rest)

    @property
    def unbiasing(self) -> float:
        """2 / contrast, the factor that makes the mean of reports an unbiased estimate.

        Raises
        ------
        ValueError
            If the contrast is 0: all d dimensions are reported, or epsilon is almost 0.
        """
        contrast = self.contrast
        found = 2.0 / contrast if contrast > 0 else math.inf
        if not math.isfinite(found):
            raise ValueError(
                "reports of this epsilon and dim_out say nothing of the update: use a smaller "
                "dim_out, a larger epsilon, or scaling='published'"
            )
        return found

    @property
    def worth(self) -> float:
        """c, the value of a report (:mod:`~flower_ldp.mechanisms.signds_size`)."""
        fraction = self.top_size / self.dimension
        if fraction == 1.0:
            return 0.0
        signal = self.contrast * self.top_size / math.sqrt(self.dim_out)
        return signal * signds_size.mean_of_top(fraction)

    @property
    def efficiency(self) -> float:
        """Number of weights whose noise one report outweighs."""
        square = self.worth**2
        return square / (1.0 - square / self.dimension)

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine for normal entries."""
        gained = reports * self.worth**2 / self.dimension
        return math.sqrt(gained / (1.0 + gained / self._along))

    @property
    def null_distribution(self) -> NullDistribution:
        """Law of a sum of uniform selections: l = h, q the mean square overlap."""
        h, share = self.dim_out, self.dim_out / self.dimension
        spread = h * share * (1.0 - share) * (self.dimension - h) / max(self.dimension - 1, 1)
        return NullDistribution(h, spread + (h * share) ** 2, self._along)

    @property
    def _along(self) -> float:
        fraction = self.top_size / self.dimension
        return 2.0 * fraction * signds_size.mean_of_top(fraction) ** 2 if fraction < 1.0 else 1.0


@dataclass(frozen=True)
class Selection:
    """One report: distinct ascending dimensions, int64 of shape (h,), and a sign, -1 or +1."""

    indices: Ints
    sign: int


def sum_of_signs(reports: Iterable[Selection], dimension: int) -> NDArray[np.int32]:
    """Return the sum of the signs at each dimension, int32 of shape (d,), of validated reports.

    It takes h additions a report, and is exact for up to 2^31 - 1 reports.
    """
    total = np.zeros(dimension, dtype=np.int32)
    for report in reports:
        total[report.indices] += np.int32(report.sign)  # no dimension twice in a report
    return total


def top_by_sort(values: NDArray[np.floating[Any]], size: int, sign: int) -> Ints:
    """Return the positions of the ``size`` largest entries of ``sign * values``, best first.

    Among equals the lower position comes first.
    """
    # A change of sign and no product, which would flush subnormals where the processor is set so.
    wide = values.astype(np.float64)
    falling = np.negative(wide) if sign > 0 else wide
    return np.argsort(falling, kind="stable")[:size]

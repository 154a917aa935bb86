r"""Codewords: a report is one public unit vector near the client's direction.

A public code has M = 2n unit vectors: the rows of Hadamard's matrix of order n behind public random
signs (:mod:`flower_ldp.mechanisms.hadamard`), over their length, each with both signs. A seed gives
G codes. An update u of d <= n entries is padded with zeros. Exactly the K codewords of the largest
inner products with it are *favoured* (S). The report is the number r of a code, uniform and
independent of u, and a codeword c of it with

.. math:: P(c \mid u, r) \propto e^{\epsilon\,[c \in S_r(u)]}.

**Relation**: any two updates (replace-one on a client's whole data).

**Unit**: client.

**Guarantee**: one report is epsilon-LDP, and tight, whatever the codes are and whoever chose the
seed.

**Proof**: r is independent of u. For given r, S has exactly K of M codewords for every u, so the
normalizer K e^epsilon + M - K is the same for all, and two probabilities of one c differ by a
factor of at most e^epsilon. Ties are broken by position from an offset that is drawn uniformly for
each report and not reported: the proof holds for each offset, hence for their mixture. With B
blocks equal parts of the update have a matrix each, and all codewords compete for the K places.

**Exactness**: integer weights in units of 2^-256, rounded to the safe side. Rounded inner products
only order the codewords. Both sides take the same random numbers and work, so time does not show a
favoured report.

**Invalid input**: anything but d finite numbers counts as zeros, which get a uniform codeword.

**Estimate.** For an update in a random direction the mean report is that direction times :math:`g =
\kappa\,m(K)/\sqrt n`, with :math:`\kappa = P(S) - (1 - P(S)) K/(M-K)` and m(K) the mean of the K
largest of n normal magnitudes. The sum of N reports of one update has the cosine

.. math:: \frac{1}{\cos^2} - 1 = \frac{d/n - g^2}{N g^2}
    + \frac{1 - 1/N}{G} \Big(\frac{d}{K\,m(K)^2} - 1\Big).

The second term is the bias of G codes: exact for d = n, up to twice as large for d near n/2, and
falling over rounds. B blocks add a bias to those in which the update is longest. Of a block of r
times its fair length the mean report holds :math:`h(r)`, hence the square cosine

.. math:: a = \frac{E[r\,h(r)]^2}{E[r^2]\,E[h(r)^2]}, \qquad
    h(r) \propto (1 - c^2)^{(s-1)/2}, \quad c = \tau / (r \sqrt s)

for blocks of s entries and :math:`r^2` chi-square with s degrees over s. K of n rows are as near as
:math:`\tau`, by the Beta law. Codes and rounds do not average it out.

**Source**: Isik, Chen, Ozgur, Weissman, No, "Exact optimality of communication-privacy-utility
tradeoffs in distributed mean estimation", NeurIPS 2023 (k-closest encoding on a rotated code);
Feldman, Talwar, "Lossless compression of efficient private local randomizers", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated

import numpy as np

from flower_ldp.errors import WireError
from flower_ldp.facts import Fact
from flower_ldp.mechanisms import hadamard
from flower_ldp.mechanisms.base import REPORT_VERSION, NullDistribution, UpdateMechanism, UpdatePlan
from flower_ldp.mechanisms.inputs import note, over_largest, read_vector
from flower_ldp.mechanisms.random import COIN_BITS, EXP_BITS, Floats, RandomSource, exp_lower
from flower_ldp.parameter_bounds import Bounded, check_in

# Sizes of the favoured set that are tried, in ratios of about one sixth.
_RATIO = 1.16
# So many of the largest are summed by their quantiles, the others by an integral.
_ONE_BY_ONE = 1024


@dataclass(frozen=True)
class CodewordPlan(UpdatePlan):
    """The public sizes and the law of codewords for one dimension.

    ``dimension`` is d, ``favoured`` K, ``rotations`` G and ``blocks`` B. ``order`` is n: for each
    block the least power of two from its entries on. ``weight`` is P(S) in units of 2^-256, rounded
    down.
    """

    dimension: int
    order: int
    favoured: int
    rotations: int
    weight: int
    blocks: int = 1

    @property
    def codewords(self) -> int:
        """M = 2n."""
        return 2 * self.order

    @property
    def block_order(self) -> int:
        """Rows of one block."""
        return self.order // self.blocks

    @property
    def block_size(self) -> int:
        """Entries of one block; the last one may have fewer."""
        return -(-self.dimension // self.blocks)

    @property
    def bits(self) -> int:
        """Bits of a report: of r and of c."""
        return (self.rotations * self.codewords - 1).bit_length()

    @property
    def report_bytes(self) -> int:
        """Bytes of every report."""
        return 1 + -(-self.bits // 8)

    def describe(self, of: str) -> list[Fact]:
        """Return sizes and value of a report, under keys in ``of``."""
        codes = f" in {self.rotations:,} codes of {self.codewords:,} codewords"
        blocks = f" of {self.block_size:,} weights"
        return [
            Fact(f"{of}.n", self.order, "n, rows of a code", codes),
            Fact(f"{of}.codewords", self.codewords),
            Fact(f"{of}.rotations", self.rotations),
            Fact(f"{of}.blocks", self.blocks, "   in blocks", blocks),
            Fact(f"{of}.favoured", self.favoured, "K, codewords favoured"),
            Fact(f"{of}.bits", self.bits, "bits of a report"),
            Fact(f"{of}.efficiency", self.efficiency, "efficiency of a report"),
        ]

    @property
    def sizes(self) -> dict[str, int]:
        """The chosen sizes by name."""
        return {"favoured": self.favoured, "rotations": self.rotations, "n": self.order}

    @property
    def summary(self) -> str:
        """The chosen sizes in words."""
        return f"K = {self.favoured:,}"

    @property
    def contrast(self) -> float:
        """The kappa of the estimate."""
        probability = math.ldexp(self.weight, -COIN_BITS)
        rest = self.codewords - self.favoured
        return probability - (1.0 - probability) * self.favoured / rest

    @property
    def projection(self) -> float:
        """g, the mean inner product of a report with the update's direction."""
        return self.contrast * _mean_of_largest(self.order, self.favoured) / math.sqrt(self.order)

    @property
    def efficiency(self) -> float:
        """Number of weights whose noise one report outweighs."""
        square = self.projection**2
        return self.dimension * square / (self.dimension / self.order - square)

    @property
    def bias(self) -> float:
        """Square of a run's reports across the update, over that along it."""
        if self.blocks == 1:
            return 0.0
        return 1.0 / alignment(self.block_size, self.favoured / self.order) - 1.0

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine for an update spread over all blocks."""
        if self.efficiency <= 0.0:  # of an epsilon that is as good as 0
            return 0.0
        noise = self.dimension / (reports * self.efficiency)
        mean = _mean_of_largest(self.order, self.favoured)
        spread = self.dimension / (self.favoured * mean**2) - 1.0
        structure = (1.0 - 1.0 / reports) / self.rotations * max(spread, 0.0)
        return 1.0 / math.sqrt(1.0 + noise + structure + (1.0 - 1.0 / reports) * self.bias)

    @property
    def null_distribution(self) -> NullDistribution:
        """Law of a sum of uniform codewords: l = d/n, and q = d/n^2 whatever the codes are.

        Rows over sqrt(n), cut to d columns, are a matrix A with orthonormal columns, so the squares
        of A D A' sum to d. Rows of different blocks have the product 0.
        """
        last = self.dimension - (self.blocks - 1) * self.block_size
        squares = ((self.blocks - 1) * self.block_size**2 + last**2) / self.blocks
        mean = self.dimension / self.order
        return NullDistribution(
            mean,
            self.dimension / self.order**2,
            square_spread=max(squares / self.block_order**2 - mean**2, 0.0),
        )


@lru_cache(maxsize=64)
def _plan(mechanism: Codeword, dimension: int) -> CodewordPlan:
    blocks = mechanism.blocks
    check_in("[2, inf)", "dimension", dimension)
    check_in(f"[1, {dimension}]", "blocks", blocks)
    size = -(-dimension // blocks)
    taken = -(-dimension // size)
    if taken < blocks:
        raise ValueError(f"blocks of {size} entries are {taken} for {dimension}, got {blocks}")
    order = blocks * hadamard.order_for(size)
    if order > hadamard.MAX_ORDER:
        most = f"{hadamard.MAX_ORDER} rows"
        raise ValueError(f"blocks take more than {most}: {blocks} for {dimension}")
    check_in(f"[0, {order}]", "favoured", mechanism.favoured)
    chosen = mechanism.favoured or _best_size(mechanism.epsilon, order)
    weight = _weight(mechanism.epsilon, chosen, 2 * order)
    return CodewordPlan(dimension, order, chosen, mechanism.rotations, weight, blocks)


def _weight(epsilon: float, size: int, codewords: int) -> int:
    power = size * exp_lower(epsilon)
    return (power << COIN_BITS) // (power + ((codewords - size) << EXP_BITS))


def sizes_tried(order: int) -> list[int]:
    """Return the sizes of the favoured set among which one is chosen, from 1 up."""
    sizes, size = [], 1
    while size <= order:
        sizes.append(size)
        size = max(size + 1, math.floor(size * _RATIO))
    return sizes


@lru_cache(maxsize=64)
def _best_size(epsilon: float, order: int) -> int:
    def worth(size: int) -> float:
        weight = _weight(epsilon, size, 2 * order)
        return CodewordPlan(order, order, size, 1, weight).projection

    return max(sizes_tried(order), key=worth)


@lru_cache(maxsize=4096)
def _mean_of_largest(order: int, size: int) -> float:
    """Return m(K): the i-th largest is at the quantile 1 - (i - 3/8) / (n + 1/4) (Blom 1958)."""
    normal = NormalDist()
    exact = min(size, _ONE_BY_ONE)
    top = sum(normal.inv_cdf(1.0 - (i - 0.375) / (order + 0.25) / 2.0) for i in range(1, exact + 1))
    if exact == size:
        return top / size
    # Tail integrals: the mean of magnitudes above x, times their share, is 2 phi(x).
    upper = normal.inv_cdf(1.0 - exact / order / 2.0)
    lower = normal.inv_cdf(1.0 - size / order / 2.0) if size < order else 0.0
    rest = 2.0 * (normal.pdf(lower) - normal.pdf(upper)) * order
    return (top + rest) / size


_QUANTILES = 256
_ANGLES = 4096
_HALVINGS = 60
# Longer blocks have normal inner products, and lengths that differ little.
_NORMAL = 512


@lru_cache(maxsize=256)
def alignment(size: int, share: float) -> float:
    """Return a, for blocks of ``size`` entries and K over n."""
    lengths, spread = _lengths(size), math.sqrt(min(size, _NORMAL))
    low, high = 0.0, 64.0
    for _ in range(_HALVINGS):
        threshold = (low + high) / 2
        above = _nearer(min(size, _NORMAL), threshold / (spread * lengths)).mean()
        low, high = (threshold, high) if above > share else (low, threshold)
    cosines = np.minimum(low / (spread * lengths), 1.0)
    if size == 1:
        part = (cosines < 1.0).astype(np.float64)
    else:
        part = (1.0 - cosines**2) ** ((min(size, _NORMAL) - 1) / 2)
    square = float((part * part).mean())
    return float((lengths * part).mean()) ** 2 / square if square > 0 else 1.0


def _lengths(size: int) -> Floats:
    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    normal = NormalDist()
    if size == 1:
        found = np.array([normal.inv_cdf(0.5 + place / 2) for place in places])
    elif size == 2:  # an exponential law
        found = np.sqrt(-np.log1p(-places))
    else:  # Wilson and Hilferty's cube root of a chi-square
        scores = np.array([normal.inv_cdf(place) for place in places])
        cube = 1.0 - 2.0 / (9.0 * size) + scores * math.sqrt(2.0 / (9.0 * size))
        found = np.sqrt(np.maximum(cube, 0.0) ** 3)
    return np.maximum(found / math.sqrt(float((found * found).mean())), 1e-9)


def _nearer(size: int, cosines: Floats) -> Floats:
    if size == 1:
        return (cosines < 1.0).astype(np.float64)
    angles = (np.arange(_ANGLES) + 0.5) / _ANGLES * (math.pi / 2)
    density = np.sin(angles) ** (size - 2)
    below = np.cumsum(density) / density.sum()
    return np.asarray(np.interp(np.arccos(np.clip(cosines, 0.0, 1.0)), angles, below, left=0.0))


@dataclass(frozen=True)
class CodewordReport:
    """A codeword: code r in [0, G), row in [0, n) over all blocks, and sign 1 or -1."""

    order: int
    rotation: int
    row: int
    sign: int


def check_report(report: CodewordReport, plan: CodewordPlan) -> None:
    """Raise ValueError unless a report names a codeword."""
    right = 0 <= report.rotation < plan.rotations and 0 <= report.row < plan.order
    if not (right and report.sign in (-1, 1) and report.order == plan.order):
        raise ValueError(f"report must name one of {plan.rotations * plan.codewords} codewords")


#: Exclusive end of seeds: records of Flower hold signed integers.
MOST_SEED = 2**63


@dataclass(frozen=True)
class Codeword(UpdateMechanism):
    """One codeword of a public code near the update's direction.

    Parameters
    ----------
    epsilon : float
        Per release, per client (pure LDP); in [1e-12, 100].
    favoured : int
        K, in [1, n]; 0 chooses the best.
    rotations : int
        G; in [1, 4096].
    seed : int
        Public; in [0, 2^63). Give each round another one.
    blocks : int
        B; in [1, 65536].

    Examples
    --------
    >>> plan = Codeword(epsilon=8.0).plan(2_010)
    >>> plan.order, plan.favoured, plan.bits, round(plan.efficiency, 1)
    (2048, 13, 18, 7.5)
    """

    name = "codeword"
    left_out = frozenset({"blocks"})
    stated = "favoured"

    # Below about 2^-254 what is rounded in a weight of 256 bits could be more than epsilon. The
    # least epsilon is a ledger's own unit.
    epsilon: Annotated[float, Bounded("[1e-12, 100]")]
    favoured: Annotated[int, Bounded("[0, 2^24]")] = 0
    rotations: Annotated[int, Bounded("[1, 4096]")] = 64
    seed: Annotated[int, Bounded("[0, 2^63)")] = 0
    blocks: Annotated[int, Bounded("[1, 65536]")] = 1

    def plan(self, dimension: int, *, quiet: bool = False) -> CodewordPlan:
        """Return the sizes for ``dimension`` entries, in [2, 2^24]; ``quiet`` has no effect.

        Raises
        ------
        ValueError
            If ``dimension`` is outside its interval, K is above n, or blocks exceed the entries,
            leave some empty, or take more than 2^24 rows.
        """
        return _plan(self, dimension)

    def sized(self, dimension: int) -> Codeword:
        """Return the mechanism for a proposal, with K written out.

        Two machines may choose different K from doubles.
        """
        return replace(self, favoured=self.plan(dimension).favoured)

    def randomize(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> CodewordReport:
        """Return a private report of an update, an ndarray of floats of shape (d,).

        Raises
        ------
        ValueError
            If :meth:`plan` refuses ``dimension``.
        """
        update, dimension = read_vector(value, dimension)
        plan = self.plan(dimension)
        direction, largest = over_largest(update, dimension)
        if math.isnan(largest):
            note(self.name, f"the update is no {dimension} finite numbers")
        rotation = rng.below(plan.rotations)
        products = self._products(direction, plan, rotation)
        favoured = hadamard.favoured_of(products, plan.favoured, rng.below(plan.codewords))
        is_favoured = rng.bits(COIN_BITS) < plan.weight
        position = hadamard.draw(favoured, plan.codewords, rng, inside=is_favoured)
        return CodewordReport(plan.order, rotation, position >> 1, 1 - 2 * (position & 1))

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report."""
        return self.plan(dimension).report_bytes

    def encode(self, report: CodewordReport, dimension: int) -> bytes:
        """Return the bytes of a report."""
        plan = self.plan(dimension)
        check_report(report, plan)
        number = report.rotation * plan.codewords + 2 * report.row + (report.sign < 0)
        return bytes((REPORT_VERSION,)) + number.to_bytes(plan.report_bytes - 1, "big")

    def decode(self, data: bytes, dimension: int) -> CodewordReport:
        """Decode a report; WireError ``"version"``, ``"length"`` or ``"range"``."""
        plan = self.plan(dimension)
        self.check_length(data, dimension)
        number = int.from_bytes(data[1:], "big")
        if number >= plan.rotations * plan.codewords:
            raise WireError("range", f"{number} names none of the codewords")
        rotation, position = divmod(number, plan.codewords)
        return CodewordReport(plan.order, rotation, position >> 1, -1 if position & 1 else 1)

    def log_prob(
        self, report: CodewordReport, value: object, dimension: int | None = None
    ) -> float:
        """Return log P(report | value) by a full sort."""
        update, dimension = read_vector(value, dimension)
        plan = self.plan(dimension)
        check_report(report, plan)
        products = self._products(over_largest(update, dimension)[0], plan, report.rotation)
        position = 2 * report.row + (report.sign < 0)
        share = hadamard.share_of_offsets(products, plan.favoured, position)
        rest = plan.codewords - plan.favoured
        # In units of 2^-256 / (K (M - K) M G): exact integers up to the logarithm.
        weight = share * plan.weight * rest
        weight += (plan.codewords - share) * ((1 << COIN_BITS) - plan.weight) * plan.favoured
        below = (plan.favoured * rest * plan.codewords * plan.rotations) << COIN_BITS
        return math.log(weight / below)  # of integers: rounded once

    def total(self, reports: Iterable[CodewordReport], dimension: int) -> Floats:
        """Return the sum of the named unit vectors, float64 of shape (d,)."""
        plan = self.plan(dimension)
        named: dict[int, list[CodewordReport]] = {}
        for report in reports:
            check_report(report, plan)
            named.setdefault(report.rotation, []).append(report)
        found = np.zeros(dimension)
        for rotation in sorted(named):
            counts = np.zeros(plan.order)
            for report in named[rotation]:
                counts[report.row] += report.sign
            # The matrix is symmetric: a sum of its rows is a transform of their numbers.
            rows = hadamard.transform(counts.reshape(plan.blocks, -1))
            rows *= hadamard.signs(self.seed, rotation, plan.order).reshape(plan.blocks, -1)
            found += rows[:, : plan.block_size].ravel()[:dimension]
        return found / math.sqrt(plan.block_order)

    def estimate(self, reports: Iterable[CodewordReport], dimension: int) -> Floats:
        """Return an estimate of the clients' mean direction ``u / |u|``, float64 of shape (d,).

        Unbiased for one block and directions that are independent of the codes.

        Raises
        ------
        ValueError
            If there is no report, or one is none of this mechanism.
        """
        reports = list(reports)
        if not reports:
            raise ValueError("reports must hold at least one report")
        return self.total(reports, dimension) / (len(reports) * self.plan(dimension).projection)

    @np.errstate(all="ignore")
    def _products(self, direction: Floats, plan: CodewordPlan, rotation: int) -> Floats:
        """Return all inner products with a code, times a constant."""
        parts = np.zeros((plan.blocks, plan.block_size))
        parts.reshape(-1)[: plan.dimension] = direction
        filled = np.pad(parts, ((0, 0), (0, plan.block_order - plan.block_size)))
        flips = hadamard.signs(self.seed, rotation, plan.order).reshape(plan.blocks, -1)
        return hadamard.transform(filled * flips).ravel()

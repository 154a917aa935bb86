r"""What a configuration of the codeword mechanism comes to: n, K, and what a report is worth.

Everything here depends on d, epsilon, K and G: public configuration.

**Worth.** Let the codewords be cut to the update's d of n entries, so that they are
:math:`\sqrt{d/n}` long. A report of a random update u has the mean :math:`g\,u/|u|` with
:math:`g = \kappa\,m(K)/\sqrt n`: :math:`\kappa = P(S) - (1 - P(S)) K/(M-K)`, and m(K) the mean of
the K largest of n normal magnitudes. Around its mean it spreads by :math:`d/n - g^2` in square
length. So the sum of N reports of one update has with it a cosine of about

.. math:: \frac{1}{\cos^2} - 1 = \frac{d/n - g^2}{N g^2}
    + \frac{1 - 1/N}{G} \Big(\frac{d}{K\,m(K)^2} - 1\Big).

The first term is noise, and one over x / d for x = N times the *efficiency*. The second is what G
codes leave: the mean report of one code is the mean of its K favoured codewords, which only leans
to u. It is exact for d = n; where d is little above n/2, rows come in pairs that differ in few of
the d entries, and it is up to about twice as large. Each round has codes of its own, so over rounds
it falls as noise does.

With B blocks a codeword lies in one of them, and the first term holds for n rows in all: a random
update has the same inner products with any unit vectors. The mean report leans to the blocks in
which the update is longest, whatever the codes are (:mod:`flower_ldp.mechanisms.codeword_plan`):
a term more, for updates that are spread over all blocks. An update that lies in few of them has
larger inner products, and its reports are worth up to B times as much.

How far the mean report of a code with blocks lies along the update: what blocks cost.

The K favoured codewords come mostly from the blocks in which the update is longest, whatever the
codes are. So the mean report has, of a block of length :math:`r` times its fair share, not r but
the expected part :math:`h(r)` of its direction, and over all blocks the square cosine

.. math:: a = \frac{E[r\,h(r)]^2}{E[r^2]\,E[h(r)^2]}, \qquad
    h(r) \propto (1 - c^2)^{(s-1)/2}, \quad c = \tau / (r \sqrt s),

for blocks of s entries, :math:`r^2` chi-square with s degrees over s, as an update has that is
spread over all blocks: a direction of s entries has with a row an inner product of at least c
times its length by the Beta law, and :math:`\tau` is where K of n rows are that near. It averages
out over neither codes nor rounds. An update that lies in few blocks loses less, and gains more.

The name of a codeword, which is all that a client sends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from flower_ldp.mechanisms.sampling.exact import COIN_BITS, EXP_BITS, exp_lower
from flower_ldp.mechanisms.sampling.nearest import MAX_ORDER, order_for
from flower_ldp.mechanisms.worth import PureNoise

# Sizes of the favoured set that are tried, in ratios of about one sixth.
_RATIO = 1.16
# So many of the largest are summed by their quantiles, the others by an integral.
_ONE_BY_ONE = 1024


@dataclass(frozen=True)
class CodewordPlan:
    """What a configuration comes to for one dimension; all of it public.

    Parameters
    ----------
    dimension : int
        d, entries of the update.
    order : int
        n, rows of a code: so many blocks, each of the least power of two from its entries on.
    favoured : int
        K.
    rotations : int
        G.
    weight : int
        P(the report is favoured) in units of 2^-256, rounded down.
    blocks : int
        B, equal parts of the update, each with rows of its own.
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
        """Rows of one block: a power of two."""
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
        """Number of bytes of every report: a version, and the number of a codeword."""
        return 1 + -(-self.bits // 8)

    @property
    def contrast(self) -> float:
        """Kappa: P(a favoured codeword's set) less what it takes for the others to balance."""
        probability = math.ldexp(self.weight, -COIN_BITS)
        rest = self.codewords - self.favoured
        return probability - (1.0 - probability) * self.favoured / rest

    @property
    def projection(self) -> float:
        """g, the expected inner product of a report with the direction of a random update."""
        return self.contrast * self._mean_of_favoured / math.sqrt(self.order)

    @property
    def efficiency(self) -> float:
        """How many weights' worth a report is: N of them are worth N times this, over d.

        The sum of N reports of clients that agree has about the cosine sqrt(x / (1 + x)) with
        their direction, x being that.
        """
        square = self.projection**2
        return self.dimension * square / (self.dimension / self.order - square)

    @property
    def lean(self) -> float:
        """What the reports of a whole run lean away, in square length over what lies along.

        0 for one block: that averages out as each round has codes of its own.
        """
        if self.blocks == 1:
            return 0.0
        return 1.0 / alignment(self.block_size, self.favoured / self.order) - 1.0

    def cosine_of_sum(self, reports: int) -> float:
        """Return the expected cosine of a round's sum with the direction of its clients.

        If they agree, and their update is spread over all blocks. Where they do not agree, it is
        less by the share that they have in common.

        Parameters
        ----------
        reports : int
            N, at least 1.
        """
        if self.efficiency <= 0.0:  # of an epsilon that is as good as 0
            return 0.0
        noise = self.dimension / (reports * self.efficiency)
        lean = self.dimension / (self.favoured * self._mean_of_favoured**2) - 1.0
        structure = (1.0 - 1.0 / reports) / self.rotations * max(lean, 0.0)
        return 1.0 / math.sqrt(1.0 + noise + structure + (1.0 - 1.0 / reports) * self.lean)

    @property
    def pure_noise(self) -> PureNoise:
        """The law of a sum of uniform codewords: l = d/n, and q = d/n^2 whatever the codes are.

        Rows of Hadamard's matrix over sqrt(n), cut to d columns, are a matrix A with orthonormal
        columns, so the squares of all products of two codes' rows, those of A D A', sum to d. With
        blocks the same holds in each, and rows of different blocks have the product 0.
        """
        last = self.dimension - (self.blocks - 1) * self.block_size
        squares = ((self.blocks - 1) * self.block_size**2 + last**2) / self.blocks
        mean = self.dimension / self.order
        return PureNoise(
            mean,
            self.dimension / self.order**2,
            square_spread=max(squares / self.block_order**2 - mean**2, 0.0),
        )

    @property
    def _mean_of_favoured(self) -> float:
        return _mean_of_largest(self.order, self.favoured)


@lru_cache(maxsize=64)
def plan_for(
    epsilon: float, favoured: int, rotations: int, dimension: int, blocks: int = 1
) -> CodewordPlan:
    """Return n, K and the law; K is chosen if ``favoured`` is 0.

    Raises
    ------
    ValueError
        If ``dimension`` is outside [2, 2^24], ``favoured`` is above n, or blocks are more than
        the entries, leave some of them empty, or take more than 2^24 rows.
    """
    if dimension < 2:
        raise ValueError(f"dimension must be at least 2, got {dimension}")
    if not 1 <= blocks <= dimension:
        raise ValueError(f"blocks must be in [1, {dimension}] for {dimension} entries")
    size = -(-dimension // blocks)
    taken = -(-dimension // size)
    if taken < blocks:
        raise ValueError(f"blocks of {size} entries are {taken} for {dimension}, got {blocks}")
    order = blocks * order_for(size)
    if order > MAX_ORDER:
        raise ValueError(f"blocks take more than {MAX_ORDER} rows: {blocks} for {dimension}")
    if favoured > order:
        raise ValueError(f"favoured must be in [0, {order}] for {dimension} entries")
    chosen = favoured or _best_size(epsilon, order)
    weight = _weight(epsilon, chosen, 2 * order)
    return CodewordPlan(dimension, order, chosen, rotations, weight, blocks)


def _weight(epsilon: float, size: int, codewords: int) -> int:
    """Return K e^epsilon / (K e^epsilon + M - K) in units of 2^-256, rounded down."""
    power = size * exp_lower(epsilon)
    return (power << COIN_BITS) // (power + ((codewords - size) << EXP_BITS))


@lru_cache(maxsize=64)
def _best_size(epsilon: float, order: int) -> int:
    """Return the K of the largest expected inner product."""
    sizes, size = [], 1
    while size <= order:
        sizes.append(size)
        size = max(size + 1, math.floor(size * _RATIO))

    def worth(size: int) -> float:
        plan = CodewordPlan(order, order, size, 1, _weight(epsilon, size, 2 * order))
        return plan.projection

    return max(sizes, key=worth)


@lru_cache(maxsize=4096)
def _mean_of_largest(order: int, size: int) -> float:
    """Return the mean of the K largest of n normal magnitudes, by their median quantiles.

    The i-th largest stands at the quantile 1 - (i - 3/8) / (n + 1/4) (Blom 1958); many of them
    stand where an integral of the tail puts their mean.
    """
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
    """Return the square cosine of a mean report with an update that is spread over all blocks.

    Parameters
    ----------
    size : int
        Entries of a block, at least 1.
    share : float
        K over n, in (0, 1].
    """
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


def _lengths(size: int) -> NDArray[np.float64]:
    """Return quantiles of a block's length over the root mean square of all."""
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


def _nearer(size: int, cosines: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how many of random rows have at least these cosines with a direction, or minus it."""
    if size == 1:
        return (cosines < 1.0).astype(np.float64)
    angles = (np.arange(_ANGLES) + 0.5) / _ANGLES * (math.pi / 2)
    density = np.sin(angles) ** (size - 2)
    below = np.cumsum(density) / density.sum()
    found: NDArray[np.float64] = np.interp(
        np.arccos(np.clip(cosines, 0.0, 1.0)), angles, below, left=0.0
    )
    return found


@dataclass(frozen=True)
class NamedCodeword:
    """A report: which code, which row of it, and its sign.

    Parameters
    ----------
    order : int
        n, the code's rows, of all blocks; public.
    rotation : int
        r, in [0, G).
    row : int
        In [0, n), the blocks' rows one after another.
    sign : int
        1 or -1.
    """

    order: int
    rotation: int
    row: int
    sign: int


def check_report(report: NamedCodeword, plan: CodewordPlan) -> None:
    """Raise ValueError unless a report names a codeword of the plan's codes."""
    right = 0 <= report.rotation < plan.rotations and 0 <= report.row < plan.order
    if not (right and report.sign in (-1, 1) and report.order == plan.order):
        raise ValueError(
            f"report must name one of {plan.rotations} codes, one of {plan.order} rows and a sign"
        )

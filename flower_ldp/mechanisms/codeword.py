r"""Codewords: one public unit vector near the client's direction, in two or three bytes.

A public code has M = 2n unit vectors: the rows of Hadamard's matrix of order n behind public
random signs (:mod:`flower_ldp.mechanisms.sampling.nearest`), over their length, each with both
signs. An update u of d <= n entries, filled up with zeros, has an inner product with each; one
fast transform finds all. **Exactly K** codewords are favoured: the K of the largest inner
product. There are G such codes of one seed. The report is the number r of a code, drawn
uniformly and independent of u, and a codeword c of it, drawn with

.. math:: P(c \mid u, r) \propto e^{\epsilon\,[c \in S_r(u)]}.

**Neighbours**: any two updates (replace-one at the level of a client's whole data). **Theorem**:
one report is epsilon-LDP, and tight, whatever the codes are and whoever chose the seed. *Proof*: r
carries no information. For given r, S has exactly K of M codewords for every u, so the normalizer
K e^epsilon + M - K is the same for all, and two probabilities of one c differ by a factor of at
most e^epsilon. How inner products are rounded does not matter: they only order the codewords.

**Blocks.** With B blocks the update is cut into B parts of equal length, and each part has a
matrix of its own: a codeword lies in one block, and all 2n of all blocks compete for the K places.
It is a code as any other, and the proof is the same. An update that lies in few blocks, as that of
a last layer for few examples lies in the rows of their classes, has nearer codewords so.

**Ties** are broken by position, counted from an offset t that is drawn uniformly for each report
and is not reported: for each t the proof holds, hence for their mixture. So no codeword is
preferred: an update of zeros is answered by a uniform codeword.

**Invalid input.** What is no d finite numbers is answered as an update of zeros.

**Estimate.** For an update in a random direction the mean report is that direction times a
public number (:mod:`flower_ldp.mechanisms.codeword_plan`). Of one code it is not quite u's
direction, but leans to its largest inner products; over many codes that averages out.

**What the clock tells.** Whichever side of the law is drawn, as many random numbers are taken and
the same work is done: how long it took must not say whether the report is a favoured one.

**Bytes.** A report is the version, 1, and one number in big-endian order: twice the row, plus 1 for
the opposite sign, plus 2n for each code before its own. It takes as many bytes as the largest such
number: 1 + 3 bytes for 64 codes of 2,048 rows. Every number below the largest is a report.

Sources: Isik, Chen, Ozgur, Weissman, No, "Exact optimality of communication-privacy-utility
tradeoffs in distributed mean estimation", NeurIPS 2023 (k-closest encoding on a rotated code);
Feldman, Talwar, "Lossless compression of efficient private local randomizers", ICML 2021.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.bounds import Bounded, check_fields
from flower_ldp.errors import WireError
from flower_ldp.mechanisms.base import REPORT_VERSION, UpdateMechanism
from flower_ldp.mechanisms.codeword_plan import CodewordPlan, NamedCodeword, check_report, plan_for
from flower_ldp.mechanisms.inputs import note, read_vector
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import COIN_BITS
from flower_ldp.mechanisms.sampling.nearest import (
    draw,
    favoured_of,
    share_of_offsets,
    signs,
    transform,
)
from flower_ldp.privacy import PrivacyEvent, Unit

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
        K, in [1, n]; 0 to choose it by what a report is then worth.
    rotations : int
        G, how many codes reports are spread over; in [1, 4096].
    seed : int
        Of the codes' signs, public; in [0, 2^63). Another round is best given another seed.
    blocks : int
        B, parts of the update with rows of their own; in [1, 65536].

    Raises
    ------
    ValueError
        If a parameter is outside its interval.

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

    def __post_init__(self) -> None:
        check_fields(self)

    def plan(self, dimension: int) -> CodewordPlan:
        """Return n, K and the law for an update of ``dimension`` entries.

        Parameters
        ----------
        dimension : int
            d, in [2, 2^24].

        Raises
        ------
        ValueError
            If ``dimension`` is outside its interval, K is above n, or there are more blocks than
            entries.
        """
        return plan_for(self.epsilon, self.favoured, self.rotations, dimension, self.blocks)

    def sized(self, dimension: int) -> Codeword:
        """Return the same mechanism for updates of ``dimension`` entries, with K written out.

        What a server proposes: two machines need not find the same K from doubles.
        """
        return replace(self, favoured=self.plan(dimension).favoured)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one report: epsilon per client, pure."""
        return (PrivacyEvent("codeword", self.epsilon, unit=Unit.CLIENT),)

    def randomize(
        self, value: object, rng: RandomSource, dimension: int | None = None
    ) -> NamedCodeword:
        """Return a private report of an update.

        Parameters
        ----------
        value : ndarray of floats, shape (d,)
            The update; read, never changed. Answered by a uniform codeword if it is not
            finite or no such vector.
        rng : RandomSource
            Source of the code, the offset and the codeword.
        dimension : int, optional
            d, public. By default as many entries as there are.

        Raises
        ------
        ValueError
            If ``dimension`` is one that :meth:`plan` does not take.
        """
        update, dimension = read_vector(value, dimension)
        plan = self.plan(dimension)
        direction = _direction(update, plan)
        if direction is None:
            note("codeword", f"the update is no {dimension} finite numbers")
        rotation = rng.below(plan.rotations)
        products = self._products(direction, plan, rotation)
        favoured = favoured_of(products, plan.favoured, rng.below(plan.codewords))
        is_favoured = rng.bits(COIN_BITS) < plan.weight
        position = draw(favoured, plan.codewords, rng, inside=is_favoured)
        return NamedCodeword(plan.order, rotation, position >> 1, 1 - 2 * (position & 1))

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report of an update of ``dimension`` entries."""
        return self.plan(dimension).report_bytes

    def encode(self, report: NamedCodeword, dimension: int) -> bytes:
        """Return the bytes of a report."""
        plan = self.plan(dimension)
        check_report(report, plan)
        number = report.rotation * plan.codewords + 2 * report.row + (report.sign < 0)
        return bytes((REPORT_VERSION,)) + number.to_bytes(plan.report_bytes - 1, "big")

    def decode(self, data: bytes, dimension: int) -> NamedCodeword:
        """Decode a report, strictly.

        Raises
        ------
        WireError
            ``"version"``, ``"length"``, or ``"range"`` for a number that names no codeword.
        """
        plan = self.plan(dimension)
        self.check_length(data, dimension)
        number = int.from_bytes(data[1:], "big")
        if number >= plan.rotations * plan.codewords:
            raise WireError("range", f"{number} names none of the codewords")
        rotation, position = divmod(number, plan.codewords)
        return NamedCodeword(plan.order, rotation, position >> 1, -1 if position & 1 else 1)

    def log_prob(self, report: NamedCodeword, value: object, dimension: int | None = None) -> float:
        """Return log P(report | value) by a full sort, roundings of the weights included.

        Raises
        ------
        ValueError
            If ``report`` is none of this mechanism.
        """
        update, dimension = read_vector(value, dimension)
        plan = self.plan(dimension)
        check_report(report, plan)
        products = self._products(_direction(update, plan), plan, report.rotation)
        share = share_of_offsets(products, plan.favoured, 2 * report.row + (report.sign < 0))
        rest = plan.codewords - plan.favoured
        # In units of 2^-256 / (K (M - K) M G): exact integers up to the logarithm.
        weight = share * plan.weight * rest
        weight += (plan.codewords - share) * ((1 << COIN_BITS) - plan.weight) * plan.favoured
        below = (plan.favoured * rest * plan.codewords * plan.rotations) << COIN_BITS
        return math.log(weight / below)  # of integers: rounded once

    def total(self, reports: Iterable[NamedCodeword], dimension: int) -> NDArray[np.float64]:
        """Return the sum of the named unit vectors, shape (d,): a transform for each code.

        Parameters
        ----------
        reports : iterable of NamedCodeword
            One per client.
        dimension : int
            d.
        """
        plan = self.plan(dimension)
        named: dict[int, list[NamedCodeword]] = {}
        for report in reports:
            check_report(report, plan)
            named.setdefault(report.rotation, []).append(report)
        found = np.zeros(dimension)
        for rotation in sorted(named):
            counts = np.zeros(plan.order)
            for report in named[rotation]:
                counts[report.row] += report.sign
            # The matrix is symmetric: a sum of its rows is a transform of their numbers.
            rows = transform(counts.reshape(plan.blocks, -1)).ravel()
            found += _cut(rows * signs(self.seed, rotation, plan.order), plan)
        return found / math.sqrt(plan.block_order)

    def estimate(self, reports: Iterable[NamedCodeword], dimension: int) -> NDArray[np.float64]:
        """Return an estimate of the mean direction ``u / |u|`` of the clients.

        Of one block, unbiased for directions in no relation to the codes. Of several it leans to
        those in which updates are longest (:mod:`flower_ldp.mechanisms.codeword_plan`).

        Parameters
        ----------
        reports : iterable of NamedCodeword
            One per client.
        dimension : int
            d.

        Returns
        -------
        ndarray of float64, shape (d,)

        Raises
        ------
        ValueError
            If there is no report, or one is none of this mechanism.
        """
        reports = list(reports)
        if not reports:
            raise ValueError("reports must hold at least one report")
        return self.total(reports, dimension) / (len(reports) * self.plan(dimension).projection)

    def _products(
        self, direction: NDArray[np.float64] | None, plan: CodewordPlan, rotation: int
    ) -> NDArray[np.float64]:
        """Return inner products with the rows, in some unit; zeros for what is no direction."""
        with np.errstate(all="ignore"):
            filled = np.zeros(plan.order) if direction is None else _filled(direction, plan)
            filled *= signs(self.seed, rotation, plan.order)
            return transform(filled.reshape(plan.blocks, -1)).ravel()


def _filled(direction: NDArray[np.float64], plan: CodewordPlan) -> NDArray[np.float64]:
    """Return the update's blocks one after another, each filled up with zeros to its rows."""
    whole = np.zeros(plan.blocks * plan.block_size)
    whole[: plan.dimension] = direction
    filled = np.zeros((plan.blocks, plan.block_order))
    filled[:, : plan.block_size] = whole.reshape(plan.blocks, -1)
    return filled.ravel()


def _cut(rows: NDArray[np.float64], plan: CodewordPlan) -> NDArray[np.float64]:
    """Return the entries of the update again, without what filled its blocks up."""
    blocks = rows.reshape(plan.blocks, -1)[:, : plan.block_size]
    return blocks.ravel()[: plan.dimension]


def _direction(update: NDArray[Any] | None, plan: CodewordPlan) -> NDArray[np.float64] | None:
    """Return the update over its largest magnitude, or zeros; None if it is not finite.

    So that sums of any finite entries stay within doubles.
    """
    if update is None:
        return None
    with np.errstate(all="ignore"):
        largest = float(np.abs(update).max())
        if not math.isfinite(largest):
            return None
        return update.astype(np.float64) / largest if largest > 0 else np.zeros(plan.dimension)

"""One round of SignDS, with or without a magnitude bit, and the bytes of its reports.

The version, 1; flags (1: the sign is +1, 2: a magnitude bit follows, 4: that bit); the indices
(:mod:`~flower_ldp.mechanisms.subset_code`).
The length depends on public numbers alone. :class:`~flower_ldp.errors.WireError` names
``"version"``, ``"flags"`` (unknown, or a magnitude bit that is missing or not asked for) or a
reason of the subset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms import base
from flower_ldp.mechanisms import subset_code as subset
from flower_ldp.mechanisms.inputs import read_vector
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.random import Floats, Ints, RandomSource
from flower_ldp.mechanisms.signds import HEADER_BYTES, Selection, SignDS, sum_of_signs, top_by_sort
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import PrivacyEvent

_SELECTION = {"epsilon": float, "k": float, "threshold-ratio": float, "dim-out": int}
_MAGNITUDE = {"magnitude-epsilon": float, "magnitude-threshold": float}

_POSITIVE = 1
_HAS_BIT = 2
_BIT = 4

# What the sign adds to a score of an audit, or takes from it.
_SIGN = 1e-3

_Pair = tuple[NDArray[np.float32], NDArray[np.float32]]
#: A selection and, if it was asked for, the magnitude bit.
Report = tuple[Selection, int | None]
_Score = Callable[[Report], float]


@dataclass(frozen=True)
class SignDSRound(base.UpdateMechanism):
    """A selection of dimensions, with or without a magnitude bit.

    Parameters
    ----------
    selection : SignDS
        In a proposal with k written out (``sized``).
    magnitude_epsilon : float or None
        Per bit, per client; None for no bit.
    magnitude_threshold : float or None
        None together with the epsilon.

    Raises
    ------
    ValueError
        If one of the two is missing, or outside its interval.
    """

    name = "signds"

    selection: SignDS
    magnitude_epsilon: Annotated[float | None, Bounded("(0, 100]")] = None
    magnitude_threshold: Annotated[float | None, Bounded("(0, inf)")] = None

    def __post_init__(self) -> None:
        if (self.magnitude_epsilon is None) != (self.magnitude_threshold is None):
            raise ValueError("magnitude_epsilon and magnitude_threshold go together")
        super().__post_init__()

    @property
    def magnitude(self) -> MagRR | None:
        """The mechanism of the magnitude bit, or None."""
        return None if self.magnitude_epsilon is None else MagRR(self.magnitude_epsilon)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the selection's cost, plus the bit's if asked for."""
        magnitude = () if self.magnitude is None else self.magnitude.events()
        return (*self.selection.events(), *magnitude)

    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> Report:
        """Return a private report of an update, with the bit."""
        selection, top = self.selection.randomize_with_top(value, rng, dimension)
        if self.magnitude is None or self.magnitude_threshold is None:
            return selection, None
        below = None if top is None else top.mean() < self.magnitude_threshold
        return selection, self.magnitude.randomize(below, rng)

    def log_prob(self, report: Report, value: object, dimension: int | None = None) -> float:
        """Return log P(report | value), with the bit."""
        selection, bit = report
        law = self.selection.log_prob(selection, value, dimension)
        if self.magnitude is None or self.magnitude_threshold is None or bit is None:
            return law
        update, dimension = read_vector(value, dimension)
        below = None
        if update is not None and np.isfinite(update).all():
            size = self.selection.plan(dimension, quiet=True).top_size
            top = update[top_by_sort(update, size, selection.sign)].astype(np.float64)
            below = bool(selection.sign * top.mean() < self.magnitude_threshold)
        return law + self.magnitude.log_prob(bit, below)

    def audit_pairs(self, dimension: int) -> tuple[base.Contrast, ...]:
        """Return updates whose top sets are disjoint, or end among equal entries.

        *Disjoint top sets*: an update without equal entries and its negative, with a magnitude bit
        twice as long and the threshold between. *Exact zeros*: zeros but for fewer than K positive
        and fewer than K negative entries, against an update without equals that has these
        dimensions in its middle; the score counts those reported at the end opposite to the sign.
        *Zeros only*, against the update without equals. Scores include the sign.
        """
        check_in("[8, inf)", "dimension", dimension)  # room for two top sets and a few entries
        plan = self.selection.plan(dimension, quiet=True)
        slope = np.linspace(1.0, -1.0, dimension, dtype=np.float32)
        if self.magnitude_threshold is not None:
            mean = float(slope[: plan.top_size].mean(dtype=np.float64))
            slope *= np.float32(self.magnitude_threshold / (1.5 * mean))
            return (self._by_ratio("disjoint top sets, bits differ", (slope, -2 * slope)),)
        few = max(1, min(plan.dim_out, plan.top_size - 1))
        start = (dimension - 2 * few) // 2
        none, some = np.zeros_like(slope), np.zeros_like(slope)
        some[start : start + few], some[start + few : start + 2 * few] = -1.0, 1.0

        def at_far_end(report: Report) -> float:
            selection, _ = report
            return float((some[selection.indices] == -selection.sign).sum())

        return (
            self._by_ratio("disjoint top sets", (slope, -slope)),
            self._contrast("exact zeros", (some, slope), at_far_end, "reported at the far end"),
            self._by_ratio("zeros only", (none, slope)),
        )

    def _by_ratio(self, check: str, pair: _Pair) -> base.Contrast:
        plan = self.selection.plan(len(pair[0]), quiet=True)
        of_bit = self.magnitude_epsilon or 0.0
        places = np.arange(plan.dimension)
        sets = [
            {sign: np.isin(places, top_by_sort(update, plan.top_size, sign)) for sign in (-1, 1)}
            for update in pair
        ]

        def ratio(report: Report) -> float:
            selection, bit = report
            inside = [members[selection.sign][selection.indices].sum() for members in sets]
            first, second = (int(count >= plan.threshold) for count in inside)
            found = self.selection.epsilon * (first - second) + of_bit * (1 if bit else -1)
            return found / (self.selection.epsilon + of_bit)

        return self._contrast(check, pair, ratio, "log-ratio / epsilon")

    def _contrast(self, check: str, pair: _Pair, score: _Score, label: str) -> base.Contrast:
        """Return a contrast with the sign in its scores; another length scores far off."""
        dim_out = self.selection.plan(len(pair[0]), quiet=True).dim_out

        def scored(report: Report) -> float:
            selection, _ = report
            length = len(selection.indices)
            found = score(report) if length == dim_out else base.NO_REPORT + length
            return found + _SIGN * selection.sign

        def scores(reports: Sequence[Report]) -> Floats:
            return np.array([scored(report) for report in reports])

        return base.Contrast(check, pair, scores, f"{label}, sign / 1000 added")

    def total(self, reports: Iterable[Report], dimension: int) -> NDArray[np.int32]:
        """Return the sum of signs, shape (d,)."""
        return sum_of_signs((selection for selection, _ in reports), dimension)

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report.

        Raises
        ------
        ValueError
            If there are fewer entries than the selection reports, or too many.
        """
        return self.selection.plan(dimension, quiet=True).report_bytes

    def encode(self, report: Report, dimension: int) -> bytes:
        """Return the bytes of a report; see :func:`encode_report`."""
        selection, bit = report
        return encode_report(selection.indices, selection.sign, bit, dimension=dimension)

    def decode(self, data: bytes, dimension: int) -> Report:
        """Decode a report, strictly; see :func:`decode_report`."""
        h, has_bit = self.selection.plan(dimension, quiet=True).dim_out, self.magnitude is not None
        indices, sign, bit = decode_report(data, dimension=dimension, dim_out=h, has_bit=has_bit)
        return Selection(indices, sign), bit

    def parameters(self) -> dict[str, base.Parameter]:
        """Return the fields of a proposal; raise ValueError if k is open."""
        if self.selection.k is None:
            raise ValueError("a proposal states k: use selection.sized(dimension)")
        stated: list[tuple[object, str, type[Any]]]
        stated = [(self.selection, name, kind) for name, kind in _SELECTION.items()]
        if self.magnitude_epsilon is not None:
            stated += [(self, name, kind) for name, kind in _MAGNITUDE.items()]
        return {name: kind(getattr(of, name.replace("-", "_"))) for of, name, kind in stated}

    @classmethod
    def of_parameters(cls, given: Mapping[str, object]) -> SignDSRound:
        """Return the round that a proposal states."""
        if given.keys() not in (_SELECTION.keys(), (_SELECTION | _MAGNITUDE).keys()):
            raise WireError("fields", f"not a signds proposal: {quoted(sorted(given))}")
        values = [base.typed(given, name, kind) for name, kind in _SELECTION.items()]
        bit = [base.typed(given, name, kind) for name, kind in _MAGNITUDE.items() if name in given]
        return cls(SignDS(*values), *bit)


def encode_report(
    indices: Ints | NDArray[np.uint32], sign: int, bit: int | None, *, dimension: int
) -> bytes:
    """Encode strictly increasing indices in [0, dimension), a sign and a bit or None.

    Raises
    ------
    ValueError
        If an argument is outside its interval.
    """
    if sign not in (-1, 1):
        raise ValueError(f"sign must be -1 or 1, got {sign}")
    if bit not in (None, 0, 1):
        raise ValueError(f"bit must be None, 0 or 1, got {bit}")
    flags = _POSITIVE if sign == 1 else 0
    if bit is not None:
        flags |= _HAS_BIT | (_BIT if bit else 0)
    return bytes((base.REPORT_VERSION, flags)) + subset.encode(indices, dimension)


def decode_report(
    data: bytes, *, dimension: int, dim_out: int, has_bit: bool
) -> tuple[Ints, int, int | None]:
    """Decode one report, strictly, into int64 indices of shape (dim_out,), sign and bit.

    Raises
    ------
    WireError
        For one of the reasons above.
    ValueError
        If ``dimension`` or ``dim_out`` is outside its interval.
    """
    base.check_report_length(data, HEADER_BYTES + subset.encoded_length(dimension, dim_out))
    flags = data[1]
    required = _HAS_BIT if has_bit else 0
    allowed = _POSITIVE | (_HAS_BIT | _BIT if has_bit else 0)
    if flags & required != required or flags & ~allowed:
        raise WireError("flags", f"flags {flags:#04x} with has_bit = {has_bit}")
    indices = subset.decode(data[HEADER_BYTES:], dimension, dim_out)
    sign = 1 if flags & _POSITIVE else -1
    bit = int(bool(flags & _BIT)) if has_bit else None
    return indices, sign, bit

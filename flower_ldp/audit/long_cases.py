"""Cases of SignDS on long vectors, which small inputs never bring to its fast paths.

Long vectors have their top set found by a sample of their entries, at positions that are
public. The inputs here put masses of equal entries there. What tells reports apart is taken from
the definition of the top set, a stable sort, and shares nothing with the code that is audited.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.cases import Case, Contrast, claim
from flower_ldp.audit.selection_cases import selection_key
from flower_ldp.mechanisms import SignDS
from flower_ldp.mechanisms.signds import Selection

#: The shortest vector whose top set is not found on a copy.
LONG = (1 << 17) + 1
# Which entries are looked at first: one of each of so many equal ranges, shifted.
_PROBES = 1 << 13
_SHIFT = 40503

Update = NDArray[np.float32]


def probed_positions(dimension: int) -> NDArray[np.int64]:
    """Return where the search for the top set looks first; public, and so the server's to use."""
    ordinal = np.arange(_PROBES, dtype=np.int64)
    shift = ((ordinal * _SHIFT & 0xFFFF) * (dimension // _PROBES)) >> 16
    return ordinal * dimension // _PROBES + shift


def mass_at_probes(dimension: int, zeros: int) -> Update:
    """Return an update with that many zeros, first where probes look, and all else negative.

    The negative entries are -1, -2, ... in the order of their positions: without equals.
    """
    if not _PROBES <= zeros < dimension:
        raise ValueError(f"zeros must be in [{_PROBES}, {dimension}), got {zeros}")
    update = -np.arange(1, dimension + 1, dtype=np.float32)
    update[probed_positions(dimension)] = 0.0
    more = zeros - np.count_nonzero(update == 0.0)
    update[np.flatnonzero(update)[:more]] = 0.0
    return update


def ranks(update: Update, sign: int) -> NDArray[np.int64]:
    """Return each entry's place in the order of ``sign * update``, the first position among equals.

    The top set of K entries is, by definition, those with a place below K.
    """
    places = np.empty(len(update), dtype=np.int64)
    places[np.argsort(-sign * update, kind="stable")] = np.arange(len(update))
    return places


def signds_long(mechanism: SignDS, dimension: int = LONG) -> Case:
    """Return the case of SignDS on vectors with as many zeros as the top set has members, or so.

    Each is tried against its negative. The score of a report is the place, in the first vector's
    own order, of its v_th-th best dimension: below K for exactly the favoured reports of a
    sampler as claimed, and much lower, or higher, where the set is smaller or larger.
    """
    plan = mechanism.plan(dimension)
    masses = {
        "one zero fewer than the top set": plan.top_size - 1,
        "as many zeros": plan.top_size,
        "one zero more": plan.top_size + 1,
    }
    contrasts = tuple(
        _contrast(check, mass_at_probes(dimension, zeros), plan.threshold)
        for check, zeros in masses.items()
    )
    pair = contrasts[0].pair
    return Case(
        f"signds-long (epsilon {mechanism.epsilon:g}, d {dimension}, K {plan.top_size}, "
        f"h {plan.dim_out}, v_th {plan.threshold})",
        claim(mechanism.events())[0],
        mechanism.randomize,
        contrasts,
        (pair, pair[::-1]),
        draws=1_000,
        key=selection_key,
    )


def _contrast(check: str, update: Update, threshold: int) -> Contrast:
    places = {sign: ranks(update, sign) for sign in (-1, 1)}

    def place(reports: Sequence[Selection]) -> NDArray[np.int64]:
        found = np.stack([np.sort(places[report.sign][report.indices]) for report in reports])
        return np.asarray(found[:, max(threshold, 1) - 1])

    return Contrast(check, (update, -update), place, "place of the v_th-th best")

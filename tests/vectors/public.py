"""What both sides compute from public numbers: signs, a projection, and codes of refusals."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

from tests.vectors.drawing import hadamard, signs

#: When each leaves: before the message is charged, after that, or either.
REFUSALS = {
    "ldp:refused:app": "before",
    "ldp:refused:message": "before",
    "ldp:refused:proposal": "before",
    "ldp:refused:rehearsal": "before",
    "ldp:refused:policy": "before",
    "ldp:refused:budget": "before",
    "ldp:refused:repeat": "after",
    "ldp:refused:ledger": "either",
    "ldp:refused:records": "before",
    "ldp:refused:step": "before",
    "ldp:failed": "either",
}


def refusals() -> dict[str, Any]:
    rows = [{"reason": reason, "charge": charge} for reason, charge in REFUSALS.items()]
    about = "Reasons of Flower's Error; a colon, a space and a text may follow."
    return {"about": about, "code": 1000, "reasons": rows}


def projected(update: list[int], k: int, seed: int) -> list[float]:
    """Return S u for windows of 16 or 64 entries: the root of their number is whole."""
    d = len(update)
    n = 1 << (d.bit_length() - 1)
    root, windows = math.isqrt(n), -(-d // n)
    # In units of one over root^windows nothing is rounded.
    turned = [value * root**windows for value in update]
    for window in range(windows):
        start = min(window * n, d - n)
        flips = signs(seed, 2**31 + window, n)
        signed = [v * f for v, f in zip(turned[start : start + n], flips, strict=True)]
        turned[start : start + n] = [value // root for value in hadamard(signed)]
    stream = hashlib.shake_256(b"flower-ldp subspace" + struct.pack(">Q", seed)).digest(8 * 4 * d)
    named: list[int] = []
    for (word,) in struct.iter_unpack(">Q", stream):
        if word % d not in named and len(named) < min(k, d - k):
            named.append(word % d)
    rows = sorted(named) if k <= d - k else sorted(set(range(d)) - set(named))
    return [turned[row] / root**windows for row in rows]


def subspace() -> dict[str, Any]:
    cases = []
    for d, k, seed in ((16, 3, 0), (20, 5, 7), (20, 13, 7), (77, 64, 2**63 - 1)):
        update = [n * n % 17 - 8 for n in range(d)]
        cases.append(
            {
                "d": d,
                "subspace-dimension": k,
                "subspace-seed": str(seed),
                "update": [float(value) for value in update],
                "projected": projected(update, k, seed),
            }
        )
    return {"about": "S u of a public subspace. All sums are exact in doubles.", "cases": cases}


def rotations() -> dict[str, Any]:
    cases = []
    for seed, number, n in ((0, 0, 8), (5, 258, 16), (2**63 - 1, 4095, 2048)):
        bits = "".join("1" if sign < 0 else "0" for sign in signs(seed, number, n))
        data = int(bits, 2).to_bytes(len(bits) // 8, "big")
        cases.append({"seed": str(seed), "number": number, "n": n, "bits": data.hex()})
    return {"about": "Signs of a code, as bits: 1 is -1, the highest bit first.", "cases": cases}

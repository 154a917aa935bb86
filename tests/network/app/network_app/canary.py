"""Distinctive values of each client's, and the forms in which they could be sent."""

from __future__ import annotations

import struct


def text(part: int) -> str:
    """Return a text that is in no other client and nowhere else."""
    return f"canary-{part}-7f3a91c5"


def number(part: int) -> float:
    """Return a float32 that is in no other client."""
    return float(struct.unpack("<f", struct.pack("<f", 1234.5678 + 107.7713 * (part + 1)))[0])


def count(part: int) -> int:
    """Return a number of examples that is in no other client."""
    return 71_993_555_123_377 + part * 1_000_003


def forms(part: int) -> dict[str, bytes]:
    """Return the bytes to search for: each of them alone shows that something got out."""
    return {
        "text": text(part).encode(),
        "float32": struct.pack("<f", number(part)) * 2,
        "float64": struct.pack("<d", number(part)),
        "float as text": f"{number(part):.4f}".encode()[:8],
        "count as text": str(count(part)).encode(),
        "count as varint": _varint(count(part)),
        "count as zigzag varint": _varint(2 * count(part)),
    }


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))

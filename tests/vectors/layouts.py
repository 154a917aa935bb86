"""Reports' bytes by the text of docs/wire.md alone: nothing of the package is imported here.

What is written here twice, once in the package and once more, is meant to be: vectors that the
package's own encoders had made would agree with them whatever they did.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction

BLOCK = 320


def packed(bits: Sequence[int]) -> bytes:
    """Return bits, the first one lowest in the first byte, with zeros up to a whole byte."""
    found = bytearray(-(-len(bits) // 8))
    for n, bit in enumerate(bits):
        found[n // 8] |= bit << (n % 8)
    return bytes(found)


def lowest_first(number: int, width: int) -> list[int]:
    return [number >> n & 1 for n in range(width)]


def subset_form(d: int, h: int) -> tuple[bool, int]:
    """Return whether the bitmap is ranked, and l."""
    most = 21 * (math.comb(d, h).bit_length() - 1) // 20 + 89
    low = int(math.log2((d - h) // h)) if d - h >= h else 0
    if h * low + h + (d - h >> low) <= most:
        return False, low
    return next((True, n) for n in range(low, -1, -1) if h * n + rank_bits(d, h, n) <= most)


def rank_bits(d: int, h: int, low: int) -> int:
    n = h + (d - h >> low)
    counts = (min(BLOCK, h, n - h) + 1) ** (-(-n // BLOCK) - 1)
    return (math.comb(n, h) * counts - 1).bit_length()


def rank(ones: Sequence[int], n: int) -> int:
    """Return the integer of a bitmap: digits of its blocks, the least significant first."""
    value, base, left = 0, 1, len(ones)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        here = [one - start for one in ones if start <= one < stop]
        least, most = max(0, left - (n - stop)), min(stop - start, left)
        value += base * (len(here) - least)
        base *= most - least + 1
        value += base * sum(math.comb(p, i) for i, p in enumerate(here, 1))
        base *= math.comb(stop - start, len(here))
        left -= len(here)
    return value


def subset(indices: Sequence[int], d: int) -> bytes:
    h = len(indices)
    ranked, low = subset_form(d, h)
    steps = [index - i for i, index in enumerate(indices)]
    bits = [bit for step in steps for bit in lowest_first(step, low)]
    ones = [(step >> low) + i for i, step in enumerate(steps)]
    n = h + (d - h >> low)
    if ranked:
        return packed(bits + lowest_first(rank(ones, n), rank_bits(d, h, low)))
    return packed(bits + [int(n in ones) for n in range(n)])


def signds(indices: Sequence[int], d: int, sign: int, bit: int | None) -> bytes:
    flags = (sign > 0) + (0 if bit is None else 2 + 4 * bit)
    return struct.pack("BB", 1, flags) + subset(indices, d)


def rows(d: int, blocks: int) -> int:
    """Return n."""
    size = 1
    while size < -(-d // blocks):
        size *= 2
    return blocks * size


def codeword(number: int, n: int, codes: int) -> bytes:
    """Return the bytes of a number below 2n G, or of one that is too large and fits."""
    length = 0
    while 256**length < 2 * n * codes:
        length += 1
    return b"\x01" + struct.pack(">Q", number)[8 - length :]


def gaussian(entries: Sequence[int]) -> bytes:
    return struct.pack(f"B{len(entries)}b", 1, *entries)


def entry_bytes(largest: int) -> int:
    return len(f"{largest:b}") // 8 + 1


def laplace_largest(epsilon: str, grid_bits: int) -> int:
    """Return G + ceil(64 / rate), with epsilon as the decimal that it is written as."""
    steps = 2**grid_bits
    return steps + math.ceil(64 / (Fraction(epsilon) / (2 * steps)))


def evaluation(kind: int, width: int, entries: Sequence[int], metrics: Sequence[int]) -> bytes:
    head = struct.pack("BB", 1, kind)
    body = b"".join(struct.pack("<q", entry)[:width] for entry in entries)
    return head + body + struct.pack(f"<{len(metrics)}q", *metrics)


def bits_of_records(records: Sequence[Sequence[int]]) -> bytes:
    found = [b"\x01"]
    for record in records:
        text = "".join(map(str, record))
        text += "0" * (-len(text) % 8)
        found.append(bytes(int(text[n : n + 8], 2) for n in range(0, len(text), 8)))
    return b"".join(found)


def codes_of_records(codes: Sequence[int], width: int) -> bytes:
    return struct.pack(f"<B{len(codes)}{'B' if width <= 256 else 'H'}", 1, *codes)

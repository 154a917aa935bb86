"""Reports of each format: what they say, their bytes, and bytes that say nothing."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

from tests.vectors import layouts, proposals

Case = dict[str, Any]


def spread(d: int, h: int) -> list[int]:
    """Return h indices below d that look like any, and are the same each time."""
    stream = hashlib.shake_128(f"{d} {h}".encode()).digest(64 * h + 64)
    words = struct.iter_unpack("<Q", stream)
    found: set[int] = set()
    while len(found) < h:
        found.add(next(words)[0] % d)
    return sorted(found)


def wrong(given: Case, data: bytes) -> Iterator[Case]:
    """Yield what is wrong with the bytes of any report: length and version."""
    for name, other, reason in (
        ("nothing", b"", "length"),
        ("cut off", data[:-1], "length"),
        ("too long", data + b"\0", "length"),
        ("version 0", b"\0" + data[1:], "version"),
        ("version 2", b"\2" + data[1:], "version"),
    ):
        yield {"name": name, **given, "bytes": other.hex(), "reason": reason}


def refusal(name: str, given: Case, data: bytes, reason: str) -> Case:
    return {"name": name, **given, "bytes": data.hex(), "reason": reason}


def signds() -> Case:
    sets = [(10, [1, 4, 9]), (1, [0]), (300, [299]), (7, list(range(7))), (8, list(range(7)))]
    sets += [(d, spread(d, h)) for d, h in ((61_706, 9), (61_706, 238), (2**32 - 1, 30))]
    sets += [(d, spread(d, h)) for d, h in ((1_000, 500), (2_010, 600), (4_096, 20))]
    valid = []
    for number, (d, indices) in enumerate(sets):
        for sign, bit in ((1, None), (-1, number % 2)):
            data = layouts.signds(indices, d, sign, bit)
            content = {"indices": indices, "sign": sign, "magnitude-bit": bit}
            valid.append({"d": d, "h": len(indices), **content, "bytes": data.hex()})
    given: Case = {"d": 10, "h": 3, "magnitude-bit-asked": False}
    asked = {**given, "magnitude-bit-asked": True}
    refused = [
        *wrong(given, bytes.fromhex("01012f01")),
        refusal("a bit that was not asked for", given, bytes.fromhex("01032f01"), "flags"),
        refusal("no bit", asked, bytes.fromhex("01012f01"), "flags"),
        refusal("the bit without its flag", asked, bytes.fromhex("01052f01"), "flags"),
        refusal("an unknown flag", given, bytes.fromhex("01092f01"), "flags"),
        refusal("padding", given, bytes.fromhex("01012f03"), "padding"),
        refusal("padding, its last bit", given, bytes.fromhex("01012f81"), "padding"),
        refusal("two ones", given, bytes.fromhex("01012f00"), "range"),
        refusal("four ones", given, bytes.fromhex("01013f01"), "range"),
        # k = (1, 0, ...): of the same high part, and the low bits fall.
        refusal("indices that fall", given, b"\1\1" + layouts.packed([1, 0, 0, 1, 1, 1, 0, 0, 0]),
                "order"),
        # High parts 3, 3, 3 of k = (7, 7, 7) end at index 9; of d = 9 with D = 6, k = 7 is beyond.
        refusal("an index that is d", {**given, "d": 9}, b"\1\1"
                + layouts.packed([0, 0, 1, 1, 1, 0, 0, 0, 1]), "range"),
    ]  # fmt: skip
    d, h = 1_000, 500
    top = (1 << 8 * len(layouts.subset(range(h), d))) - 1
    used = layouts.rank_bits(d, h, layouts.subset_form(d, h)[1])
    full = (top & ((1 << used) - 1)).to_bytes(len(layouts.subset(range(h), d)), "little")
    refused.append(
        refusal("a rank that is too large", {**given, "d": d, "h": h}, b"\1\1" + full, "range")
    )
    return {"about": "SignDS reports.", "accepted": valid, "refused": refused}


def codeword() -> Case:
    plans = ((2, 1, 1), (7, 3, 1), (2_010, 64, 1), (61_706, 64, 1), (280, 64, 10))
    plans += ((2**24, 4096, 1),)
    valid, refused = [], []
    for d, codes, blocks in plans:
        n = layouts.rows(d, blocks)
        given = {"d": d, "rotations": codes, "blocks": blocks}
        for code, row, sign in ((0, 0, 1), (codes - 1, n - 1, -1), (codes // 2, n // 2, -1)):
            number = 2 * n * code + 2 * row + (sign < 0)
            data = layouts.codeword(number, n, codes)
            content = {"n": n, "code": code, "row": row, "sign": sign}
            valid.append({**given, **content, "bytes": data.hex()})
        length = len(layouts.codeword(0, n, codes))
        if 2 * n * codes < 256 ** (length - 1):
            data = layouts.codeword(2 * n * codes, n, codes)
            refused.append(refusal("a codeword too far", given, data, "range"))
    given = {"d": 7, "rotations": 3, "blocks": 1}
    refused += wrong(given, layouts.codeword(5, 8, 3))
    return {"about": "Codeword reports.", "accepted": valid, "refused": refused}


def gaussian() -> Case:
    entries = [[0], [1, -1, 0], [40, -20, 3, -2, 17], [n % 21 - 10 for n in range(100)]]
    given = {"proposal": proposals.record(proposals.GAUSSIAN)}
    valid = [
        {**given, "d": len(one), "entries": one, "bytes": layouts.gaussian(one).hex()}
        for one in entries
    ]
    given = {**given, "d": 3}
    refused = [*wrong(given, layouts.gaussian([1, -1, 0]))]
    for entry in (-128, 127):
        data = layouts.gaussian([0, entry, 0])
        refused.append(refusal(f"an entry of {entry}", given, data, "range"))
    refused.append(refusal("too long a vector", given, layouts.gaussian([40, -40, 0]), "range"))
    return {"about": "Gaussian reports.", "accepted": valid, "refused": refused}


def extension() -> Case:
    """Return reports of three bytes, which may be any."""
    given = {"proposal": proposals.record(proposals.EXTENSION)}
    reports = (b"\0\0\0", b"\2\xff\1", b"\xff\xff\xff")
    refused = [one for one in wrong(given, reports[0]) if one["reason"] == "length"]
    valid = [{**given, "bytes": data.hex()} for data in reports]
    return {"about": "Reports of an extension.", "accepted": valid, "refused": refused}


def evaluation() -> Case:
    width = layouts.entry_bytes(layouts.laplace_largest("4", 20))
    rows = [[0, 2**20, -1, 5, -(2**20), *[77] * 5], [1, 2, 3, 4, 5, 6, 7, 8, 9, -12_345_678]]
    flat = [entry for row in rows for entry in row]
    valid, refused = [], []
    for extra, metrics in (({}, []), (proposals.METRICS, [68_000_000, -3])):
        given = {"proposal": proposals.record(proposals.ROWS | extra)}
        data = layouts.evaluation(1, width, flat, metrics)
        valid.append({**given, "rows": rows, "metrics": metrics, "bytes": data.hex()})
    for metric in (2**40, -(2**40), 68_157_441, -67_108_865):
        data = layouts.evaluation(1, width, flat, [metric, -3])
        refused.append(refusal(f"a metric of {metric}", given, data, "range"))
    plain = {"proposal": proposals.record(proposals.ROWS)}
    data = layouts.evaluation(1, width, flat, [])
    refused += [*wrong(plain, data), refusal("kind 2", plain, b"\1\2" + data[2:], "kind")]
    far = layouts.evaluation(1, width, [*flat[:-1], 2**31 - 1], [])
    refused.append(refusal("an entry of 2^31 - 1", plain, far, "range"))
    for extra, metrics in (({}, []), (proposals.METRICS, [0, -1])):
        given = {"proposal": proposals.record(proposals.CODES | extra)}
        data = layouts.evaluation(2, layouts.entry_bytes(2), [2, 0, 1], metrics)
        valid.append({**given, "rows": [2, 0, 1], "metrics": metrics, "bytes": data.hex()})
        for entry in (3, -1):
            other = layouts.evaluation(2, layouts.entry_bytes(2), [2, entry, 1], metrics)
            refused.append(refusal(f"code {entry}", given, other, "range"))
    return {"about": "Reports of an evaluation.", "accepted": valid, "refused": refused}


def embedding() -> Case:
    records = [[n * k % 5 % 2 for n in range(12)] for k in (1, 2, 3)]
    bits, few, many = (
        {"mechanism": name, "width": width, "records": 3}
        for name, width in (
            ("embedding_dp", 12),
            ("codebook_embedding", 256),
            ("codebook_embedding", 300),
        )
    )
    packed = layouts.bits_of_records(records)
    valid = [
        {**bits, "reports": records, "bytes": packed.hex()},
        {**few, "reports": [255, 0, 7], "bytes": layouts.codes_of_records([255, 0, 7], 256).hex()},
        {**many, "reports": [299, 0, 7], "bytes": layouts.codes_of_records([299, 0, 7], 300).hex()},
    ]
    refused = [one for one in wrong(bits, packed) if one["bytes"]]
    refused += [
        refusal("padding", bits, packed[:-1] + bytes([packed[-1] | 1]), "padding"),
        refusal("code 300", many, layouts.codes_of_records([299, 300, 7], 300), "code"),
    ]
    ids = ["b", "a", "ü", "10", "9"]
    common = sorted(ids, key=lambda one: hashlib.sha256(one.encode()).digest())
    joined = b"".join(sorted(hashlib.sha256(one.encode()).digest() for one in ids))
    tables = [{"ids": ids, "order": common, "digest": hashlib.sha256(joined).hexdigest()}]
    empty = [
        {"message": f"train.{name}", "bytes": ""} for name in ("prepare", "backward", "rewind")
    ]
    return {
        "about": "Embeddings of split learning, and the order and digest of a table's ids.",
        "accepted": valid,
        "refused": refused,
        "acknowledgements": empty,
        "tables": tables,
    }


def health() -> Case:
    report = layouts.gaussian([1, -1])
    valid = [{"report": report.hex(), "bit": bit, "bytes": (report + bytes([bit])).hex()}
             for bit in (0, 1)]  # fmt: skip
    refused = [{"bytes": data.hex(), "reason": "health"} for data in (b"", b"\1\2", b"\1\xff")]
    return {"about": "The health bit behind any report.", "accepted": valid, "refused": refused}


def model() -> Case:
    """Return the bytes of a model that is kept for a message that comes again."""
    arrays = [
        {"name": "w", "shape": [2, 2], "dtype": "float32", "entries": [1.0, -2.5, 0.0, 3.0]},
        {"name": "b", "shape": [2], "dtype": "float64", "entries": [0.5, -1.0]},
        {"name": "h", "shape": [1], "dtype": "float16", "entries": [1.5]},
        {"name": "n", "shape": [], "dtype": "int64", "entries": [-7]},
    ]
    kinds = {"float32": "f", "float64": "d", "float16": "e", "int64": "q"}
    data = struct.pack(">BQ", 1, 2**40 + 3)
    for array in arrays:
        entries = array["entries"]
        data += struct.pack(f"<{len(entries)}{kinds[array['dtype']]}", *entries)
    given = {"arrays": arrays}
    refused = [one for one in wrong(given, data) if one["reason"] == "length" or one["bytes"]]
    valid = [{**given, "weight": 2**40 + 3, "bytes": data.hex()}]
    return {"about": "A trained model as it is kept.", "accepted": valid, "refused": refused}

"""Images of digits, cut in two: each party has one half, the server has the labels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.wire.record_ids import Records, RecordTables

SIDES = ("left", "right")


@cache
def load(source: str) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return images in [0, 1] and labels, for the tables train and test."""
    if source == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        order = np.random.default_rng(0).permutation(len(found.target))
        images, labels = found.images[order] / 16.0, found.target[order].astype(np.int64)
        return {"train": (images[:1500], labels[:1500]), "test": (images[1500:], labels[1500:])}
    with np.load(source) as file:
        return {
            table: (file[f"x_{table}"] / np.float32(255), file[f"y_{table}"].astype(np.int64))
            for table in ("train", "test")
        }


def tables(source: str, block_size: int) -> RecordTables:
    """Return the ids of all records: here their place in the source."""
    sizes = {table: len(labels) for table, (_, labels) in load(source).items()}
    ids = {
        table: Records.of(f"{table}-{row}" for row in range(size)) for table, size in sizes.items()
    }
    return RecordTables(ids, block_size)


def half(source: str, side: str, table: str) -> NDArray[np.float32]:
    """Return one party's features: the pixels of its side, one row for each record."""
    images, _ = load(source)[table]
    middle = images.shape[2] // 2
    own = images[:, :, :middle] if side == "left" else images[:, :, middle:]
    return np.ascontiguousarray(own.reshape(len(own), -1), dtype=np.float32)

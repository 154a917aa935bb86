"""A text as records: windows of bytes, and for each of them the next byte at every place.

Tokens are bytes. A vocabulary of words would have to be made from somebody's text, and telling
it to the other side would be a release that nobody counts; the 256 bytes are known to all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.wire.record_ids import Records, RecordTables

BUILT_IN = "python-docs"
TOKENS = 256


@dataclass(frozen=True)
class Windows:
    """Windows of a text that do not overlap.

    Parameters
    ----------
    tokens : ndarray of uint8, shape (windows, context)
        What the party has.
    following : ndarray of int64, shape (windows, context)
        The byte after each: the labels.
    """

    tokens: NDArray[np.uint8]
    following: NDArray[np.int64]


def read(source: str) -> bytes:
    """Return the help texts that come with Python, or a file.

    Raises
    ------
    ValueError
        If this Python has no help texts.
    OSError
        If there is no such file.
    """
    if source != BUILT_IN:
        return Path(source).read_bytes()
    try:
        from pydoc_data.topics import topics
    except ModuleNotFoundError:
        raise ValueError(
            "this Python has no help texts (pydoc_data): name a text by its path"
        ) from None
    return "\n\n".join(text for _, text in sorted(topics.items())).encode()


def windows(config: Mapping[str, Any]) -> dict[str, Windows]:
    """Return the windows of the tables train and test.

    Raises
    ------
    ValueError
        If there is not enough text.
    """
    return _windows(
        str(config["text"]),
        str(config["eval-text"]),
        int(config["context"]),
        int(config["train-windows"]),
        int(config["eval-windows"]),
    )


@cache
def _windows(source: str, other: str, context: int, train: int, test: int) -> dict[str, Windows]:
    text = read(source)
    cut = len(text) if other else len(text) * 9 // 10
    parts = {"train": (text[:cut], train), "test": (read(other) if other else text[cut:], test)}
    return {table: _cut(table, part, context, most) for table, (part, most) in parts.items()}


def _cut(table: str, text: bytes, context: int, most: int) -> Windows:
    codes = np.frombuffer(text, dtype=np.uint8)
    count = (len(codes) - 1) // context
    if count < 1:
        raise ValueError(
            f"the text for table {table!r} has {len(codes)} bytes; a window needs {context + 1}"
        )
    count = min(count, most) if most else count
    size = count * context
    following = codes[1 : size + 1].astype(np.int64)
    return Windows(codes[:size].reshape(count, context), following.reshape(count, context))


def tables(config: Mapping[str, Any]) -> RecordTables:
    """Return the ids of all windows: their places in the text."""
    sizes = tuple((table, len(found.tokens)) for table, found in windows(config).items())
    return _tables(sizes, int(config["block-size"]))


@cache
def _tables(sizes: tuple[tuple[str, int], ...], block_size: int) -> RecordTables:
    ids = {
        table: Records.of(f"{table}-{place}" for place in range(count)) for table, count in sizes
    }
    return RecordTables(ids, block_size)


def unigram_loss(found: Mapping[str, Windows]) -> float:
    """Return what a model pays per token of the test text that knows how often bytes occur.

    No more than these counts, from the training text, can be learned from random embeddings.
    In nats.
    """
    counts = np.bincount(found["train"].following.ravel(), minlength=TOKENS) + 1.0
    return float(-np.log(counts / counts.sum())[found["test"].following].mean())

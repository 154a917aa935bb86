"""The records of a split run: the same ids at every party, in one order, in blocks.

Parties and server check by a digest that their ids agree. The common order is that of SHA-256 over
the id. In it records are cut into **blocks** of one fixed size, each a batch of the training and an
account of the ledger's (docs/embedding.md). All of a block is released together. The party, not the
server, decides the size. Ids are public among the parties and the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.parameter_bounds import check_in


@dataclass(frozen=True)
class Records:
    """The ids of one table, in the order of the holder's own rows.

    ValueError unless there is one and all are different and not empty, TypeError for other types.
    """

    ids: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.ids):
            raise TypeError("ids must be strings")
        if not self.ids or not all(self.ids):
            raise ValueError("ids must be at least one, and none empty")
        if len(set(self.ids)) != len(self.ids):
            raise ValueError("ids must all be different")

    @classmethod
    def of(cls, ids: Iterable[object]) -> Records:
        """Return records with these ids, as text."""
        return cls(tuple(str(name) for name in ids))

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        digests = (hashlib.sha256(name.encode()).digest() for name in self.ids)
        return sorted((digest, row) for row, digest in enumerate(digests))

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The holder's rows in the common order, shape (records,)."""
        return np.array([row for _, row in self._sorted], dtype=np.int64)

    @cached_property
    def digest(self) -> str:
        """The same for all holders of the same ids, whatever their order; hexadecimal."""
        return hashlib.sha256(b"".join(digest for digest, _ in self._sorted)).hexdigest()

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class RecordTables:
    """All tables of a party's or the server's, and the size of their blocks.

    Parameters
    ----------
    tables : mapping of str to Records
        By name, as ``"train"`` and ``"test"``. A record is in one table only.
    block_size : int
        Records in a block, the last one of a table apart; in [1, 2^20]. Fixed for the life of
        the data.

    Raises
    ------
    ValueError
        If there is no table, a name is no identifier, a record is in two tables, or the size
        is outside its interval.
    """

    tables: Mapping[str, Records]
    block_size: int

    def __post_init__(self) -> None:
        check_in("[1, 2^20]", "block_size", self.block_size, int)
        if not self.tables:
            raise ValueError("tables must be at least one")
        for name in self.tables:
            if not name.isidentifier() or len(name) > 100:
                raise ValueError(f"a table's name must be an identifier, got {quoted(name)}")
        ids = [name for records in self.tables.values() for name in records.ids]
        if len(set(ids)) != len(ids):
            raise ValueError("a record must be in one table only")

    @cached_property
    def layout(self) -> str:
        """Digest of everything that decides which record is in which block; hexadecimal."""
        parts = [f"{name}:{self.tables[name].digest}" for name in sorted(self.tables)]
        return hashlib.sha256("\n".join([str(self.block_size), *parts]).encode()).hexdigest()

    def blocks(self, table: str) -> int:
        """Return a table's number of blocks."""
        return -(-len(self.tables[table]) // self.block_size)

    def rows(self, table: str, block: int) -> NDArray[np.int64]:
        """Return the holder's rows of a block, in the common order.

        KeyError if there is no such table, ValueError if there is no such block.
        """
        if not 0 <= block < self.blocks(table):
            raise ValueError(f"block must be in [0, {self.blocks(table)}), got {block}")
        start = block * self.block_size
        return self.tables[table].order[start : start + self.block_size]

    def places(self, table: str, block: int) -> NDArray[np.int64]:
        """Return a block's rows in one array of all tables, one after the other as given."""
        names = list(self.tables)
        before = sum(len(self.tables[name]) for name in names[: names.index(table)])
        return before + self.rows(table, block)

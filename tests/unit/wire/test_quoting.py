"""What comes from the other side is quoted in few characters and little time, whatever its size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType

import pytest

from flower_ldp.errors import (
    MOST_TEXT,
    BudgetExhausted,
    ConfigError,
    LdpError,
    LedgerError,
    RefusalError,
    WireError,
    quoted,
)
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.wire.embedding import EmbeddingProposal, TableTerms
from flower_ldp.wire.evaluation import EvalProposal
from tests.fixtures import parsed, signds_proposal


# Made where they are needed: each process collects all tests, and keeps what parameters hold.
@cache
def long() -> str:
    """Return a text of four characters each in a representation."""
    return "\x00" * (32 << 20)


@cache
def many() -> list[str]:
    return ["\x00" * 1_000] * 100_000


LARGE: dict[str, Callable[[], object]] = {
    "str": long,
    "bytes": lambda: long().encode(),
    "bytearray": lambda: bytearray(long().encode()),
    "list": many,
    "tuple": lambda: tuple(many()),
    "nested": lambda: [many(), many(), [many(), [many()]]],
    "dict": lambda: {"a": long(), long()[:-1]: many()},
    "mappingproxy": lambda: MappingProxyType({long(): long()}),
    "set": lambda: set(range(10**6)),
    "frozenset": lambda: frozenset(range(10**6)),
    "long dict": lambda: dict.fromkeys(range(10**5), long()),
    "int": lambda: 1 << (1 << 20),
    "integers": lambda: [-1 << 20_000],
}


@pytest.mark.parametrize("make", LARGE.values(), ids=list(LARGE))
def test_large_values_take_little_room(make: Callable[[], object]) -> None:
    value = make()
    tracemalloc.start()
    try:
        text = quoted(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(text) < 450
    assert peak < 1 << 20


SMALL = [
    "text",
    b"b",
    7,
    -0.5,
    None,
    True,
    ["a", 1],
    ("a",),
    {"a": 1},
    {3},
    [],
    {},
    2**64,
    "x" * 80,
]


@pytest.mark.parametrize("value", SMALL)
def test_small_values_stand_as_they_are(value: object) -> None:
    assert quoted(value) == repr(value)


def test_what_is_left_out_is_said() -> None:
    assert quoted("ab" * 50, 4) == "'abab'... (100 characters)"
    assert quoted(b"ab" * 50, 4) == "b'abab'... (100 bytes)"
    assert quoted(list(range(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, ...]"
    assert quoted(10**5_000) == "an integer of 16,610 bits"


@pytest.mark.parametrize(
    "make",
    [
        *(LdpError, ConfigError, LedgerError, BudgetExhausted),
        lambda text: RefusalError("ldp:refused:policy", text),
        lambda text: WireError("fields", text),
    ],
)
def test_every_text_is_cut(make: Callable[[str], LdpError]) -> None:
    error = make(long())
    assert MOST_TEXT <= len(str(error)) < MOST_TEXT + 100
    assert str(error).endswith("characters)")
    assert len(getattr(error, "detail", "")) < MOST_TEXT + 100
    assert str(make("short")).endswith("short")


FIELDS: dict[str, object] = dict(signds_proposal(SignDS(8.0, 0.1, 0.5, 3)).to_fields())
KINDS = (EvalProposal, EmbeddingProposal, TableTerms)


@pytest.mark.parametrize("parse", [parsed, *(kind.from_fields for kind in KINDS)])
@pytest.mark.parametrize("name", ["version", "mechanism", "epsilon", "dim-out", "new", None])
@pytest.mark.parametrize("make", [long, many, lambda: 1 << 20_000], ids=["text", "list", "integer"])
def test_malformed_fields_of_proposals(
    parse: Callable[[Mapping[str, object]], object], name: str | None, make: Callable[[], object]
) -> None:
    name, value = long() if name is None else name, make()
    for fields in ({**FIELDS, name: value}, {name: value}, {"version": 1, name: value}):
        with pytest.raises(WireError) as refused:
            parse(fields)
        assert len(str(refused.value)) < 600

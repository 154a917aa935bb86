"""Records: one order for all holders, blocks that never change, tables that do not overlap."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.wire.record_ids import Records, RecordTables


def test_holders_of_the_same_ids_agree_whatever_their_order() -> None:
    ids = [f"patient-{n}" for n in range(100)]
    one, other = Records.of(ids), Records.of(reversed(ids))
    assert one.digest == other.digest
    assert [one.ids[row] for row in one.order] == [other.ids[row] for row in other.order]
    assert sorted(one.order) == list(range(100))
    assert list(one.order) != list(range(100))


@pytest.mark.parametrize(
    "ids", [["a", "b"], ["a", "b", "c", "d"], ["a", "b", "C"], ["ab", "c", "d"]]
)
def test_other_ids_have_another_digest(ids: list[str]) -> None:
    assert Records.of(ids).digest != Records.of(["a", "b", "c"]).digest


def test_the_common_order_is_pinned() -> None:
    # an order that changed between versions would put records into other accounts
    records = Records.of(range(6))
    assert [records.ids[row] for row in records.order] == ["4", "3", "0", "1", "2", "5"]
    assert records.digest.startswith("d921a1b93a23fbad9c3d2e0b")


@pytest.mark.parametrize(
    ("ids", "text"),
    [((), "at least one"), (("a", ""), "none empty"), (("a", "a"), "different"), ((1,), "strings")],
)
def test_ids_that_name_nothing_or_two_things_are_refused(ids: tuple[str, ...], text: str) -> None:
    with pytest.raises(TypeError if text == "strings" else ValueError, match=text):
        Records(ids)


def test_each_record_is_in_one_block() -> None:
    tables = RecordTables({"train": Records.of(range(10)), "test": Records.of("abc")}, 4)
    assert tables.blocks("train") == 3
    assert tables.blocks("test") == 1
    rows = [tables.rows("train", block) for block in range(3)]
    assert [len(block) for block in rows] == [4, 4, 2]
    assert sorted(np.concatenate(rows)) == list(range(10))
    for block in (-1, 3):
        with pytest.raises(ValueError, match=r"block must be in \[0, 3\)"):
            tables.rows("train", block)
    with pytest.raises(KeyError):
        tables.rows("other", 0)


def test_the_layout_names_everything_that_decides_who_is_in_which_block() -> None:
    train, test = Records.of(range(10)), Records.of("abc")
    layouts = {
        RecordTables({"train": train, "test": test}, 4).layout,
        RecordTables({"train": train, "test": test}, 5).layout,
        RecordTables({"train": train}, 4).layout,
        RecordTables({"test": train, "train": test}, 4).layout,
        RecordTables({"train": Records.of(range(11)), "test": test}, 4).layout,
    }
    assert len(layouts) == 5
    same = RecordTables({"test": test, "train": Records.of(range(9, -1, -1))}, 4)
    assert same.layout in layouts


@pytest.mark.parametrize(
    ("tables", "size", "text"),
    [
        ({}, 4, "at least one"),
        ({"a b": Records.of("a")}, 4, "identifier"),
        ({"x/y": Records.of("a")}, 4, "identifier"),
        ({"a": Records.of("xy"), "b": Records.of("yz")}, 4, "one table only"),
        *(({"a": Records.of("a")}, size, "block_size") for size in (0, 2**20 + 1, True, 4.0)),
    ],
)
def test_tables_that_would_blur_accounts_are_refused(
    tables: dict[str, Records], size: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        RecordTables(tables, size)

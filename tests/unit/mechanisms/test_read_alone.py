"""A label or row of a list is read from itself alone, whatever kinds the others are."""

from __future__ import annotations

from collections import UserList, deque
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from flower_ldp.mechanisms import (
    CodebookEmbedding,
    KaryResponse,
    RandomSource,
    RROnBins,
    RRWithPrior,
    UnaryEncoding,
)
from flower_ldp.mechanisms.inputs import read_label, read_labels, read_records
from flower_ldp.mechanisms.laplace import read_simplex_rows
from tests.unit.mechanisms.test_neutral import DEEP, NO_NUMBERS, Hostile


class NoClass:
    """Fails when asked what it is."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class today")


#: What a loader may give for a label, and whether it names 1.
ODD_LABELS: list[tuple[Any, bool]] = [
    *((bad, False) for bad in (*NO_NUMBERS, Hostile(), NoClass(), DEEP, (), [[1], [2, 3]])),
    *((np.full(shape, 1), False) for shape in (1, (1, 1), (2, 2), 0)),
    *((torch.ones(1), False), (torch.tensor(1.0, requires_grad=True), False)),
    *((Decimal(1), False), (10**400, False), (1 + 1e-9j, False), (np.float16("nan"), False)),
    *((kind(1), True) for kind in (bool, float, complex, np.int8, np.float16, np.longdouble)),
    *((np.array(1), True), (torch.tensor(1), True), (torch.tensor(1.0), True)),
]
READERS: dict[str, Callable[[Any], Any]] = {
    "kary": KaryResponse(1.0, 3).read,
    "prior": RRWithPrior(1.0, 3).read,
    "bins": RROnBins(1.0, (0, 1, 2), (1, 1, 1)).read,
    "bits": lambda values: read_labels(values, 2, np.int8),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_lists_label_is_read_alike_beside_any_other(name: str, place: int) -> None:
    read = READERS[name]
    plain = [0, 1, 1.0, True]
    others = np.arange(4) != place
    for odd, is_one in ODD_LABELS:
        given = list(plain)
        given[place] = odd
        for labels in (given, tuple(given), deque(given), UserList(given)):
            found = read(labels)
            assert found.shape == (4,)
            assert (found == read(plain))[others].all()
            if name != "bins":  # bins read what any number is worth
                assert found[place] == (1 if is_one else -1)


def test_a_label_alone_is_read_as_in_a_list() -> None:
    for odd, is_one in ODD_LABELS:
        assert read_label(odd, 3) == (1 if is_one else -1)


@pytest.mark.parametrize("which", range(len(ODD_LABELS)))
def test_a_lists_row_is_read_alike_beside_any_other(which: int) -> None:
    odd, _ = ODD_LABELS[which]
    plain = np.tile(np.eye(3), (7, 1))[:20]
    others = np.arange(20) != 5
    for bad in (odd, [odd, 0.0, 1.0]):
        rows: list[Any] = list(plain)
        rows[5] = bad
        found, good = read_simplex_rows(rows, (20, 3))
        assert good[others].all()
        assert (found == plain)[others].all()
        records, _ = read_records(deque(rows), 3, (20, 3))
        assert records is not None
        assert (records == plain)[others].all()


def test_a_list_of_records_needs_a_shape_which_its_entries_do_not_tell() -> None:
    for mechanism in (UnaryEncoding(1.0, 3), CodebookEmbedding(1.0, 3)):
        for records in ([[1, 0, 0], [0, 1]], [[1, 0, 0], [0, 1, 0]], [1, 0, 0]):
            with pytest.raises(ValueError, match=r"shape must be given for a list: \(3,\) or"):
                mechanism.randomize(records, RandomSource.seeded(1))

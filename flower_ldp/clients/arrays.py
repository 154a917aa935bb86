"""The one model of a message, as arrays."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.errors import WireError


def single_model(content: RecordDict) -> dict[str, NDArray[Any]]:
    """Return the arrays of a message's only ArrayRecord.

    Raises
    ------
    WireError
        If there is none, or more than one.
    """
    records: list[ArrayRecord] = list(content.array_records.values())
    if len(records) != 1:
        raise WireError("record", f"expected one ArrayRecord, found {len(records)}")
    return {name: array.numpy() for name, array in records[0].items()}

"""Parameters outside their declared intervals are refused, of every mechanism alike."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, get_args, get_type_hints

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Codeword,
    ExampleMean,
    Gaussian,
    GaussianMeans,
    KaryResponse,
    Laplace,
    LaplacePlan,
    MagRR,
    RROnBins,
    RRWithPrior,
    SignDS,
    SubsetSelection,
    Subspace,
    TrainingPlan,
    UnaryEncoding,
)
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.parameter_bounds import Bounded, check_fields, check_in

RECORDS = (
    BinaryResponse(1.0),
    BoundedMean(1.0, 0.0, 1.0),
    CodebookEmbedding(1.0, 10),
    CodebookResponse(np.eye(3), 1.0),
    Codeword(1.0),
    ExampleMean(1.0, 10),
    Gaussian(1.0, 1e-6),
    GaussianMeans(1.0, 1e-6, 10),
    KaryResponse(1.0, 10),
    Laplace(1.0, 10),
    LaplacePlan(1.0),
    MagRR(1.0),
    RROnBins(1.0, (0, 1), (1, 1)),
    RRWithPrior(1.0, 10),
    SignDS(1.0),
    SignDSRound(SignDS(1.0), 1.0, 1.0),
    SubsetSelection(1.0, 10),
    Subspace(10),
    TrainingPlan(1, 1, 0.5, 1.0, 1.0, 1e-6),
    UnaryEncoding(1.0, 10),
)


def bounded(record: Any) -> list[str]:
    hints = get_type_hints(type(record), include_extras=True)
    return [
        one.name
        for one in fields(record)
        if any(isinstance(mark, Bounded) for mark in get_args(hints[one.name]))
    ]


@pytest.mark.parametrize(
    ("record", "name"), [(record, name) for record in RECORDS for name in bounded(record)]
)
def test_no_mechanism_takes_what_is_outside_or_no_number(record: Any, name: str) -> None:
    top = get_type_hints(type(record), include_extras=True)[name].__metadata__[0].interval
    large = [] if top.endswith("inf)") else [10**400]
    for value in (math.nan, -math.inf, -1, True, "1", *large):
        with pytest.raises(ValueError, match=f"^{name} must be "):
            replace(record, **{name: value})


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 100]", (5e-324, 1, 100, np.float32(3)), (0, 100.00001, math.nan, math.inf)),
        ("[0, inf)", (0, 1e308), (-5e-324, math.inf)),
        ("[0, 2^63)", (0, 2**63 - 1), (-1, 2**63)),
        ("[1e-6, 1e6]", (1e-6, 1e6), (9.9e-7, 1e6 + 1)),
    ],
)
def test_ends_belong_to_an_interval_as_its_brackets_say(
    interval: str, inside: tuple[float, ...], outside: tuple[float, ...]
) -> None:
    for value in inside:
        check_in(interval, "x", value)
    for value in outside:
        with pytest.raises(ValueError, match="x must be in"):
            check_in(interval, "x", value)


def test_the_text_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match=r"^x must be in \(0, 1\], got 2\.5$"):
        check_in("(0, 1]", "x", 2.5)
    with pytest.raises(ValueError, match=r"^x must be an integer in \[0, 3\], got True$"):
        check_in("[0, 3]", "x", True, int)
    with pytest.raises(ValueError, match=r"^x must be an integer in \[0, 3\], got 1\.0$"):
        check_in("[0, 3]", "x", 1.0, int)


def test_a_field_that_may_be_none_may_be_none() -> None:
    @dataclass(frozen=True)
    class Open:
        size: Annotated[int | None, Bounded("[1, 3]")] = None

    check_fields(Open())
    with pytest.raises(ValueError, match="size must be an integer"):
        check_fields(Open(4))

"""What is printed of a mechanism or a plan fits a line or two: laws and tables stay out."""

from __future__ import annotations

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BoundedMean,
    Codeword,
    Gaussian,
    KaryResponse,
    Laplace,
    MagRR,
    RROnBins,
    SignDS,
    UnaryEncoding,
)
from flower_ldp.mechanisms.codebook import CodebookResponse

WHOLE = [
    SignDS(100.0, 0.2).plan(61_706),
    Codeword(8.0).plan(61_706),
    Gaussian(1.0, 1e-6).plan(61_706),
    Laplace(8.0, 10, 100),
    KaryResponse(1.0, 1_000),
    RROnBins(1.0, range(100), range(100)),
    MagRR(1.0).start(),
    UnaryEncoding(5.0, 4_096),
    BoundedMean(1.0, 0.0, 1.0),
    CodebookResponse(np.random.default_rng(0).dirichlet(np.ones(10), 1_000), 1.0),
]


@pytest.mark.parametrize("thing", WHOLE, ids=lambda one: type(one).__name__)
def test_a_repr_is_short(thing: object) -> None:
    assert len(repr(thing)) < 300

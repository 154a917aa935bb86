"""What every mechanism owes: its stated epsilon is met, exactly, and is tight.

A mechanism joins with one row: itself, inputs that are as different as inputs can be,
and all its outputs. Neighbours are any two inputs (replace-one).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    KaryResponse,
    Laplace,
    MagRR,
    Mechanism,
    RandomSource,
    RRWithPrior,
    Selection,
    SignDS,
    UnaryEncoding,
)
from flower_ldp.privacy import PrivacyEvent, compose_directly

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")


@dataclass(frozen=True)
class Row:
    mechanism: Mechanism[Any, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Any]

    @property
    def name(self) -> str:
        return repr(self.mechanism)


def selections(dimension: int, size: int) -> list[Selection]:
    return [
        Selection(np.array(subset, dtype=np.int64), sign)
        for sign in (-1, 1)
        for subset in itertools.combinations(range(dimension), size)
    ]


@dataclass(frozen=True)
class GivenPrior:
    """RRWithPrior under one prior; neighbours have different values and the same prior."""

    mechanism: RRWithPrior
    prior: tuple[float, ...]

    def events(self) -> tuple[PrivacyEvent, ...]:
        return self.mechanism.events()

    def randomize(self, value: int, rng: RandomSource) -> int:
        return self.mechanism.randomize(value, rng, self.prior)

    def log_prob(self, report: int, value: int) -> float:
        return self.mechanism.log_prob(report, value, self.prior)


def lattice(dimension: int, reach: int) -> list[np.ndarray]:
    """Return the integer rows that hold all but a probability below 1e-15."""
    return [
        np.array([row]) for row in itertools.product(range(-reach, reach + 1), repeat=dimension)
    ]


VECTORS = [
    np.array(entries, dtype=np.float32)
    for entries in itertools.product((-1.0, 0.0, 2.0), repeat=5)
    if sum(entries) in (-5.0, 0.0, 1.0, 10.0)
]
RECORDS = [np.array(bits) for bits in itertools.product((0, 1), repeat=3)]
CODES = np.array([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.1, 0.5]])
CORNERS = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), [[0.5, 0.25, 0.25]]])
NUMBERS = [np.array([number]) for number in range(len(CODES))]
SIMPLEX_ROWS = [np.array([row]) for row in ([1.0, 0.0], [0.0, 1.0], [0.25, 0.75])]
ROWS = [
    *(Row(BinaryResponse(epsilon), (0, 1), (0, 1)) for epsilon in (1e-3, 1.0, 30.0)),
    *(
        Row(KaryResponse(epsilon, k), range(k), range(k))
        for epsilon, k in ((1e-3, 2), (0.5, 10), (1.0, 3), (30.0, 17))
    ),
    *(
        Row(GivenPrior(RRWithPrior(epsilon, len(prior)), prior), range(len(prior)), sizes)
        for epsilon, prior, sizes in (
            (1.0, (0.6, 0.3, 0.1), (0, 1)),
            (0.5, (0.0, 0.0, 0.0, 0.0), range(4)),
            (3.0, (1e-3, 7.0, 0.0, 5.0, 6.0), (1, 3, 4)),
        )
    ),
    *(
        Row(CodebookResponse(CODES, epsilon, rows=1), [row[None] for row in CORNERS], NUMBERS)
        for epsilon in (0.1, 4.0, 30.0)
    ),
    *(Row(MagRR(epsilon), (False, True), (0, 1)) for epsilon in (0.1, 5.0)),
    *(
        Row(SignDS(epsilon, 0.25, dim_out=size), VECTORS, selections(5, size))
        for epsilon, size in ((0.2, 1), (2.0, 2), (9.0, 3))
    ),
    *(Row(UnaryEncoding(epsilon, 3), RECORDS, RECORDS) for epsilon in (0.1, 2.0, 20.0)),
    *(Row(CodebookEmbedding(eps, 4), list(np.eye(4)), range(4)) for eps in (0.1, 4.0)),
    *(Row(UnaryEncoding(eps, 3, one_hot=True), list(np.eye(3)), RECORDS) for eps in (0.1, 9.0)),
    *(
        Row(Laplace(epsilon, classes=2, grid_bits=1), SIMPLEX_ROWS, lattice(2, reach))
        for epsilon, reach in ((4.0, 40), (20.0, 12))
    ),
    Row(BoundedMean(6.0, -1.0, 1.0, grid_bits=3), (-1.0, 0.3, 1.0), range(-60, 60)),
]
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def table(row: Row) -> np.ndarray:
    return np.array([[row.mechanism.log_prob(o, i) for o in row.outputs] for i in row.inputs])


@every_row
def test_probabilities_add_up(row: Row) -> None:
    np.testing.assert_allclose(np.exp(table(row)).sum(axis=1), 1.0, rtol=1e-12)


@every_row
def test_stated_epsilon_is_met_and_tight(row: Row) -> None:
    (spent,) = compose_directly(row.mechanism.events()).values()
    assert spent.delta == 0.0
    found = table(row)
    largest = (found.max(axis=0) - found.min(axis=0)).max()
    assert largest <= spent.epsilon + 1e-12
    assert largest == pytest.approx(spent.epsilon, abs=1e-12)


@every_row
def test_the_sampler_stays_within_the_outputs_and_reaches_the_likely_ones(row: Row) -> None:
    rng = RandomSource.seeded(1)
    value = row.inputs[0]

    def key(report: Any) -> Any:
        if isinstance(report, Selection):
            return report.sign, tuple(report.indices.tolist())
        if isinstance(report, np.ndarray) and report.ndim == 0:
            return report.item()
        return tuple(report.ravel().tolist()) if isinstance(report, np.ndarray) else report

    seen = {key(row.mechanism.randomize(value, rng)) for _ in range(600)}
    probabilities = {key(o): math.exp(row.mechanism.log_prob(o, value)) for o in row.outputs}
    assert seen <= set(probabilities)
    # an output of probability 0.05 is missed by 600 draws once in 1e13 runs
    assert {o for o, p in probabilities.items() if p > 0.05} <= seen


@every_row
def test_parameters_cannot_change(row: Row) -> None:
    name = fields(row.mechanism)[0].name  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        setattr(row.mechanism, name, 1.0)

"""What every mechanism owes: its stated epsilon is met, exactly, and is tight.

A mechanism joins with one row: itself, inputs that are as different as inputs can be, all its
outputs, and valid inputs whose laws average to its neutral law. Neighbours are any two inputs
(replace-one), what is no valid input included.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, cast

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Codeword,
    CodewordReport,
    ExampleMean,
    Gaussian,
    GaussianMeans,
    JointCounts,
    KaryResponse,
    Laplace,
    MagRR,
    Mechanism,
    RandomSource,
    RROnBins,
    RRWithPrior,
    Selection,
    SignDS,
    SubsetSelection,
    UnaryEncoding,
)
from flower_ldp.privacy import PrivacyEvent, Unit, compose, compose_directly
from tests.statistical.follows import assert_follows

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")


@dataclass(frozen=True)
class Row:
    mechanism: Mechanism[Any, Any] | Given
    inputs: Any
    outputs: Sequence[Any]
    #: Valid inputs, equally likely, that stand for one that cannot be read; all if left out.
    mixture: Any = None

    @property
    def name(self) -> str:
        return repr(self.mechanism)


def selections(dimension: int, size: int) -> list[Selection]:
    signed = itertools.product((-1, 1), itertools.combinations(range(dimension), size))
    return [Selection(np.array(subset), sign) for sign, subset in signed]


@dataclass(frozen=True)
class Given:
    """A mechanism with what is public beside the value: a prior, a dimension or a shape."""

    mechanism: Any
    public: Any
    law_needs_it: bool = True

    def events(self) -> tuple[PrivacyEvent, ...]:
        return cast(tuple[PrivacyEvent, ...], self.mechanism.events())

    def randomize(self, value: Any, rng: RandomSource) -> Any:
        return self.mechanism.randomize(value, rng, self.public)

    def log_prob(self, report: Any, value: Any) -> float:
        told = (self.public,) if self.law_needs_it else ()
        return cast(float, self.mechanism.log_prob(report, value, *told))


def subsets(categories: int, size: int) -> list[int]:
    return [sum(1 << j for j in some) for some in itertools.combinations(range(categories), size)]


def codewords(mechanism: Codeword) -> list[CodewordReport]:
    codes = itertools.product(range(mechanism.rotations), range(8), (1, -1))
    return [CodewordReport(8, *parts) for parts in codes]


def lattice(dimension: int, reach: int) -> list[np.ndarray]:
    """Return the integer rows that hold all but a probability below 1e-13."""
    rows = itertools.product(range(-reach, reach + 1), repeat=dimension)
    return [np.array([row]) for row in rows]


VECTORS = [
    np.array(entries, dtype=np.float32)
    for entries in itertools.product((-1.0, 0.0, 2.0), repeat=5)
    if sum(entries) in (-5.0, 0.0, 1.0, 10.0)
]
GRID = (0.0, 1.0, 4.0, 9.0)
BITS = [np.array(bits) for bits in itertools.product((0, 1), repeat=3)]
CODES = np.array([[0.9, 0.05, 0.05], [0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.1, 0.5]])
CORNERS = np.concatenate([np.eye(3), np.full((1, 3), 1 / 3), [[0.5, 0.25, 0.25]]])
NUMBERS = [np.array([number]) for number in range(len(CODES))]
#: Updates with distinct entries in all orders: the top set is every set equally often.
ORDERS = [np.array(order, dtype=float) for order in itertools.permutations(range(5))]
SIMPLEX = np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.25, 0.75]]])
ROWS = [
    *(Row(BinaryResponse(epsilon), (0, 1), (0, 1)) for epsilon in (1e-3, 1.0, 30.0)),
    *(
        Row(KaryResponse(epsilon, k), range(k), range(k))
        for epsilon, k in ((1e-3, 2), (0.5, 10), (1.0, 3), (30.0, 17))
    ),
    *(
        Row(SubsetSelection(epsilon, k, size), range(k), subsets(k, size))
        for epsilon, k, size in ((1e-3, 3, 2), (0.5, 6, 3), (1.5, 7, 2), (30.0, 5, 4))
    ),
    *(
        Row(Given(RRWithPrior(epsilon, len(prior)), prior), range(len(prior)), sizes)
        for epsilon, prior, sizes in (
            (1.0, (0.6, 0.3, 0.1), (0, 1)),
            (0.5, (0.0, 0.0, 0.0, 0.0), range(4)),
            (3.0, (1e-3, 7.0, 0.0, 5.0, 6.0), (1, 3, 4)),
        )
    ),
    *(
        Row(RROnBins(epsilon, GRID, prior, loss), GRID, range(bins), mixture)
        for epsilon, prior, loss, bins, mixture in (
            (0.1, (1, 1, 1, 1), "squared", 2, (0, 9)),
            (2.0, (1, 5, 1, 1), "absolute", 2, (0, 9)),
            (30.0, (1, 0, 1, 1), "squared", 3, (0, 4, 9)),
        )
    ),
    *(
        Row(CodebookResponse(CODES, epsilon), CORNERS[:, None], NUMBERS, CODES[:, None])
        for epsilon in (0.1, 4.0, 30.0)
    ),
    *(Row(MagRR(epsilon), (False, True), (0, 1)) for epsilon in (0.1, 5.0)),
    *(
        Row(Given(SignDS(epsilon, 0.25, dim_out=size), 5), VECTORS, selections(5, size), ORDERS)
        for epsilon, size in ((0.2, 1), (2.0, 2), (9.0, 3))
    ),
    *(
        Row(Given(mechanism, 5), VECTORS, codewords(mechanism), [np.zeros(5)])
        for mechanism in (
            Codeword(0.2, 8, rotations=1, seed=8),
            Codeword(2.0, 3, rotations=2, seed=3),
            Codeword(9.0, 1, rotations=1, seed=1),
            Codeword(3.0, 4, rotations=1, blocks=2),
        )
    ),
    *(Row(Given(UnaryEncoding(eps, 3), (3,), False), BITS, BITS) for eps in (0.1, 2.0, 20.0)),
    *(
        Row(Given(UnaryEncoding(eps, 3, one_hot=True), (3,), False), np.eye(3), BITS)
        for eps in (0.1, 9.0)
    ),
    *(
        Row(Given(CodebookEmbedding(eps, 4), (4,), False), np.eye(4), range(4))
        for eps in (0.1, 4.0)
    ),
    *(
        Row(Laplace(epsilon, 2, grid_bits=bits), SIMPLEX, lattice(2, reach), mixture)
        for epsilon, bits, reach, mixture in (
            (12.0, 1, 11, np.full((1, 1, 2), 0.5)),
            (20.0, 1, 8, np.full((1, 1, 2), 0.5)),
            (8.0, 0, 8, SIMPLEX[:2]),
        )
    ),
    Row(BoundedMean(6.0, -1.0, 1.0, grid_bits=3), (-1.0, 0.3, 1.0), range(-60, 60), (0.0,)),
    Row(BoundedMean(6.0, -1.0, 1.0, grid_bits=0), (-1.0, 1.0), range(-10, 12)),
]
#: What an app may hand over in place of a value. Some of it is valid for some mechanisms.
ANYTHING = [
    None,
    math.nan,
    -math.inf,
    -1,
    10**400,
    2.5,
    1j,
    "text",
    object(),
    {"a": 1},
    [[1], [2, 3]],
    np.array([]),
    np.zeros((2, 2, 3)),
    np.full(3, np.nan),
    np.full(5, np.inf),
    np.full((1, 2), np.nan),
    np.full((1, 3), 0.4),
    np.full((1, 4), 1e308),
    np.ma.masked_all(5),
    np.array(["a", "b", "c"]),
    np.array([1.0, None, 2.0], dtype=object),
    np.array("2026-01-01", dtype="datetime64[D]"),
    np.zeros(3, dtype=[("a", "f8")]),
]
_tables: dict[int, np.ndarray] = {}
every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "flower_ldp")


def table(row: Row) -> np.ndarray:
    """The log-probability of each output: a line for each valid input, then None's, then more."""
    if id(row) not in _tables:
        # Some of it stands for the rest where outputs are many, and None where they are more.
        many = len(row.outputs)
        inputs = [*row.inputs, *ANYTHING[:: 1 if many < 250 else 8 if many < 700 else 99]]
        law = [[row.mechanism.log_prob(o, i) for o in row.outputs] for i in inputs]
        _tables[id(row)] = np.array(law)
    return _tables[id(row)]


def neutral_law(row: Row) -> np.ndarray:
    """The log-probability of each output for what cannot be read."""
    return table(row)[len(row.inputs)]


@every_row
def test_probabilities_add_up(row: Row) -> None:
    np.testing.assert_allclose(np.exp(table(row)).sum(axis=1), 1.0, rtol=1e-12)


@every_row
def test_stated_epsilon_is_met_and_tight(row: Row) -> None:
    (spent,) = compose_directly(row.mechanism.events()).values()
    assert spent.delta == 0.0
    found = table(row)
    assert np.ptp(found, axis=0).max() == pytest.approx(spent.epsilon, abs=1e-12)


@every_row
def test_the_neutral_law_is_a_mixture_of_laws_of_valid_inputs(row: Row) -> None:
    mixture = row.inputs if row.mixture is None else row.mixture
    law = np.array([[row.mechanism.log_prob(o, i) for i in mixture] for o in row.outputs])
    np.testing.assert_allclose(np.exp(law).mean(axis=1), np.exp(neutral_law(row)), rtol=1e-11)


def key(report: Any) -> Any:
    if isinstance(report, Selection):
        return report.sign, tuple(report.indices.tolist())
    if isinstance(report, np.ndarray) and report.ndim == 0:
        return report.item()
    return tuple(report.ravel().tolist()) if isinstance(report, np.ndarray) else report


@every_row
def test_the_sampler_follows_the_law_also_of_what_cannot_be_read(row: Row) -> None:
    """Of two outputs with a half each, one that has 0.7 is seen with a probability of 0.98."""
    rng = RandomSource.seeded(2)
    for value, law in ((row.inputs[0], table(row)[0]), (None, neutral_law(row))):
        chances = dict(zip(map(key, row.outputs), np.exp(law).tolist(), strict=True))
        counts = Counter(key(row.mechanism.randomize(value, rng)) for _ in range(300))
        assert set(counts) <= set(chances)
        assert_follows([counts[output] for output in chances], list(chances.values()))


@every_row
def test_every_value_is_answered(row: Row) -> None:
    rng = RandomSource.seeded(3)
    for value in ANYTHING:
        report = row.mechanism.randomize(value, rng)
        assert row.mechanism.log_prob(report, value) > -math.inf
        if isinstance(report, np.ndarray):
            assert report.shape == np.shape(row.outputs[0])


@pytest.mark.parametrize(
    ("mechanism", "name", "unit"),
    [
        (BinaryResponse(0.5), "binary_response", Unit.CLIENT),
        (KaryResponse(0.5, 3), "kary_response", Unit.CLIENT),
        (SubsetSelection(0.5, 3), "subset_selection", Unit.CLIENT),
        (RRWithPrior(0.5, 3), "rr_with_prior", Unit.CLIENT),
        (RROnBins(0.5, GRID, GRID), "rr_on_bins", Unit.LABEL),
        (BinaryResponse(0.5, "label", Unit.LABEL), "label", Unit.LABEL),
        (KaryResponse(0.5, 3, "label", Unit.LABEL), "label", Unit.LABEL),
        (SubsetSelection(0.5, 3, 0, "label", Unit.LABEL), "label", Unit.LABEL),
        (RRWithPrior(0.5, 3, "stage2", Unit.LABEL), "stage2", Unit.LABEL),
        (CodebookResponse(CODES, 0.5), "codebook_response", Unit.CLIENT),
        (Laplace(0.5, 10), "laplace", Unit.CLIENT),
        (BoundedMean(0.5, 0.0, 2.0), "bounded_mean", Unit.CLIENT),
        (ExampleMean(0.5, 91), "example_mean", Unit.EXAMPLE),
        (JointCounts(0.5, (2, 3)), "counts", Unit.EXAMPLE),
        (UnaryEncoding(0.5, 3, one_hot=True), "embedding_dp", Unit.EXAMPLE),
        (CodebookEmbedding(0.5, 3), "codebook_embedding", Unit.EXAMPLE),
        (MagRR(0.5), "magrr", Unit.CLIENT),
        (SignDS(0.5), "signds", Unit.CLIENT),
        (Codeword(0.5), "codeword", Unit.CLIENT),
        (Gaussian(0.5, 0.01), "gaussian", Unit.CLIENT),
        (GaussianMeans(0.5, 0.01, 91), "example_mean", Unit.EXAMPLE),
    ],
)
def test_the_cost_is_one_event_and_parameters_cannot_change(
    mechanism: Any, name: str, unit: Unit
) -> None:
    delta, rho = getattr(mechanism, "delta", 0.0), mechanism.events()[0].rho
    assert (delta > 0) == (rho is not None) == isinstance(mechanism, Gaussian | GaussianMeans)
    assert mechanism.events() == (PrivacyEvent(name, 0.5, delta, unit, rho=rho),)
    with pytest.raises(FrozenInstanceError):
        mechanism.epsilon = 1.0


def test_many_rows_cost_epsilon_each() -> None:
    assert compose(Laplace(4.0, 10, rows=25).events())[Unit.CLIENT].epsilon == 100.0

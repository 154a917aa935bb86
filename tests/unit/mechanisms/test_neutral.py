"""What cannot be read: one row of a report at a time, odd and huge numbers, and the log."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import pytest

from flower_ldp.mechanisms import (
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Gaussian,
    KaryResponse,
    Laplace,
    MagRR,
    RandomSource,
    RROnBins,
    RRWithPrior,
    SignDS,
    SmallTopSetWarning,
    SubsetSelection,
    UnaryEncoding,
)
from flower_ldp.mechanisms.embeddings import double_at_most
from flower_ldp.mechanisms.signds import Selection
from flower_ldp.privacy import as_fraction, double_at_least
from tests.extras import extra

mpmath = extra("mpmath")

pytestmark = pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.SmallTopSetWarning")

D = 60
Answer = Callable[[Any, RandomSource], Any]
#: Mechanisms whose value is a vector or a table, in a public shape.
ANSWERS: dict[str, Answer] = {
    "signds": lambda value, rng: SignDS(1.0, 0.2).randomize(value, rng, D),
    "gaussian": lambda value, rng: Gaussian(1.0, 1e-5).randomize(value, rng, D),
    "laplace": Laplace(1.0, 3, rows=20).randomize,
    "codebook": CodebookResponse(np.eye(3), 1.0, rows=20).randomize,
    "unary": lambda value, rng: UnaryEncoding(1.0, 3).randomize(value, rng, (20, 3)),
    "one-hot": lambda value, rng: UnaryEncoding(1.0, 3, True).randomize(value, rng, (20, 3)),
    "codes": lambda value, rng: CodebookEmbedding(1.0, 3).randomize(value, rng, (20, 3)),
    "mean": BoundedMean(1.0, -1e300, 1e300).randomize,
    "bit": BinaryResponse(1.0).randomize,
    "bits": BinaryResponse(1.0).randomize_array,
    "kary": KaryResponse(1.0, 3).randomize_array,
    "prior": lambda value, rng: RRWithPrior(1.0, 3).randomize_array(value, rng, [3, 2, 1]),
    "subset": SubsetSelection(1.0, 3, 2).randomize_array,
    "bins": RROnBins(1.0, (0, 1, 2), (1, 1, 1)).randomize_array,
    "magrr": MagRR(1.0).randomize,
}
FLAT, TABLE = np.linspace(-1, 1, D), np.linspace(-1, 1, D).reshape(20, 3)


class Hostile:
    """Says that it is an array, and fails when asked for it."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise MemoryError("no array today")

    def __index__(self) -> int:
        raise ZeroDivisionError


def shaped(values: np.ndarray) -> list[np.ndarray]:
    return [values, values.reshape(20, 3), values[::-1], values.reshape(3, 20).T, values[0]]


def signalling(bits: Any) -> np.ndarray:
    """Return signalling NaNs: arithmetic with them is an error even where NaN is none."""
    quiet_off = {2: 0x7C01, 4: 0x7F80_0001, 8: 0x7FF0_0000_0000_0001}[np.dtype(bits).itemsize]
    return np.full(D, quiet_off, dtype=bits).view(f"f{np.dtype(bits).itemsize}")


DEEP: list[Any] = []
for _ in range(70):  # more axes than an array may have
    DEEP = [DEEP]
ODD = [
    DEEP,
    np.full((1,) * 64, None),
    [Hostile(), 1.0],
    [1.0, np.zeros((2, 2)), np.zeros(2)],
    *shaped(signalling(np.uint16)),
    *shaped(signalling(np.uint32)),
    *shaped(signalling(np.uint64)),
    *shaped(np.append(1e308, np.full(D - 1, 5e-324))),
    *shaped(np.append(1.0, np.full(D - 1, 5e-324))),
    *shaped(np.full(D, np.finfo(np.longdouble).smallest_subnormal)),
    *shaped(np.full(D, np.complex128(1 + 2j), dtype=object)),
    *shaped(np.full(D, 1e308)),
    *shaped(np.tile([1e308, -1e308], D // 2)),
    *shaped(np.full(D, 5e-324)),
    *shaped(np.full(D, np.finfo(np.float16).max, dtype=np.float16)),
    *shaped(np.full(D, np.finfo(np.float32).max, dtype=np.float32)),
    *shaped(np.full(D, -(2**63), dtype=np.int64)),
    *shaped(np.full(D, 2**64 - 1, dtype=np.uint64)),
    *shaped(np.full(D, -128, dtype=np.int8)),
    *shaped(np.ones(D, dtype=bool)),
    *shaped(np.ones(D, dtype=">f8")),
    *shaped(np.full(D, np.longdouble("1e4000"))),
    *shaped(np.full(D, 1 + 2j)),
    *shaped(np.array([10**400, None, "x", object()] * (D // 4), dtype=object)),
    *shaped(np.full(D, np.nan, dtype=object)),
    *shaped(np.ma.masked_greater(np.full(D, 7.0), 1)),
    *shaped(np.zeros(D, dtype="timedelta64[s]")),
    *shaped(np.zeros(D, dtype="V3")),
    np.zeros((0, 3)),
    np.zeros(0),
    np.zeros((20, 3, 1)),
    np.zeros((21, 3)),
    np.zeros((20, 2)),
    Hostile(),
    [[1.0, 2.0], [3.0]],
    "text",
    b"\x00",
    10**400,
    float("nan"),
    None,
]


@pytest.mark.parametrize("told", ["warn", "raise"])
@pytest.mark.parametrize("name", ANSWERS)
def test_no_value_raises_or_warns(name: str, told: Literal["warn", "raise"]) -> None:
    rng = RandomSource.seeded(1)
    public = name in ("signds", "gaussian", "laplace", "codebook", "unary", "one-hot", "codes")
    form = np.shape(_plain(ANSWERS[name](None, rng)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SmallTopSetWarning)
        with np.errstate(all=told):  # an app may have said what numpy does about errors
            for value in ODD:
                report = _plain(ANSWERS[name](value, rng))
                assert report.dtype.kind in "iu"
                assert not public or report.shape == form


def test_selection_and_bit_of_one_update_cost_their_sum_with_invalid_updates_too() -> None:
    """The whole law of (sign, dimensions, bit), over 60 updates and the neutral one."""
    selection, magnitude, threshold = SignDS(1.7, 0.25, dim_out=2), MagRR(0.9), 1e-3
    rng = np.random.default_rng(5)
    updates = rng.choice([-1e-2, -1e-3, 0.0, 1e-5, 1e-3, 1e30], (60, 4))
    selections = [
        Selection(np.array(p), sign) for p in combinations(range(4), 2) for sign in (-1, 1)
    ]

    def law(told: Selection, bit: int, update: np.ndarray | None) -> float:
        below = None if update is None else (told.sign * update).max() < threshold
        return selection.log_prob(told, update, 4) + magnitude.log_prob(bit, below)

    outcomes = list(product(selections, (0, 1)))
    laws = np.array([[law(*told, update) for told in outcomes] for update in (None, *updates)])
    assert np.exp(laws).sum(axis=1) == pytest.approx(1.0)
    assert np.ptp(laws, axis=0).max() == pytest.approx(2.6, abs=1e-12)  # tight, for valid pairs
    assert np.abs(laws[1:] - laws[0]).max() < 1.9


def test_no_report_repeats_what_its_plan_has_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SignDS(1.0, 0.2).randomize(FLAT, RandomSource.seeded(1))


def test_missing_bits_are_filled_in_whatever_order_an_array_lies_in() -> None:
    value = np.asfortranarray(np.where(np.arange(12).reshape(4, 3) % 5, 1.0, np.nan))
    for epsilon in (None, 1.0):
        bits = UnaryEncoding(epsilon, 3).randomize(value, RandomSource.seeded(1))
        assert np.isin(bits, (0, 1)).all()


def _plain(report: Any) -> np.ndarray:
    return np.asarray(report.indices if isinstance(report, Selection) else report)


@pytest.mark.parametrize("name", ANSWERS)
def test_the_log_has_the_reason_and_no_value(name: str, caplog: pytest.LogCaptureFixture) -> None:
    secret = np.full((20, 3), 54321.5, dtype=complex)
    with caplog.at_level(logging.WARNING, "flower_ldp"):
        ANSWERS[name](secret, RandomSource.seeded(1))
    assert caplog.messages
    assert all("neutral" in text and "54321" not in text for text in caplog.messages)


def test_what_can_be_read_leaves_no_word_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rng, simplex = RandomSource.seeded(1), np.tile(np.eye(3), (7, 1))[:20]
    with caplog.at_level(logging.WARNING, "flower_ldp"):
        for name, answer in ANSWERS.items():
            values = {"signds": FLAT, "gaussian": FLAT, "unary": TABLE, "codes": TABLE}
            scalars = {"mean": 1.0, "bit": 1, "magrr": True, "bits": [1, 0], "kary": [2, 0]}
            scalars["subset"] = scalars["bins"] = [2, 0]
            answer({**values, **scalars, "prior": [0, 2]}.get(name, simplex), rng)
    assert not caplog.messages


#: With one of these NumPy makes an array of texts, complex numbers or objects, or none at all.
NO_NUMBERS: list[Any] = ["", "1", b"x", 1j, [1], {}, None, np.array([1, 2]), np.datetime64(0, "s")]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 1e308, *NO_NUMBERS], ids=repr)
def test_one_bad_row_leaves_the_other_rows_alone(bad: Any) -> None:
    rng, rows = RandomSource.seeded(1), np.tile(np.eye(3), (7, 1))[:20]
    spoiled: list[list[Any]] = rows.tolist()
    spoiled[4][1] = bad
    others = np.arange(20) != 4
    for found in (
        CodebookResponse(np.eye(3), 100.0, rows=20).randomize(spoiled, rng),
        CodebookEmbedding(100.0, 3).randomize(spoiled, rng, (20, 3)),
    ):
        assert (found == rows.argmax(axis=1))[others].all()
    laplace = Laplace(100.0, 3, rows=20)
    found = laplace.estimate(laplace.randomize(spoiled, rng))
    # 30 scales of the noise
    assert np.abs(found - rows)[others].max() < 0.6
    assert np.abs(found[4] - 1 / 3).max() < 0.6
    for one_hot in (False, True):
        bits = UnaryEncoding(100.0, 3, one_hot)
        assert (bits.randomize(spoiled, rng, (20, 3)) == rows)[others].all()
        assert (bits.randomize(np.where(rows > 0, 1, -1.0), rng) == rows).all()


def test_a_record_of_large_integers_is_read_alike_beside_any_other() -> None:
    mechanism = CodebookEmbedding(100.0, 2)
    large = [2**53, 2**53 + 1]  # the same double
    first, second = (mechanism.encode([large, [1, one]], (2, 2))[0] for one in (0, 0.5))
    assert first == second


def test_one_bad_label_leaves_the_other_labels_alone() -> None:
    rng = RandomSource.seeded(1)
    for labels in (
        [1, 2, 7, 0],
        [1.0, 2.0, math.nan, 0.0],
        np.array([1, 2.0, None, 0], dtype=object),
        np.array([1, 2, 2**64 - 1, 0], dtype=np.uint64),
        *([1, 2, bad, 0] for bad in NO_NUMBERS),
    ):
        for found in (
            KaryResponse(100.0, 3).randomize_array(labels, rng),
            RRWithPrior(100.0, 3).randomize_array(labels, rng, [1, 1, 1]),
        ):
            assert found[[0, 1, 3]].tolist() == [1, 2, 0]
            assert 0 <= found[2] < 3
    # Priors are public and tell how many labels there are.
    for short in ([1, 2], None, np.zeros((5, 1))):
        assert RRWithPrior(1.0, 3).randomize_array(short, rng, np.ones((5, 3))).shape == (5,)


def test_the_neutral_row_of_many_classes_favours_none_of_them() -> None:
    """With more classes than steps the centre rounds to zeros and a few ones, at any places."""
    rng, draws = RandomSource.seeded(1), 1_000
    coarse = Laplace(100.0, 64, grid_bits=4)
    mean = np.mean([coarse.randomize(None, rng)[0] for _ in range(draws)], axis=0)
    deviation = math.sqrt(coarse.noise.standard_deviation**2 + 0.25 * 0.75)
    assert np.abs(mean - 0.25).max() < 6 * deviation / math.sqrt(draws)


@pytest.mark.parametrize("count", [2, 5, 2_000])
def test_neutral_rows_have_their_remainder_at_places_of_their_own(count: int) -> None:
    """Few rows are made one by one, many at once: 16 = 5 * 3 + 1 and 64 = 6 * 10 + 4."""
    for classes, bits, missing in ((5, 4, 1), (10, 6, 4), (4, 4, 0)):
        mechanism = Laplace(8.0, classes, count, grid_bits=bits)
        rows = mechanism._neutral_rows(count, RandomSource.seeded(count))
        assert (rows.sum(axis=1) == 1 << bits).all()
        assert set(np.unique(rows - (1 << bits) // classes)) <= {0, 1}
        if count == 2_000 and missing:
            # Each set of places is as likely as any other: chi-square at about 1e-6.
            _, seen = np.unique(rows, axis=0, return_counts=True)
            ways = math.comb(classes, missing)
            excess = ((seen - count / ways) ** 2).sum() / (count / ways)
            excess += (ways - len(seen)) * count / ways
            assert excess < ways - 1 + 5 * math.sqrt(2 * (ways - 1)) + 25


def test_neutral_rows_take_no_longer_than_others_by_far() -> None:
    """A server that asks for many rows must not see by the time how many were neutral."""
    mechanism = Laplace(1.0, 3, 1 << 15, grid_bits=20)
    honest = np.full((1 << 15, 3), 1 / 3)
    took = []
    for value in (honest, None):
        began = time.process_time()
        mechanism.randomize(value, RandomSource.seeded(1))
        took.append(time.process_time() - began)
    assert took[1] < 5 * took[0]


def test_what_is_no_number_counts_as_the_middle_and_infinities_as_the_bounds() -> None:
    mechanism, rng = BoundedMean(100.0, 1.0, 5.0), RandomSource.seeded(1)
    for value, centre in ((math.nan, 3.0), ("7", 3.0), (math.inf, 5.0), (-math.inf, 1.0)):
        report = np.array([mechanism.randomize(value, rng)])
        # 30 scales of the noise
        assert mechanism.estimate(report) == pytest.approx([centre], abs=30 * 4 / 100)


# Half of epsilon: two flips together never cost more than epsilon.

EPSILONS = [*np.random.default_rng(7).uniform(1e-3, 100, 400), 5e-324, 0.1, 0.3, 1.1, 17.3]


@pytest.mark.parametrize("one_hot", [False, True])
def test_the_odds_of_all_bits_never_exceed_the_stated_epsilon(one_hot: bool) -> None:
    wrong = 0
    for epsilon in map(float, EPSILONS):
        wrong += 2 * as_fraction(epsilon / 2) > as_fraction(epsilon)
        bits = 2 if one_hot else 7
        mechanism = UnaryEncoding(epsilon, bits, one_hot)
        half = as_fraction(mechanism.bit_epsilon)
        assert bits * half <= as_fraction(mechanism.record_epsilon)
        assert 2 * half <= as_fraction(epsilon) <= 2 * half * (1 + Fraction(1, 2**51)) + 10**-320
    assert wrong > 10, "plain halves would pass this test"


@pytest.mark.parametrize("epsilon", [1.1, 17.3, 0.3, 0.007])
def test_two_flips_as_built_stay_below_e_to_the_epsilon(epsilon: float) -> None:
    response = BinaryResponse(UnaryEncoding(epsilon, 2, True).bit_epsilon)
    flip = Fraction(response._flip_weight, 2**256)
    odds = ((1 - flip) / flip) ** 2
    with mpmath.workdps(150):
        bound = mpmath.exp(mpmath.mpf(repr(epsilon)))
        found = mpmath.mpf(odds.numerator) / odds.denominator
        assert bound * (1 - mpmath.mpf(10) ** -13) < found <= bound


def test_doubles_are_rounded_by_their_printed_decimals() -> None:
    for exact in (Fraction(1, 3), Fraction(1, 10), Fraction(10**20 + 1, 7), Fraction(1, 2**1074)):
        low, high = double_at_most(exact), double_at_least(exact)
        assert as_fraction(low) <= exact <= as_fraction(high)
        assert high in (low, math.nextafter(low, math.inf))

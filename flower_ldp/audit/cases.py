"""The audit cases of the shipped mechanisms, by name.

An update mechanism brings its own contrasts; the cases here go beyond them, or are for other
mechanisms: one value against another, by the exact log-ratio of the reports. Cases of sums change
one example among others that stay.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.audit.auditing import DIFFERING, Case, Draw, claim, of_updates, titled
from flower_ldp.mechanisms import (
    UPDATE_MECHANISMS,
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Codeword,
    ExampleMean,
    Gaussian,
    GaussianMeans,
    JointCounts,
    KaryResponse,
    Laplace,
    MagRR,
    RRWithPrior,
    SignDS,
    SubsetSelection,
    UnaryEncoding,
)
from flower_ldp.mechanisms.base import Contrast, UpdateMechanism
from flower_ldp.mechanisms.laplace import IntegerNoise
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.signds_round import Report, SignDSRound
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose

Pair = tuple[Any, Any]
Floats = NDArray[np.float64]
Update = NDArray[np.float32]

#: Categories, classes or codes of a shipped mechanism.
CLASSES = 10
#: Certain rows, and hesitant ones, of three classes.
CODES = np.concatenate([np.eye(3), 0.5 * np.eye(3) + 0.5 / 3])
#: Half of the classes are likely: RRWithPrior never reports the others below an epsilon of 4.5.
PRIOR = (0.19,) * 5 + (0.01,) * 5
#: Bits of an embedding: few, so that the rarest report is not too rare.
_BITS = 4
_OPPOSITE = [
    (sign * one, -sign * one) for one in (np.ones(_BITS), np.array([1, -1] * 2)) for sign in (1, -1)
]
#: Entries of an update with normal noise, which is alike in all directions.
_FEW_ENTRIES = 8
#: Codes of a seed: few, so that reports are alike, and each is looked up once.
_CODES = 4
#: Share of the smaller part of what is audited together; a power of two, so that parts add up.
_SHARE = 0.25


@dataclass(frozen=True)
class Settings:
    """Parameters of the command line; a case takes those that it knows.

    Parameters
    ----------
    epsilon : float
        Claim per release.
    dimension : int
        d, entries of an update.
    k : float
        SignDS: fraction of dimensions that count as largest.
    dim_out : int
        SignDS: reported dimensions; 0 to choose.
    delta : float
        Gaussian and GaussianMeans: claim per release. The others claim none.
    """

    epsilon: float = 1.0
    dimension: int = 1_000
    k: float = 0.2
    dim_out: int = 0
    delta: float = 0.01


def of_values(
    name: str, mechanism: Any, pairs: Sequence[Pair], draws: int, checks: Sequence[str]
) -> Case:
    """Return the case of a mechanism whose reports are numbers, or rows of numbers.

    Parameters
    ----------
    name : str
        Of the case.
    mechanism : Mechanism
        With events, ``randomize`` and ``log_prob``. One that needs a prior gets :data:`PRIOR`.
    pairs : sequence of pairs
        Neighbouring values, also for the check on repeated noise.
    draws : int
        Under each input.
    checks : sequence of str
        Names of the checks of the first pairs.
    """
    more = (PRIOR,) if getattr(mechanism, "needs_prior", False) else ()

    def contrast(check: str, pair: Pair) -> Contrast:
        if isinstance(mechanism, IntegerNoise):
            return Contrast(check, pair, _noise_ratio(mechanism, pair), "log-ratio / epsilon")
        return Contrast.exact(check, pair, lambda one, value: mechanism.log_prob(one, value, *more))

    claimed = claim(mechanism.events())
    return Case(
        titled(name, mechanism),
        claimed.epsilon,
        lambda value, rng: mechanism.randomize(value, rng, *more),
        tuple(map(contrast, checks, pairs)),
        pairs,
        draws,
        delta=claimed.delta,
        draw_many=_many(mechanism, *more),
        differing=_differing(mechanism),
    )


def _differing(mechanism: Any) -> float:
    """Return the share of noise that gives different reports on two values."""
    response = getattr(mechanism, "response", mechanism)
    if not isinstance(response, (KaryResponse, SubsetSelection)):
        return DIFFERING
    others, size = response.categories - 1, getattr(response, "size", 1)
    # Sets of the same others hold both values or neither; of one value alone, nothing is shared.
    alone = (response.categories - size) / others
    return response.keep_probability * -math.expm1(-response.epsilon) * alone


def _many(mechanism: Any, *more: Any) -> Draw | None:
    """Return a function that draws many reports in one call, if the mechanism has one."""
    if hasattr(mechanism, "randomize_array"):
        return lambda value, count, rng: mechanism.randomize_array(
            np.full(count, value), rng, *more
        )
    if hasattr(mechanism, "rows"):  # of its clients' rows as many as are wanted
        batch = lru_cache(maxsize=2)(lambda count: replace(mechanism, rows=count))
        return lambda row, count, rng: (
            batch(count).randomize(np.repeat(row, count, axis=0), rng).reshape(count, -1)
        )
    if hasattr(mechanism, "width"):  # of records
        return lambda record, count, rng: mechanism.randomize(np.tile(record, (count, 1)), rng)
    return None


def _noise_ratio(mechanism: Any, pair: Pair) -> Callable[[Sequence[Any]], Floats]:
    """Return the log-ratio of reports over two sums, as a part of epsilon."""
    total = getattr(mechanism, "total", lambda value: mechanism.steps * np.asarray(value))
    one, other = map(total, pair)

    def scores(reports: Sequence[Any]) -> Floats:
        found = np.asarray(reports).reshape(len(reports), -1)
        near, far = (np.abs(found - centre).sum(axis=1) for centre in (one, other))
        return np.asarray((far - near) / mechanism.sensitivity)

    return scores


def _ring(values: Iterable[Any]) -> list[Pair]:
    """Return each value with the next, and the last with the first."""
    given = list(values)
    return list(zip(given, given[1:] + given[:1], strict=True))


#: Says what events come to in all, for each unit.
Account = Callable[[Iterable[PrivacyEvent]], Mapping[Unit, PrivacySpent]]


def nested_units(
    metric: BoundedMean, embedding: CodebookEmbedding, account: Account = compose
) -> Case:
    """Return the case of a client whose data is one example, released in two ways.

    ``metric`` concerns all of the client's data, ``embedding`` the example's code; ``account``
    states the claim for an example.
    """
    codes, ends = np.eye(embedding.codes), (metric.lower, metric.upper)

    def draw(example: int, rng: RandomSource) -> tuple[int, int]:
        of_client = metric.randomize(ends[example], rng)
        return int(of_client), int(embedding.randomize(codes[example], rng))

    def log_prob(report: tuple[int, int], example: int) -> float:
        of_client = metric.log_prob(report[0], ends[example])
        return of_client + embedding.log_prob(report[1], codes[example])

    return Case(
        f"account (client {metric.epsilon:g}, example {embedding.epsilon:g})",
        account((*metric.events(), *embedding.events()))[Unit.EXAMPLE].epsilon,
        draw,
        (Contrast.exact("both releases, one example", (0, 1), log_prob),),
        ((0, 1), (1, 0)),
        draws=10_000,
    )


#: The shortest vector whose top set is not found on a copy.
LONG = (1 << 17) + 1
# Which entries are looked at first: one of each of so many equal ranges, shifted.
_PROBES = 1 << 13
_SHIFT = 40503


def probed_positions(dimension: int) -> NDArray[np.int64]:
    """Return the public positions that the search for the top set samples first."""
    ordinal = np.arange(_PROBES, dtype=np.int64)
    shift = ((ordinal * _SHIFT & 0xFFFF) * (dimension // _PROBES)) >> 16
    return ordinal * dimension // _PROBES + shift


def mass_at_probes(dimension: int, zeros: int) -> Update:
    """Return an update with zeros, first at the probes, and distinct negative entries elsewhere."""
    if not _PROBES <= zeros < dimension:
        raise ValueError(f"zeros must be in [{_PROBES}, {dimension}), got {zeros}")
    update = -np.arange(1, dimension + 1, dtype=np.float32)
    update[probed_positions(dimension)] = 0.0
    more = zeros - np.count_nonzero(update == 0.0)
    update[np.flatnonzero(update)[:more]] = 0.0
    return update


def signds_long(selection: SignDS, dimension: int = LONG) -> Case:
    """Return the case of SignDS on long vectors with about as many zeros as top entries.

    Long vectors have their top set found by a sample at public positions, and these inputs have
    masses of equal entries there. Each is tried against its negative. A report's score is the
    place, in the first vector's own order by a stable sort, of its v_th-th best dimension: below K
    for exactly the favoured reports of a correct sampler, and elsewhere for a set of another size.
    """
    plan = selection.plan(dimension)
    zeros = {
        "one zero fewer than the top set": plan.top_size - 1,
        "as many zeros": plan.top_size,
        "one zero more": plan.top_size + 1,
    }

    def contrast(check: str, update: Update) -> Contrast:
        places = {sign: ranks(update, sign) for sign in (-1, 1)}

        def place(reports: Sequence[Report]) -> NDArray[np.int64]:
            found = np.stack([np.sort(places[one.sign][one.indices]) for one, _ in reports])
            return np.asarray(found[:, max(plan.threshold, 1) - 1])

        return Contrast(check, (update, -update), place, "place of the v_th-th best")

    contrasts = tuple(
        contrast(check, mass_at_probes(dimension, count)) for check, count in zeros.items()
    )
    pair = contrasts[0].pair
    case = of_updates(SignDSRound(selection), dimension, 1_000)
    return replace(
        case,
        mechanism=f"signds-long{case.mechanism.removeprefix('signds')}",
        contrasts=contrasts,
        reuse_pairs=[pair, pair[::-1]],
    )


def ranks(update: Update, sign: int) -> NDArray[np.int64]:
    """Return each entry's place in the order of ``sign * update``, the first position among equals.

    The top set of K entries is, by definition, those with a place below K.
    """
    places = np.empty(len(update), dtype=np.int64)
    places[np.argsort(-sign * update, kind="stable")] = np.arange(len(update))
    return places


def round_of(settings: Settings) -> tuple[SignDS, MagRR]:
    """Return the two parts of a round, whose sum is the claim."""
    bit = _SHARE * settings.epsilon
    return replace(_selection(settings), epsilon=settings.epsilon - bit), MagRR(bit)


def _selection(settings: Settings) -> SignDS:
    return SignDS(settings.epsilon, settings.k, dim_out=settings.dim_out)


def _signds_magrr(settings: Settings) -> Case:
    selection, magnitude = round_of(settings)
    case = of_updates(SignDSRound(selection, magnitude.epsilon, 1.0), settings.dimension)
    parts = f"{selection.epsilon:g} + {magnitude.epsilon:g}, d {settings.dimension}"
    return replace(case, mechanism=f"signds-magrr (epsilon {parts})")


def _codeword(settings: Settings, blocks: int = 1) -> Case:
    mechanism = Codeword(settings.epsilon, rotations=_CODES, blocks=blocks)
    return of_updates(mechanism.sized(settings.dimension), settings.dimension)


def _account(settings: Settings) -> Case:
    of_example = _SHARE * settings.epsilon
    metric = BoundedMean(settings.epsilon - of_example, 0.0, 1.0)
    return nested_units(metric, CodebookEmbedding(of_example, CLASSES))


def _in_blocks(settings: Settings) -> Case:
    """Return the case of codewords of about ten blocks, none of which is empty."""
    size = math.ceil(settings.dimension / 10)
    return _codeword(settings, math.ceil(settings.dimension / size))


def _row(
    make: Callable[[float], Any], pairs: Sequence[Pair], draws: int, *checks: str
) -> Callable[[str, Settings], Case]:
    """Return a factory of a case, by its name."""
    return lambda name, settings: of_values(name, make(settings.epsilon), pairs, draws, checks)


_VALUES = {
    "binary-response": _row(BinaryResponse, _ring((0, 1)), 1_000_000, "one release"),
    "kary-response": _row(
        lambda e: KaryResponse(e, CLASSES), _ring(range(CLASSES)), 1_000_000, "two categories"
    ),
    "subset-selection": _row(
        lambda e: SubsetSelection(e, CLASSES), _ring(range(CLASSES)), 500_000, "two categories"
    ),
    # The two likeliest, and the likeliest against one that may never be reported.
    "rr-with-prior": _row(
        lambda e: RRWithPrior(e, len(PRIOR)),
        [(0, 1), (0, 9), (1, 0), (9, 0)],
        200_000,
        "two likely",
        "likely, unlikely",
    ),
    "codebook-response": _row(
        lambda e: CodebookResponse(CODES, e), _ring(CODES[:, None]), 200_000, "two codes"
    ),
    "unary-encoding": _row(
        lambda e: UnaryEncoding(2 * e / _BITS, _BITS), _OPPOSITE, 200_000, "opposite records"
    ),
    "unary-one-hot": _row(
        lambda e: UnaryEncoding(e, _BITS, one_hot=True),
        _ring(2.0 * np.eye(_BITS) - 1.0),
        200_000,
        "two one-hot records",
    ),
    "codebook-embedding": _row(
        lambda e: CodebookEmbedding(e, CLASSES), _ring(np.eye(CLASSES)), 200_000, "two codes"
    ),
    "laplace": _row(
        lambda e: Laplace(e, CLASSES), _ring(np.eye(CLASSES)[:, None]), 200_000, "two one-hot rows"
    ),
    "bounded-mean": _row(
        lambda e: BoundedMean(e, 0.0, 1.0), _ring((0.0, 1.0)), 20_000, "the two bounds"
    ),
    "example-mean": _row(
        lambda e: ExampleMean(e, 4),
        [([one, 1, 0, 0], [1, 1, 0, 0]) for one in (0, None)],
        20_000,
        "one example at the two bounds",
        "one example without a number",
    ),
    "magrr": _row(MagRR, _ring((False, True)), 200_000, "one release"),
}


def _gaussian_means(settings: Settings) -> Case:
    mechanism = GaussianMeans(settings.epsilon, settings.delta, 1, [(0.0, 1.0)] * 3)
    pairs = [([[one]] * 3, [[1]] * 3) for one in (0, None)]
    checks = "one example at opposite corners", "one example without a number"
    return of_values("gaussian-means", mechanism, pairs, 20_000, checks)


def _counts(name: str, delta: float, settings: Settings) -> Case:
    mechanism = JointCounts(settings.epsilon, (3,) * 6, delta)
    places = np.array([[0] * 6, [1] * 6, [2] * 6])
    given = places[[0, 2]], np.arange(2)
    pairs = [(given, (places[[1, 2]], np.arange(2))), (given, (places[[2]], np.arange(1)))]
    checks = "one row leaves its cell in each table", "one example without rows"
    return of_values(name, mechanism, pairs, 20_000, checks)


def _of_epsilon(mechanism: Callable[..., UpdateMechanism], settings: Settings) -> Case:
    return of_updates(mechanism(settings.epsilon), _FEW_ENTRIES)


#: Every mechanism that the command line can audit, by name. One for updates that needs no more than
#: an epsilon is found where it is listed.
BUILDERS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {
        **{name: partial(row, name) for name, row in _VALUES.items()},
        **{kind.name.replace("_", "-"): partial(_of_epsilon, kind) for kind in UPDATE_MECHANISMS},
        "account": _account,
        "gaussian": lambda s: of_updates(Gaussian(s.epsilon, s.delta), _FEW_ENTRIES),
        "gaussian-means": _gaussian_means,
        "joint-counts": lambda s: _counts("joint-counts", 0.0, s),
        "joint-counts-normal": lambda s: _counts("joint-counts-normal", s.delta, s),
        "signds": lambda s: of_updates(SignDSRound(_selection(s)), s.dimension),
        "signds-magrr": _signds_magrr,
        "signds-long": lambda s: signds_long(_selection(s)),
        "codeword": _codeword,
        "codeword-blocks": _in_blocks,
    }
)

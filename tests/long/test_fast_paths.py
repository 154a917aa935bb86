"""Ways that only large inputs take, at sizes that take them, against the plain definition.

Small inputs never see a second block, a table's undecided entry or the largest batch. Each test
here compares with a definition that shares no code with the way, and shows that the way was
taken: it fails where the sizes no longer reach it. Long top sets have test_topk_masses.py.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flower_ldp.labels import clusters
from flower_ldp.mechanisms import (
    KaryResponse,
    RandomSource,
    RRWithPrior,
    SignDS,
    codebook,
    gaussian,
    integer_noise,
    signds,
    signds_size,
    topk,
)
from flower_ldp.mechanisms import random as exact
from flower_ldp.mechanisms import subset_code as subset
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.mechanisms.random import INDEX_BITS, WEIGHT_BITS, ExactLookup
from flower_ldp.privacy import as_fraction
from flower_ldp.strategies import evaluation_scores as scores
from tests.unit.mechanisms.topk_cases import DTYPES
from tests.unit.strategies.test_scores import of_ever_more_copies


class Recorder(RandomSource):
    """Keeps what it hands out, in order, so that a draw can be worked out again."""

    def __init__(self, seed: int) -> None:
        self._rekey(seed.to_bytes(32, "big"))
        self.is_seeded = True
        self.told: list[tuple[str, Any]] = []

    def words(self, size: int) -> NDArray[np.uint64]:
        start = len(self.told)
        found = super().words(size)
        self.told[start:] = [("words", found)]
        return found

    def integers(self, high: int, size: int) -> NDArray[np.int64]:
        start = len(self.told)
        found = super().integers(high, size)
        self.told[start:] = [("integers", found)]
        return found

    def random_bytes(self, n: int) -> bytes:
        found = super().random_bytes(n)
        self.told.append(("bytes", found))
        return found

    def taken(self, kind: str) -> list[Any]:
        return [what for name, what in self.told if name == kind]


# Blocks of a vector


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_the_vector(dtype: type[np.floating[Any]]) -> None:
    values = np.random.default_rng(1).standard_normal(600_011).astype(dtype)
    wide = np.zeros((len(values), 2), dtype=dtype)
    wide[:, 1] = values
    for given in (values, wide[:, 1], values[::-1].copy()[::-1], values.byteswap().view(
        values.dtype.newbyteorder())):  # fmt: skip
        for start, stop in ((0, None), (5, 599_999), (131_071, 131_072), (7, 7)):
            pieces, offsets = [], []
            for offset, block, mask in topk.blocks(given, start, stop):
                assert len(mask) == len(block)
                assert block.dtype.isnative
                assert block.dtype.itemsize == max(4, values.itemsize)
                offsets.append(offset)
                pieces.append(block.copy())
            found = np.concatenate([np.empty(0, dtype=dtype), *pieces])
            np.testing.assert_array_equal(found, values[start:stop])
            assert offsets == [start + sum(map(len, pieces[:i])) for i in range(len(pieces))]
        assert len(list(topk.blocks(given))) > 4
    assert len(values) > 4 * topk._BLOCK


# Subsets


def test_a_subset_of_many_is_the_first_distinct_of_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exact, "_LARGEST_BATCH", 1 << 14)
    high, count = 34_375, 15_625
    rng = Recorder(1)
    found = exact.uniform_subset(rng, high, count)
    batches = rng.taken("integers")
    assert len(batches) > 1
    assert len(batches[0]) == exact._LARGEST_BATCH
    stream = np.concatenate(batches)
    first = np.full(high, len(stream))
    first[stream[::-1]] = np.arange(len(stream))[::-1]  # of equal places the last one stays
    last_of_all = np.sort(first)[count - 1]
    np.testing.assert_array_equal(found, np.flatnonzero(first <= last_of_all))


def test_rare_members_are_the_first_of_a_stream_in_largest_batches() -> None:
    high, side = 40_000_000, 100
    rng = Recorder(2)
    found, others = exact.first_distinct(
        rng, high, (6, 4), (side, high - side), lambda indices: indices < side
    )
    batches = rng.taken("integers")
    assert len(batches) > 1
    assert len(batches[0]) == exact._LARGEST_BATCH
    stream = np.concatenate(batches)
    assert found.tolist() == list(dict.fromkeys(stream[stream < side].tolist()))[:6]
    assert others.tolist() == list(dict.fromkeys(stream[stream >= side][:100].tolist()))[:4]


# Noise, whose first 16 bits answer nearly always


def piece(lookup: ExactLookup, number: int) -> int:
    """Return the piece that a 256-bit number falls into, by integers."""
    return bisect_right(list(accumulate(lookup.weights)), number)


def pieces(lookup: ExactLookup) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first and the last piece of numbers with each of the 2^16 first bits."""
    ends = list(accumulate(lookup.weights))
    rest = WEIGHT_BITS - INDEX_BITS
    first = [bisect_right(ends, index << rest) for index in range(1 << INDEX_BITS)]
    last = [bisect_right(ends, ((index + 1) << rest) - 1) for index in range(1 << INDEX_BITS)]
    return np.array(first), np.array(last)


def indices_of(words: NDArray[np.uint64], count: int) -> NDArray[np.uint16]:
    return words.view(np.uint16)[:count]


@pytest.mark.parametrize("rate", [0.7, 0.004, 2e-7])
def test_laplace_noise_of_many_blocks_is_what_its_bits_say(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decided draws are the values of their pieces; the others lie between two pieces."""
    law, rng = DiscreteLaplace(as_fraction(rate)), Recorder(3)
    settled: list[int] = []
    settle = DiscreteLaplace._settle

    def spy(self: DiscreteLaplace, indices: Any, source: RandomSource) -> Any:
        settled.append(indices.shape[1])
        return settle(self, indices, source)

    monkeypatch.setattr(DiscreteLaplace, "_settle", spy)
    size = 2 * integer_noise._BLOCK + 12_345
    noise = law.sample(size, rng)
    laws = (law._high, *law._digits)
    low, high = zip(*map(pieces, laws), strict=True)
    told = rng.taken("words")
    open_draws = 0
    for start in range(0, size, integer_noise._BLOCK):
        count = min(integer_noise._BLOCK, size - start)
        words = told.pop(0)
        indices = indices_of(words, count * len(laws)).reshape(len(laws), count)
        ends = [
            np.bitwise_xor.reduce(
                [of[side[i][index]] for i, (of, index) in enumerate(
                    zip(law._values, indices, strict=True))]
            )
            for side in (low, high)
        ]  # fmt: skip
        decided = np.logical_and.reduce(
            [low[i][index] == high[i][index] for i, index in enumerate(indices)]
        )
        np.testing.assert_array_equal(noise[start : start + count][decided], ends[0][decided])
        assert settled[start // integer_noise._BLOCK] == (~decided).sum()
        open_draws += int((~decided).sum())
        del told[: len(laws)]  # further bits of those that are open
    assert not told
    assert open_draws > 100


def test_normal_noise_of_many_blocks_is_what_its_bits_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws but the doubtful: cell, first bits of w and sign stand in the words."""
    asked: Counter[bool] = Counter()
    is_kept = integer_noise.is_kept

    def spy(*arguments: Any) -> bool:
        kept = is_kept(*arguments)
        asked[kept] += 1
        return kept

    monkeypatch.setattr(integer_noise, "is_kept", spy)
    rng, size = Recorder(4), 3 * integer_noise._NORMAL_BLOCK + 777
    noise = integer_noise.normal(size, rng)
    assert asked[False] > 20
    low, high = pieces(integer_noise.coarse_law())
    told, wrong = rng.taken("words"), 0
    for start in range(0, size, integer_noise._NORMAL_BLOCK):
        count = min(integer_noise._NORMAL_BLOCK, size - start)
        index = indices_of(told.pop(0), count)
        further = told.pop(0)
        assert len(further) == (low[index] != high[index]).sum()
        words = told.pop(0).tolist()
        part = noise[start : start + count]
        for i, word in enumerate(words):
            fine, negative = (word >> 39) & 0xFFFFFF, word >> 63
            found = ~int(part[i]) if negative else int(part[i])
            cells = range(int(low[index[i]]), int(high[index[i]]) + 1)
            wrong += found & 0xFFFFFF != fine or found >> 24 not in cells
    # Those that were refused, and drawn again from what follows, are the only others.
    assert wrong <= asked[False]
    assert wrong >= asked[False] - 3
    assert told


# Categories, in blocks


def plain_uniform(ends: list[int], told: list[Any]) -> list[int]:
    """Return uniform integers from 32-bit numbers: multiply, and draw again below the surplus."""
    found, missing = [0] * len(ends), list(range(len(ends)))
    while missing:
        numbers = np.frombuffer(told.pop(0), dtype="<u4").tolist()
        again = []
        for i, number in zip(missing, numbers, strict=True):
            found[i], rest = divmod(number * ends[i], 2**32)
            if rest < 2**32 % ends[i]:
                again.append(i)
        missing = again
    return found


@pytest.mark.parametrize("categories", [2, 10, 3 * 2**29])
def test_kary_responses_of_many_blocks_are_what_their_bits_say(categories: int) -> None:
    mechanism, rng = KaryResponse(1.5, categories), Recorder(5)
    values = np.random.default_rng(1).integers(0, categories, 3 * exact.BLOCK + 99)
    reports = mechanism.randomize_array(values, rng)
    heads = np.concatenate(rng.taken("words"))
    assert len(rng.taken("words")) == 4
    assert len(heads) == len(values)
    told, expected = rng.taken("bytes"), list[int]()
    limit = mechanism._truth_weight
    for start in range(0, len(values), exact.BLOCK):
        part = values[start : start + exact.BLOCK].tolist()
        others = plain_uniform([categories] * len(part), told)
        coins = heads[start : start + exact.BLOCK].tolist()
        expected += [
            value if toss << 192 < limit else other
            for value, toss, other in zip(part, coins, others, strict=True)
        ]
    assert reports.tolist() == expected


def test_responses_with_priors_of_many_blocks_are_what_their_bits_say() -> None:
    """The report, and the categories it is among, worked out for one value at a time."""
    k, epsilon, rng = 5, 0.8, Recorder(6)
    mechanism, size = RRWithPrior(epsilon, k), 2 * exact.BLOCK + 50
    data = np.random.default_rng(2)
    values, priors = data.integers(0, k, size), data.dirichlet(np.full(k, 0.3), size)
    reports = mechanism.randomize_array(values, rng, priors)
    coins = np.concatenate(rng.taken("words")).tolist()
    assert len(rng.taken("words")) == 3
    chosen = []
    for row in priors.tolist():
        order = sorted(range(k), key=lambda category: -row[category])
        worth = [
            math.fsum(row[i] for i in order[:j]) / (math.exp(epsilon) + j - 1)
            for j in range(1, k + 1)
        ]
        chosen.append(order[: worth.index(max(worth)) + 1])
    assert len({len(members) for members in chosen}) == k
    told, expected = rng.taken("bytes"), list[int]()
    for start in range(0, size, exact.BLOCK):
        part = slice(start, start + exact.BLOCK)
        others = plain_uniform([len(members) for members in chosen[part]], told)
        for value, members, toss, other in zip(
            values[part].tolist(), chosen[part], coins[part], others, strict=True
        ):
            limit = mechanism._truth_weights[len(members) - 1]
            kept = toss << 192 < limit and value in members
            expected.append(value if kept else members[other])
    assert reports.tolist() == expected


# Sums and distances in pieces


def test_squared_lengths_of_the_longest_pieces_do_not_overflow() -> None:
    largest = 2**40 - 1
    for count in (1 << 19, (1 << 19) + 1, (1 << 20) + 3):
        vector = np.full(count, -largest, dtype=np.int64)
        vector[::3] = largest
        assert gaussian.squared_length(vector) == count * largest**2


def test_codes_of_rows_in_many_pieces_are_the_nearest() -> None:
    data, codes, rows = np.random.default_rng(4), 600, 2 * 7_100
    book = data.dirichlet(np.ones(4), codes)
    given = data.dirichlet(np.full(4, 0.5), rows)
    assert rows > 2 * (codebook._PAIRS // codes)
    found = CodebookResponse(book, 1.0).encode(given)
    tops = book.argmax(axis=1)
    for i in [*data.integers(0, rows, 3_000).tolist(), 6_989, 6_990, 6_991, rows - 1]:
        mine = np.flatnonzero(tops == given[i].argmax())
        distance = ((book[mine] - given[i]) ** 2).sum(axis=1)
        assert found[i] == mine[distance.argmin()]


def test_a_silhouette_of_many_pieces_is_scikit_learns() -> None:
    given = np.random.default_rng(5).dirichlet(np.full(4, 0.3), 1_500)
    assert len(given) > 3 * (scores._BLOCK // len(given))
    labels = given.argmax(axis=1)
    found = scores.ClusterScore().of_law(given, np.full(1_500, 1 / 1_500), 1_500)
    wanted = of_ever_more_copies(scores.SILHOUETTE_SCORE, given, labels)
    assert found == pytest.approx(wanted, rel=1e-9)


def test_nearest_centers_in_many_pieces_are_the_nearest() -> None:
    data = np.random.default_rng(6)
    points = data.normal(size=(3 * clusters._BLOCK + 5, 3)).astype(np.float32)
    centers = data.normal(size=(11, 3)).astype(np.float32)
    distance = ((points[:, None].astype(np.float64) - centers) ** 2).sum(axis=2)
    two = np.sort(distance, axis=1)[:, :2]
    clear = two[:, 1] - two[:, 0] > 1e-5
    assert clear.mean() > 0.99
    found = clusters.nearest(points, centers)
    np.testing.assert_array_equal(found[clear], distance.argmin(axis=1)[clear])


# Codes of subsets that are ranked block by block


@pytest.mark.parametrize(
    ("d", "h"), [(1_300, 1_000), (7_900, 1_000), (15_974, 4_096), (61_440, 4_096)]
)
def test_ranked_codes_of_many_blocks_are_their_definition(d: int, h: int) -> None:
    layout = subset._layout(d, h)
    assert layout.ranked
    assert layout.bitmap_bits > 3 * subset._BLOCK
    data = np.random.default_rng(7)
    for indices in (np.arange(h), np.sort(data.permutation(d)[:h])):
        gaps = indices - np.arange(h)
        bitmap = np.zeros(layout.bitmap_bits, dtype=int)
        bitmap[(gaps >> layout.low_bits) + np.arange(h)] = 1
        value = int.from_bytes(subset.encode(indices.astype(np.int64), d), "little")
        assert value >> h * layout.low_bits == plain_rank(bitmap.tolist())


def plain_rank(bitmap: list[int]) -> int:
    """Return the mixed-radix number of counts and ranks of blocks, by binomials."""
    value, behind = 0, 0
    for start in reversed(range(0, len(bitmap), 320)):
        block = bitmap[start : start + 320]
        width, count = len(block), sum(block)
        ones = [position for position, bit in enumerate(block) if bit]
        rank = sum(math.comb(position, i) for i, position in enumerate(ones, 1))
        left, after = behind + count, len(bitmap) - start - width
        least = max(0, left - after)
        value = value * math.comb(width, count) + rank
        value = value * (min(width, left) - least + 1) + count - least
        behind = left
    return value


# Plans: doubles for many sizes at a time, exact integers where they cannot tell


def test_searches_of_many_pieces_end_where_the_definition_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    excesses = signds_size._excesses

    def spy(d: int, top: int, epsilon: float, sizes: Any) -> Any:
        seen.append(int(sizes[0]))
        return excesses(d, top, epsilon, sizes)

    monkeypatch.setattr(signds_size, "_excesses", spy)
    d, epsilon, ratio = 200_000, 100.0, 0.5
    h = signds_size.largest_dim_out(d, d // 4, epsilon, ratio)
    assert seen == [1, 257, 513]
    near = (256, 257, 512, 513, h)
    assert all(best_mean(d, d // 4, size, epsilon) >= ratio * size for size in near)
    assert best_mean(d, d // 4, h + 1, epsilon) < ratio * (h + 1)


def best_mean(d: int, top: int, h: int, epsilon: float) -> float:
    """Return the largest mean of v over all thresholds, by sums of exact counts."""
    counts = [math.comb(top, v) * math.comb(d - top, h - v) for v in range(h + 1)]
    gain = int(math.exp(epsilon))
    whole, moment = sum(counts), sum(v * count for v, count in enumerate(counts))
    best, above, above_v = 0.0, 0, 0
    for v in range(h, -1, -1):
        above, above_v = above + counts[v], above_v + v * counts[v]
        mean = (moment + (gain - 1) * above_v) / (whole + (gain - 1) * above)
        best = max(best, mean)
    return best


def test_what_doubles_cannot_tell_integers_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Epsilons next to each other, between which h goes from 1 to 2 and v_th from 1 to 2."""
    asked: list[int] = []
    of = signds_size.hypergeometric_weights

    def spy(*sizes: int) -> Any:
        asked.append(sizes[2])
        return of(*sizes)

    monkeypatch.setattr(signds_size, "hypergeometric_weights", spy)
    d, top = 1_000, 250
    p = [
        as_fraction(math.comb(top, v)) * math.comb(d - top, 2 - v) / math.comb(d, 2)
        for v in range(3)
    ]
    mean = p[1] + 2 * p[2]
    for gain, found in (
        ((as_fraction(1.2) - mean) / (as_fraction(0.8) * p[2]), dim_out),
        ((1 - mean) / (mean - 1 + p[0]), threshold),
    ):
        exact = math.log1p(float(gain))
        low, high = (float(np.nextafter(exact, end)) for end in (0, 9))
        low, high = (float(np.nextafter(one, end)) for one, end in ((low, 0), (high, 9)))
        asked.clear()
        assert (found(d, top, low), found(d, top, high)) == (1, 2)
        assert 2 in asked


def dim_out(d: int, top: int, epsilon: float) -> int:
    return min(2, signds_size.largest_dim_out(d, top, epsilon, 0.6))


def threshold(d: int, top: int, epsilon: float) -> int:
    return signds_size.best_threshold(d, top, 2, epsilon)


def test_plans_from_the_cache_are_those_made_anew() -> None:
    signds._plan.cache_clear()
    asked = [(SignDS(1.0 + i / 8, 0.2), 300 + 10 * j) for i in range(8) for j in range(6)]
    for mechanism, dimension in [*asked, *asked[::-1], *asked]:
        plan = signds._plan(mechanism, dimension)
        assert plan == signds._plan.__wrapped__(mechanism, dimension)
    held = signds._plan.cache_info()
    assert held.currsize == held.maxsize
    assert held.hits > 20

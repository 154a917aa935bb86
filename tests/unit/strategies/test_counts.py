"""Tables of many sites' noisy counts: agreement, shares, means, quantiles, and their intervals."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from flower_ldp.clients import CountsRelease, LdpMod
from flower_ldp.mechanisms import JointCounts, RandomSource
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.privacy import Unit
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import CountsQuery, CountTable, CountTables, RunStopped
from flower_ldp.strategies.count_tables import agreeing, fitted_to_blocks
from flower_ldp.wire.counts import encode
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import error_reply, message

STEPS = JointCounts.steps

EDGES = [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
COLUMNS = {"age": EDGES, "sex": ["F", "M"], "ill": ["0", "1"]}


def drawn(rows: int, seed: int) -> dict[str, list[Any]]:
    """Return patients of a population whose ages are normal, and illness grows with age."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.normal(50, 18, rows), 0, 99.9)
    ill = (rng.random(rows) < age / 200).astype(int)
    sex = np.where(rng.random(rows) < 0.5, "F", "M")
    return {"age": age.tolist(), "sex": sex.tolist(), "ill": ill.tolist()}


def answered(
    query: CountsQuery, sites: Sequence[dict[str, list[Any]]], rng: RandomSource | None
) -> CountTables:
    """Return the tables of sites' answers, without noise if there is no source of it."""
    replies = []
    for node, rows in enumerate(sites, 1):
        size, mechanism = len(rows["age"]), query.proposal.mechanism
        total = mechanism.total((query.proposal.places(rows, size), np.arange(size)))
        noisy = total if rng is None else mechanism.noised(total, rng)
        report = ConfigRecord({PAYLOAD_KEY: encode(size, noisy)})
        replies.append(message(RecordDict({REPORT_KEY: report}), node=node, reply=True))
    return query.aggregate(replies)


DESIGNS: list[list[tuple[str, ...]]] = [
    [("age",)],
    [("age",), ("sex", "age")],
    [("age", "sex"), ("ill", "sex"), ("age", "ill")],
    [("ill",), ("sex", "age", "ill"), ("age",)],
    [("age",), ("sex",)],
]


@pytest.mark.parametrize("design", DESIGNS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_tables_agree_and_are_of_at_least_zero(design: Any, seed: int) -> None:
    query = CountsQuery(COLUMNS, design, epsilon=0.3)
    found = answered(query, [drawn(100, seed)] * 3, RandomSource.seeded(seed))
    assert (found.examples, found.sites, len(found)) == (300, 3, len(design))
    assert list(found) == design
    for names in design:
        counts = found[names].counts
        assert (counts >= 0).all()
        assert counts.sum() == pytest.approx(300)
    for one, other in itertools.combinations(design, 2):
        shared = [name for name in one if name in other]
        both = (found[names].margin(*shared) for names in (one, other))
        first, second = (dict.fromkeys([t.names], t.counts) for t in both)
        ((names, left),), ((others, right),) = first.items(), second.items()
        right = right.transpose([others.index(name) for name in names])
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_without_noise_tables_are_the_counts() -> None:
    rows = drawn(200, 1)
    query = CountsQuery(COLUMNS, DESIGNS[2], epsilon=1.0)
    found = answered(query, [rows], None)
    wanted = np.histogram2d(
        rows["age"], [0 if s == "F" else 1 for s in rows["sex"]], [EDGES, [-0.5, 0.5, 1.5]]
    )[0]
    np.testing.assert_allclose(found["age", "sex"].counts[:-1, :-1], wanted, atol=1e-5)
    np.testing.assert_allclose(found["age", "sex"].noisy[:-1, :-1], wanted)
    assert found["age", "ill"].margin("age").names == ("age",)


def test_agreement_lowers_the_error() -> None:
    """Of tables that share columns, against each table's own counts; a mean of 40 questions."""
    query, rng = CountsQuery(COLUMNS, DESIGNS[1], epsilon=0.5), RandomSource.seeded(3)
    rows = drawn(300, 2)
    truth = answered(query, [rows], None)
    errors = {"noisy": [0.0], "agreed": [0.0]}
    for _ in range(40):
        found = answered(query, [rows], rng)
        for names in found:
            true = truth[names].noisy
            errors["noisy"].append(float(((found[names].noisy - true) ** 2).sum()))
            errors["agreed"].append(float(((found[names].counts - true) ** 2).sum()))
    assert np.mean(errors["agreed"]) < 0.6 * np.mean(errors["noisy"])


def test_a_table_by_itself_is_projected() -> None:
    noisy = {("a",): np.array([8.0, -5.0, 3.0, 0.0])}
    np.testing.assert_allclose(agreeing(noisy, 10)["a",], [7.5, 0.0, 2.5, 0.0], atol=1e-6)


@pytest.mark.parametrize("sites", [1, 5])
@pytest.mark.parametrize("level", [0.95, 0.8])
def test_a_counts_interval_holds_it_as_often_as_it_says(sites: int, level: float) -> None:
    query, rng = CountsQuery({"age": EDGES}, epsilon=0.7), RandomSource.seeded(sites)
    places = [drawn(200, seed) for seed in range(sites)]
    truth = answered(query, places, None)["age"].noisy[:-1]
    held = []
    for _ in range(400):
        rows = answered(query, places, rng)["age"].rows(level=level)
        held += [low <= one <= high for low, one, high in zip(rows["low"], truth, rows["high"])]  # noqa: B905
    deviation = (level * (1 - level) / len(held)) ** 0.5
    assert level - 4 * deviation <= np.mean(held) <= level + 0.05


@pytest.fixture(scope="module")
def population() -> dict[str, Any]:
    """Return the values of a million people, and the means of their intervals' middles."""
    rows = drawn(1_000_000, 99)
    age, ill = np.array(rows["age"]), np.array(rows["ill"])
    old = ill[(age >= 60) & (age < 80)].mean()
    middles = np.floor(age / 20) * 20 + 10
    shares = np.histogram(age, EDGES)[0] / len(age)
    grid = np.interp(0.5, np.concatenate([[0], np.cumsum(shares)]), EDGES)
    quantiles = np.quantile(age, (0.1, 0.5, 0.9))
    return {
        "mean": middles.mean(),
        "variance": middles.var(),
        "median": grid,
        "old": old,
        "quantiles": quantiles,
    }


def test_intervals_of_the_population_hold_it(population: dict[str, Any]) -> None:
    """Noise and sampling together, in 400 samples of 5 sites with 150 patients each."""
    query = CountsQuery(COLUMNS, [("age", "ill")], epsilon=1.0)
    rng, held = RandomSource.seeded(8), dict[str, list[bool]]()
    variances = []
    for number in range(400):
        whole = drawn(750, number)
        sites = [{name: one[i::5] for name, one in whole.items()} for i in range(5)]
        table = answered(query, sites, rng)["age", "ill"]
        rows = table.rows(by="age")
        place = rows["age"].index("[60, 80)") + 1
        assert rows["ill"][place] == "1"
        mean, median = table.mean("age"), table.quantile("age", 0.5)
        ends = {
            "mean": mean[1:],
            "median": median[1:],
            "old": (rows["share_low"][place], rows["share_high"][place]),
        }
        for name, (low, high) in ends.items():
            held.setdefault(name, []).append(low <= population[name] <= high)
        variances.append(table.variance("age"))
    for name, all_held in held.items():
        assert np.mean(all_held) >= 0.92, name
    assert np.mean(variances) == pytest.approx(population["variance"], rel=0.05)


def test_quantiles_by_blocks_hold_the_populations_and_are_nearer(
    population: dict[str, Any],
) -> None:
    """In 150 samples of 2 sites: intervals hold three quantiles, and errors are a third less."""
    edges, rng = np.linspace(0, 100, 257), RandomSource.seeded(4)
    shares, errors, held = (0.1, 0.5, 0.9), dict[bool, list[float]](), list[bool]()
    queries = {
        blocks: CountsQuery({"age": edges}, epsilon=1.0, quantiles=["age"] * blocks)
        for blocks in (False, True)
    }
    for number in range(150):
        sites = [drawn(400, number), drawn(400, 1_000 + number)]
        for blocks, query in queries.items():
            table = answered(query, sites, rng)["age"]
            found = [table.quantile("age", share) for share in shares]
            true = population["quantiles"]
            errors.setdefault(blocks, []).extend(
                abs(one.value - two) for one, two in zip(found, true, strict=True)
            )
            if blocks:
                held += [one.low <= two <= one.high for one, two in zip(found, true, strict=True)]
    assert np.mean(held) >= 0.92
    assert np.mean(errors[True]) < 0.67 * np.mean(errors[False])


@pytest.mark.parametrize("levels", [100, 113])
def test_counts_are_fitted_to_blocks_by_least_squares(levels: int) -> None:
    """As by a solver, with the sum put in; exact counts stay as they are."""
    query = CountsQuery({"age": range(levels + 1)}, epsilon=1.0, quantiles=["age"])
    (starts,) = query.proposal.blocks.values()
    draws = np.random.default_rng(levels)
    fine, blocks = draws.normal(9, 5, levels + 1), draws.normal(70, 9, len(starts))
    found = fitted_to_blocks(fine, blocks, starts, 600)
    summing = np.add.reduceat(np.eye(levels + 1), starts)
    rows, told = np.vstack([np.eye(levels + 1), summing]), np.concatenate([fine, blocks])
    moved = rows[:, :-1] - rows[:, -1:]  # the last count is 600 without the others
    wanted = np.linalg.lstsq(moved, told - 600 * rows[:, -1], rcond=None)[0]
    np.testing.assert_allclose(found[:-1], wanted)
    assert found.sum() == pytest.approx(600)
    age = draws.uniform(0, levels, 300)
    table = answered(query, [{"age": age.tolist()}], None)["age"]
    exact = np.histogram(age, range(levels + 1))[0]
    np.testing.assert_allclose(table.noisy[:-1], exact, atol=1e-9)
    assert table.quantile("age", 0.5).value == pytest.approx(np.median(age), abs=1)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5])
def test_a_quantiles_interval_is_as_wide_below_as_above(share: float) -> None:
    """Also where running sums are equal, as of levels that nobody is in."""
    counts = np.array([0.0, 0.0, 60.0, 40.0, 0.0, 0.0, 0.0])
    table = CountTable({"age": range(7)}, counts, counts, 2.0)
    around = np.append(counts[5::-1], 0.0)
    mirrored = CountTable({"age": range(7)}, around, around, 2.0)
    below, above = table.quantile("age", share), mirrored.quantile("age", 1 - share)
    assert (below.low, below.high) == pytest.approx((6 - above.high, 6 - above.low))
    if share == 0.01:
        assert below.low == 0.0


@pytest.mark.parametrize("size", [30, 455])
@pytest.mark.parametrize("epsilon", [1.0, 8.0, 100.0])
def test_rare_shares_are_within_their_intervals(size: int, epsilon: float) -> None:
    """Each share from 0.1 % to 50 %, and one of 0, in 1,000 samples."""
    shares = np.array([0.5, 0.3, 0.12, 0.05, 0.02, 0.006, 0.003, 0.001, 0.0, 0.0])
    rng, held = np.random.default_rng(size), []
    deviation = 8**0.5 / epsilon
    for _ in range(1_000):
        noisy = rng.multinomial(size, shares) + rng.laplace(0, 2 / epsilon, len(shares))
        counts = agreeing({("age",): noisy}, size)["age",]
        rows = CountTable({"age": range(10)}, counts, noisy, deviation, 3.0).rows()
        held.append((rows["share_low"] <= shares[:-1]) & (shares[:-1] <= rows["share_high"]))
    assert np.mean(held, axis=0).min() >= 0.93


def test_rows_are_labelled_and_shares_add_up_in_groups() -> None:
    rows = drawn(400, 5)
    query = CountsQuery(COLUMNS, [("ill", "age")], epsilon=1.0)
    table = answered(query, [rows], RandomSource.seeded(1))["ill", "age"]
    told = table.rows(by="age")
    assert told["age"][:5] == ["[0, 20)", "[20, 40)", "[40, 60)", "[60, 80)", "[80, 100]"]
    assert told["ill"] == ["0"] * 5 + ["1"] * 5
    for place in range(5):
        assert told["share"][place] + told["share"][place + 5] == pytest.approx(1.0)
    assert sum(table.rows()["share"]) == pytest.approx(1.0)
    part = table.at(ill="1", age=2)
    assert part.counts == pytest.approx(table.counts[1, 2])
    assert table.at(ill="1").margin("age").mean("age").value > table.mean("age").value
    assert table.mean("ill").value == pytest.approx(
        sum(table.margin("ill").rows()["share"][1:]), abs=1e-9
    )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda table: table.margin("weight"), "not ('weight',)"),
        (lambda table: table.rows(by="weight"), "not ('weight',)"),
        (lambda table: table.mean("sex"), "are no numbers"),
        (lambda table: table.quantile("sex", 0.5), "quantiles need edges"),
        (lambda table: table.quantile("age", 1.5), "share must be in [0, 1]"),
        (lambda table: table.rows(level=1.0), "level must be in (0, 1)"),
        (lambda table: CountTable({"a": ["1"]}, *[np.zeros(2)] * 2, 1.0).mean("a"), "no row"),
    ],
)
def test_what_cannot_be_read_from_a_table_is_said(call: Any, text: str) -> None:
    query = CountsQuery(COLUMNS, [("age", "sex")], epsilon=1.0)
    table = answered(query, [drawn(50, 1)], None)["age", "sex"]
    with pytest.raises(ValueError, match=re.escape(text)):
        call(table)


POLICY = """
data_id: site
ledger: ledger.sqlite
mode: simulation
example: patient
examples: 40
messages: {query: {counts: {epsilon: 1.0, unit: example}}}
budgets: {example: {life: {epsilon: 1.0}}}
"""


def asked(tmp_path: Path, app: ClientApp, query: CountsQuery, times: int = 1) -> list[CountTables]:
    (tmp_path / "policy.yaml").write_text(POLICY)
    server, found = ServerApp(), list[CountTables]()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        found.extend(query.ask(grid) for _ in range(times))

    run_in_process(server, app, 5, node_config={"ldp-policy": str(tmp_path / "policy.yaml")})
    return found


def answering(mods: Any) -> ClientApp:
    app = ClientApp(mods=mods)

    @app.query()
    def query(sent: Message, given: Context) -> Message:
        rows = drawn(40, int(given.node_config["partition-id"]))
        twice = {name: one * 2 for name, one in rows.items()}
        twice["patient"] = [f"p{number % 40}" for number in range(80)]
        return Message(RecordDict({"rows": ConfigRecord({**twice})}), reply_to=sent)

    return app


def test_five_sites_are_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, size, rng: np.zeros(size, np.int64))
    caplog.set_level(logging.INFO, "flwr")
    query = CountsQuery(COLUMNS, ["age", ("sex", "ill")], epsilon=1.0)
    (found,) = asked(tmp_path, answering([LdpMod(query=CountsRelease())]), query)
    truth = answered(query, [drawn(40, seed) for seed in range(5)], None)
    for names in found:
        np.testing.assert_allclose(found[names].noisy, truth[names].noisy, atol=1 / STEPS)
    assert found.examples == 200
    assert found["age"].deviation == pytest.approx(5**0.5 * query.deviation)
    assert "the question costs epsilon 1 per example at each site" in caplog.text


def test_a_second_question_is_over_the_budget(tmp_path: Path) -> None:
    query = CountsQuery(COLUMNS, epsilon=1.0)
    with pytest.raises(RunStopped, match="ldp:refused:budget"):
        asked(tmp_path, answering([LdpMod(query=CountsRelease())]), query, times=2)


def test_raw_replies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunStopped, match="no LdpMod"):
        asked(tmp_path, answering([]), CountsQuery(COLUMNS, epsilon=1.0))


def test_bad_answers_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    query = CountsQuery({"age": EDGES}, epsilon=1.0)
    good = encode(50, np.full(6, 50 * STEPS // 6))
    made_up = [good[:-1], encode(0, np.zeros(6)), encode(50, np.full(6, 1 << 40))]
    sent = [
        message(RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: one})}), node=node, reply=True)
        for node, one in enumerate([good, *made_up], 1)
    ]
    found = query.aggregate([*sent, error_reply("ldp:failed", 9)])
    assert (found.sites, found.examples) == (1, 50)
    assert caplog.text.count("left out") == 4
    with pytest.raises(RunStopped, match="no site gave counts"):
        query.aggregate(sent[1:2])


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_clients_with_one_row_each(epsilon: float) -> None:
    """Unbiased, and at most as far off as stated, over 20 questions to 2,000 clients."""
    columns = {"sex": ["F", "M"], "ill": ["0", "1"]}
    query = CountsQuery(columns, [("sex", "ill")], epsilon=epsilon, unit=Unit.CLIENT)
    sets, rng = query.proposal.sets, RandomSource.seeded(6)
    assert sets is not None
    rows = drawn(2_000, 4)
    places = query.proposal.places(rows, 2_000)[:, 0]
    truth = np.bincount(places, minlength=9).reshape(3, 3)
    errors, held = [], []
    for _ in range(20):
        replies = [
            message(
                RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: told.to_bytes(8, "little")})}),
                node=node,
                reply=True,
            )
            for node, told in enumerate(sets.randomize_array(places, rng).tolist(), 1)
        ]
        found = query.aggregate(replies)
        table = found["sex", "ill"]
        assert (found.sites, found.examples) == (2_000, 2_000)
        errors.append(table.noisy - truth)
        inner, ends = truth[:-1, :-1].ravel(), table.rows()
        held += [a <= b <= c for a, b, c in zip(ends["low"], inner, ends["high"], strict=True)]
    stated = query.proposal.deviation(2_000)
    assert np.abs(np.mean(errors, axis=0)).max() < 4 * stated / 20**0.5
    assert 0.4 * stated < np.std(errors) < 1.1 * stated
    assert np.mean(held) >= 0.88


@pytest.mark.parametrize(
    ("columns", "tables", "delta"),
    [
        ({"a": [str(one) for one in range(62)]}, None, 0.0),
        ({"a": ["x"], "b": ["y"]}, None, 0.0),
        ({"a": ["x"]}, None, 1e-5),
    ],
)
def test_clients_with_one_row_answer_one_small_table(
    columns: Any, tables: Any, delta: float
) -> None:
    with pytest.raises(ValueError, match=r"one table|categories must be"):
        CountsQuery(columns, tables, epsilon=1.0, delta=delta, unit=Unit.CLIENT)

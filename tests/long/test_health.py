"""The health bit: what it says, what it costs, and when it stops a run."""

from __future__ import annotations

import itertools
import math
import re
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import (
    CodewordRelease,
    GaussianRelease,
    LaplaceEvalRelease,
    LdpMod,
    SignDSRelease,
)
from flower_ldp.clients.release import OpenRelease
from flower_ldp.errors import WireError
from flower_ldp.mechanisms import (
    BoundedMean,
    Codeword,
    Gaussian,
    Laplace,
    MagRR,
    RandomSource,
    SignDS,
)
from flower_ldp.mechanisms.signds import Selection
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.mechanisms.subset_code import encoded_length
from flower_ldp.policy import REFUSED_POLICY, load_policy
from flower_ldp.privacy import Unit, compose
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.strategies import (
    CodewordStrategy,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    Health,
    LaplaceEvalStrategy,
    LearnedStep,
    RunStopped,
    SignDSStrategy,
)
from flower_ldp.strategies.replies import ReplyValidator
from flower_ldp.strategies.rounds import HealthMonitor
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.proposal import (
    PAYLOAD_KEY,
    PROPOSAL_KEY,
    REPORT_KEY,
    UpdateProposal,
    append_health,
    split_health,
)
from tests.extras import extra
from tests.fixtures import context, message, parsed, record, signds_proposal

stats = extra("scipy.stats")

pytestmark = pytest.mark.usefixtures("simulation_policy")

D = 400
MODEL = {"w": np.zeros(D, dtype=np.float32), "n": np.array(3)}
SURE = 100.0  # a bit that flips once in 1e43
LAPLACE = Laplace(1.0, classes=3, rows=4)
METRICS = {"loss": BoundedMean(1.0, 0.0, 1.0)}
ROWS = np.tile(np.eye(3)[:1], (4, 1))
_numbers = itertools.count()

SignDSRow = signds_proposal(SignDS(8.0, 0.2), 1.0, 1e-3, SURE)
PROPOSALS = {
    "signds": signds_proposal(SignDS(8.0, 0.2), health_epsilon=SURE),
    "signds and its bit": SignDSRow,
    "gaussian": UpdateProposal(Gaussian(1.0, 1e-5), SURE),
    "codeword": UpdateProposal(Codeword(8.0, 9), SURE),
    "laplace": EvalProposal(LAPLACE, METRICS, SURE),
}
RELEASES = {
    "signds": SignDSRelease(),
    "signds and its bit": SignDSRelease(),
    "gaussian": GaussianRelease(),
    "codeword": CodewordRelease(),
    "laplace": LaplaceEvalRelease(),
}


def content(proposal: Any) -> RecordDict:
    return RecordDict(
        {"arrays": record(MODEL), PROPOSAL_KEY: ConfigRecord({**proposal.to_fields()})}
    )


def read(like: Any, fields: Any) -> Any:
    return EvalProposal.from_fields(fields) if like is PROPOSALS["laplace"] else parsed(fields)


def opened(name: str) -> OpenRelease:
    return RELEASES[name].open(content(PROPOSALS[name]))


def trained(**changed: np.ndarray) -> RecordDict:
    return RecordDict({"a": record({**MODEL, "w": np.linspace(-1, 1, D, dtype="f4"), **changed})})


def predicted(rows: np.ndarray, **metrics: float) -> RecordDict:
    return RecordDict({"p": ArrayRecord({"p": Array(rows)}), "m": MetricRecord({**metrics})})


def spoiled(value: float) -> np.ndarray:
    return np.append(np.zeros(D - 1, "f4"), np.float32(value))


BAD_ROW = np.vstack([ROWS[:3], [[0.5, 0.6, 0.7]]])
GOOD_TRAINING = [trained(), trained(w=np.zeros(D, "f4"))]
BAD_TRAINING = [
    trained(w=spoiled(np.nan)),
    trained(w=spoiled(np.inf)),
    trained(w=np.zeros(D - 1, "f4")),
    trained(w=np.zeros(D, "f8")),
    RecordDict(),
]
GOOD_ROWS = [predicted(ROWS, loss=0.5), predicted(np.vstack([ROWS, ROWS]), loss=7.0)]
BAD_ROWS = [
    predicted(BAD_ROW, loss=0.5),
    predicted(ROWS),
    predicted(ROWS, loss=math.nan),
    predicted(ROWS[:, :2], loss=0.5),
    RecordDict(),
]


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_bit_says_whether_the_report_is_neutral(name: str) -> None:
    good, bad = (GOOD_ROWS, BAD_ROWS) if name == "laplace" else (GOOD_TRAINING, BAD_TRAINING)
    release, rng = opened(name), RandomSource.seeded(1)
    assert [release.privatize(reply, rng)[-1] for reply in good] == [0] * len(good)
    assert [release.privatize(reply, rng)[-1] for reply in bad] == [1] * len(bad)
    assert release.neutral(rng)[-1] == 1


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_rehearsal_complains_of_what_the_bit_tells(name: str) -> None:
    good, bad = (GOOD_ROWS, BAD_ROWS) if name == "laplace" else (GOOD_TRAINING, BAD_TRAINING)
    release: Any = opened(name)
    assert [release.complaint(reply) for reply in good] == [None] * len(good)
    assert all(isinstance(release.complaint(reply), str) for reply in bad)


# Its cost.


def test_report_and_both_bits_cost_their_sum_with_invalid_updates_too() -> None:
    """The whole law of (sign, dimension, magnitude bit, health bit) for 40 updates and none."""
    selection, magnitude = SignDS(1.7, 0.25, dim_out=1), MagRR(0.9)
    health = Health(0.6).response
    rng = np.random.default_rng(5)
    updates = [None, *rng.choice([-1e-2, 0.0, 1e-5, 1e-3, 1e30], (40, 4))]
    outcomes = _outcomes()
    laws = np.array([_law(selection, magnitude, 1e-3, health, u, outcomes) for u in updates])
    assert np.exp(laws).sum(axis=1) == pytest.approx(1.0)
    total = compose(signds_proposal(selection, 0.9, 1e-3, 0.6).events())[Unit.CLIENT].epsilon
    assert total == pytest.approx(3.2)
    assert np.ptp(laws, axis=0).max() <= total + 1e-12
    assert np.ptp(laws, axis=0).max() > 2.6  # more than without the bit: it is no free lunch


def _outcomes() -> list[tuple[Selection, int, int]]:
    return [
        (Selection(np.array(index), sign), bit, told)
        for index in combinations(range(4), 1)
        for sign in (-1, 1)
        for bit in (0, 1)
        for told in (0, 1)
    ]


def _law(
    selection: SignDS, magnitude: MagRR, threshold: float, health: Any, u: Any, outcomes: Any
) -> list[float]:
    return [
        selection.log_prob(chosen, u, 4)
        + magnitude.log_prob(bit, None if u is None else (chosen.sign * u).max() < threshold)
        + health.log_prob(told, int(u is None))
        for chosen, bit, told in outcomes
    ]


@pytest.mark.parametrize("valid", [True, False])
def test_what_leaves_has_that_very_law(valid: bool) -> None:
    proposal = signds_proposal(SignDS(1.7, 0.25, dim_out=1), 0.9, 1e-3, 0.6)
    release = SignDSRelease().open(
        RecordDict(
            {
                "arrays": record({"w": np.zeros(4, "f4")}),
                PROPOSAL_KEY: ConfigRecord({**proposal.to_fields()}),
            }
        )
    )
    update = np.array([0.0, -0.5, 1e-5, 0.25], "f4")
    reply = RecordDict({"a": record({"w": update if valid else update * np.nan})})
    # enough to see outcomes that are by turns 3 in 10 too likely and too rare
    rng, draws, outcomes = RandomSource.seeded(7), 1_500, _outcomes()
    counts = dict.fromkeys(range(len(outcomes)), 0)
    names = {(*map(int, chosen.indices), chosen.sign, bit, told): i for i, (chosen, bit, told) in
             enumerate(outcomes)}  # fmt: skip
    for _ in range(draws):
        report, told = split_health(release.privatize(reply, rng), asked=True)
        indices, sign, bit = decode_report(report, dimension=4, dim_out=1, has_bit=True)
        counts[names[int(indices[0]), sign, bit, told]] += 1  # type: ignore[index]
    law = _law(
        proposal.mechanism.selection,
        MagRR(0.9),
        1e-3,
        proposal.health,
        update if valid else None,
        outcomes,
    )
    found = stats.chisquare(list(counts.values()), draws * np.exp(law))
    assert found.pvalue > 1e-6


# On the wire.


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_proposal_without_the_field_is_what_it_was(name: str) -> None:
    asking = PROPOSALS[name]
    fields = dict(asking.to_fields())
    assert read(asking, fields) == asking or name == "laplace"
    assert fields.pop("health-epsilon") == SURE
    silent: Any = read(asking, fields)
    assert silent.health is None
    assert dict(silent.to_fields()) == fields
    assert [event.mechanism for event in asking.events()][-1] == "health"
    assert asking.events()[:-1] == silent.events()


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_report_without_the_bit_is_what_it_was(name: str) -> None:
    fields = dict(PROPOSALS[name].to_fields())
    del fields["health-epsilon"]
    silent: Any = read(PROPOSALS[name], fields)
    reply = GOOD_ROWS[0] if name == "laplace" else GOOD_TRAINING[0]
    plain = RELEASES[name].open(content(silent)).privatize(reply, RandomSource.seeded(3))
    asked = opened(name).privatize(reply, RandomSource.seeded(3))
    assert asked == plain + b"\0"  # the bit is drawn last


@pytest.mark.parametrize(
    "epsilon", [0.0, -1.0, 100.1, math.inf, -math.inf, math.nan, 1, "1.0", True, b"x" * 10**6]
)
@pytest.mark.parametrize("name", PROPOSALS)
def test_an_epsilon_of_the_bit_that_is_none_is_refused_before_the_app(
    name: str, epsilon: Any
) -> None:
    fields = {**PROPOSALS[name].to_fields(), "health-epsilon": epsilon}
    with pytest.raises(WireError) as caught:
        read(PROPOSALS[name], fields)
    assert len(str(caught.value)) < 300
    kind = "evaluate" if name == "laplace" else "train"
    sent = RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: ConfigRecord(fields)})
    gate = LdpMod(**{kind: RELEASES[name]})  # type: ignore[arg-type]

    def never(message: Message, context: Context) -> Message:
        raise AssertionError("the app was asked")

    answer = gate(message(sent, kind=kind, message_id="bad"), context(), never)
    assert answer.error.reason == REFUSED_PROPOSAL


def test_a_bit_at_hardly_any_epsilon_is_a_fair_coin_that_is_priced() -> None:
    proposal = signds_proposal(SignDS(8.0, 0.2), health_epsilon=1e-300)
    assert proposal.events()[-1].epsilon == 1e-300
    release, rng = SignDSRelease().open(content(proposal)), RandomSource.seeded(1)
    ones = sum(release.neutral(rng)[-1] for _ in range(400))
    assert 140 < ones < 260  # six standard deviations


def test_a_report_ends_in_a_bit_exactly_where_one_was_asked_for() -> None:
    for bit in (0, 1):
        assert split_health(append_health(b"abc", bit), asked=True) == (b"abc", bit)
    assert split_health(b"abc\1", asked=False) == (b"abc\1", None)
    for wrong in (b"", b"abc", b"abc\2", b"abc\xff"):
        with pytest.raises(WireError, match="health"):
            split_health(wrong, asked=True)
    with pytest.raises(ValueError, match="0 or 1"):
        append_health(b"abc", 2)


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_node_knows_the_form_of_such_reports(name: str) -> None:
    release = opened(name)
    report = release.neutral(RandomSource.seeded(1))
    release.check_form(report)
    for wrong in (report[:-1], report + b"\0", report[:-1] + b"\2"):
        with pytest.raises(WireError):
            release.check_form(wrong)


# Before the gate, with a policy.

POLICY = """\
data_id: ward
ledger: health.sqlite
mode: simulation
messages:
  train: {signds: {epsilon: 8.0}, magrr: {epsilon: 1.0}%s}
budgets:
  client: {life: {epsilon: 100.0}}
"""


def asked_with(policy: str, simulation_policy: Path, *message_ids: str) -> list[Message]:
    simulation_policy.write_text(POLICY % policy, encoding="utf-8")
    proposal = signds_proposal(SignDS(8.0, 0.2), 1.0, 1e-3, 0.5)
    gate = LdpMod(train=SignDSRelease())

    def app(asked: Message, _: Context) -> Message:
        return Message(trained(), reply_to=asked)

    return [
        gate(message(content(proposal), message_id=name), context(), app) for name in message_ids
    ]


def test_a_policy_must_allow_the_bit_by_name(simulation_policy: Path) -> None:
    (refused,) = asked_with("", simulation_policy, "h-1")
    assert refused.error.reason == REFUSED_POLICY
    (too_dear,) = asked_with(", health: {epsilon: 0.4}", simulation_policy, "h-2")
    assert too_dear.error.reason == REFUSED_POLICY


def test_both_bits_are_in_one_charge_and_a_repeat_gets_the_same_bytes(
    simulation_policy: Path,
) -> None:
    replies = asked_with(", health: {epsilon: 0.5}", simulation_policy, "h-3", "h-3")
    first, again = (reply.content.config_records[REPORT_KEY][PAYLOAD_KEY] for reply in replies)
    assert first == again
    assert isinstance(first, bytes)
    h = SignDS(8.0, 0.2).plan(D).dim_out
    assert len(first) == 2 + encoded_length(D, h) + 1
    with Ledger.open(load_policy(simulation_policy).ledger, read_only=True) as ledger:
        (account,) = ledger.data_ids()
        assert ledger.totals(account)[Unit.CLIENT].spent(Unit.CLIENT).epsilon == 9.5


# On the server.


@pytest.fixture(autouse=True)
def _messages_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(self: FedAvg, sent: RecordDict, nodes: list[int], kind: str) -> list[Message]:
        return [
            message(RecordDict(dict(sent)), node=node, kind=kind, message_id=f"h{next(_numbers)}")
            for node in nodes
        ]

    monkeypatch.setattr(FedAvg, "_construct_messages", make)


class Nodes:
    def __init__(self, count: int) -> None:
        self.nodes = list(range(100, 100 + count))

    def get_node_ids(self) -> list[int]:
        return self.nodes


def answers(name: str, messages: list[Message], failing: int) -> list[Message]:
    """Return the reports of clients of which the first ``failing`` have an app that fails."""
    rng, replies = RandomSource.seeded(2), []
    good = GOOD_ROWS[0] if name == "laplace" else GOOD_TRAINING[0]
    for number, sent in enumerate(messages):
        release = RELEASES[name].open(sent.content)
        payload = release.neutral(rng) if number < failing else release.privatize(good, rng)
        told = RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})})
        replies.append(message(told, node=sent.metadata.dst_node_id, reply=True))
    return replies


def strategy_of(name: str, health: Health | None) -> Any:
    if name == "gaussian":
        return GaussianStrategy(Gaussian(1.0, 1e-5), health=health)
    if name == "codeword":
        steps = FixedLength(0.5, 10)
        return CodewordStrategy(Codeword(8.0), steps, health=health, answers_per_client=None)
    if name == "laplace":
        return LaplaceEvalStrategy(FedAvg(), LAPLACE, metrics=METRICS, health=health)
    step = LearnedStep(MagRR(1.0)) if "bit" in name else FixedStep(0.5)
    return SignDSStrategy(SignDS(8.0, 0.2), step, health=health)


def round_of(
    name: str, strategy: Any, failing: int, nodes: int = 30, number: int = 1
) -> dict[str, Any]:
    phase = "evaluate" if name == "laplace" else "train"
    ask, take = (getattr(strategy, f"{verb}_{phase}") for verb in ("configure", "aggregate"))
    messages = list(ask(number, record(MODEL), ConfigRecord(), Nodes(nodes)))
    found = take(number, answers(name, messages, failing))
    return dict(found if phase == "evaluate" else found[1])


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_server_says_what_share_fails(name: str) -> None:
    found = round_of(name, strategy_of(name, Health(3.0)), failing=9)
    assert (found["accepted"], found["rejected"]) == (30, 0)
    assert abs(found["failing-share"] - 0.3) < 5 * found["failing-share-error"]
    assert found["failing-share-error"] == pytest.approx(
        Health(3.0).response.standard_deviation(30) / 30
    )
    plain = round_of(name, strategy_of(name, None), failing=9)
    assert not {"failing-share", "failing-share-error"} & set(plain)
    cost = "epsilon-evaluation" if name == "laplace" else "epsilon-round"
    assert found[cost] == pytest.approx(plain[cost] + 3.0)
    if name != "laplace":
        assert found["bytes-up"] == plain["bytes-up"] + 1


@pytest.mark.parametrize("name", PROPOSALS)
def test_a_run_of_failing_apps_is_stopped_and_its_cost_is_told(name: str) -> None:
    strategy = strategy_of(name, Health(3.0))
    with pytest.raises(RunStopped, match=r"round 1: .* the app fails in .* ± .* of 30 reports"):
        round_of(name, strategy, failing=30)
    spent = strategy.privacy_spent().units[Unit.CLIENT].epsilon
    assert spent == pytest.approx(strategy_cost(name) + 3.0)
    assert round_of(name, strategy_of(name, Health(3.0)), failing=0)["accepted"] == 30


def strategy_cost(name: str) -> float:
    return {"gaussian": 1.0, "laplace": 5.0, "signds": 8.0, "codeword": 8.0}.get(name, 9.0)


def test_few_clients_are_sure_together_after_some_rounds() -> None:
    strategy = strategy_of("signds", Health(1.0))
    rounds = itertools.takewhile(lambda number: not is_stopped(strategy, number), range(1, 100))
    assert 1 <= len(list(rounds)) < 60
    assert not stops(Health(1.0), 3, 3)


def is_stopped(strategy: Any, number: int) -> bool:
    try:
        round_of("signds", strategy, failing=3, nodes=3, number=number)
    except RunStopped:
        return True
    return False


def test_a_bit_that_was_not_asked_for_or_is_missing_is_left_out() -> None:
    silent, asking = strategy_of("signds", None), strategy_of("signds", Health(1.0))
    for one, other, reason in ((silent, asking, "length"), (asking, silent, "health")):
        sent = list(one.configure_train(1, record(MODEL), ConfigRecord(), Nodes(4)))
        others = list(other.configure_train(1, record(MODEL), ConfigRecord(), Nodes(4)))
        _, metrics = one.aggregate_train(1, answers("signds", others, 0))
        assert len(sent) == 4
        assert metrics["accepted"] <= 2  # a last byte that is 0 or 1 leaves a wrong length
        assert metrics["rejected"] == metrics.get(f"rejected-{reason}", 0) + metrics.get(
            "rejected-length", 0
        ) * (reason != "length")


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("reports", [4, 25, 200])
def test_a_run_that_may_fail_so_often_is_hardly_ever_stopped(epsilon: float, reports: int) -> None:
    """The chance of a stop at exactly the allowed share: a sum of two binomials, exactly."""
    health = Health(epsilon, stop_above=0.5)
    keep, failing = health.response.keep_probability, reports // 2
    ones = np.convolve(
        stats.binom.pmf(np.arange(failing + 1), failing, keep),
        stats.binom.pmf(np.arange(reports - failing + 1), reports - failing, 1 - keep),
    )
    chance = sum(p for c, p in enumerate(ones) if stops(health, c, reports))
    assert chance < 0.00136
    least = next((c for c in range(reports + 1) if stops(health, c, reports)), None)
    if reports == 200 and epsilon >= 0.5:
        assert least is not None
        error = health.response.standard_deviation(reports)
        excess = health.response.estimate(least, reports) - reports / 2
        assert 2.8 * error < excess < 3.3 * error + 2


def test_the_rule_for_many_reports_continues_that_for_few() -> None:
    health = Health(1.0)
    least = {}
    for reports in (2_000, 2_001):
        low, high = reports // 2, reports
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if stops(health, middle, reports) else (middle + 1, high)
        least[reports] = low
    assert abs(least[2_001] - least[2_000]) <= 3
    assert least[2_000] < 1_200


def stops(health: Health, ones: int, reports: int) -> bool:
    watch = HealthMonitor(health)
    decode = watch.decoder(bytes)
    for number in range(reports):
        decode(bytes((number < ones,)))
    try:
        watch.after_replies(cast(Any, SimpleNamespace(server_round=1)), ReplyValidator([]))
    except RunStopped:
        return True
    return False


@pytest.mark.parametrize(
    "options",
    [
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"epsilon": 101.0},
        {"epsilon": 1.0, "stop_above": 1.0},
        {"epsilon": 1.0, "stop_above": math.nan},
        {"epsilon": 1.0, "significance": -1.0},
        {"epsilon": 1.0, "significance": math.inf},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be in"):
        Health(**options)


def test_a_metric_cannot_have_the_name_of_the_share() -> None:
    with pytest.raises(ValueError, match="in use"):
        LaplaceEvalStrategy(FedAvg(), LAPLACE, metrics={"failing-share": METRICS["loss"]})


def test_the_gaussian_report_before_the_bit_is_that_of_the_mechanism() -> None:
    payload = opened("gaussian").neutral(RandomSource.seeded(1))
    report, bit = split_health(payload, asked=True)
    Gaussian(1.0, 1e-5).decode(report, D)
    assert bit == 1


def test_the_page_gives_the_standard_errors() -> None:
    text = (Path(__file__).parents[2] / "docs" / "failures.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) == 4
    for epsilon, *errors in rows:
        response = Health(float(epsilon)).response
        for clients, error in zip((20, 100, 1_000), errors, strict=True):
            exact = response.standard_deviation(clients) / clients
            assert float(error) == pytest.approx(exact, rel=0.03)


def test_an_app_that_fails_at_every_site_stops_the_run_after_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deployments, real gates: every report is neutral and paid for, and the bits tell."""
    monkeypatch.delenv("FLOWER_LDP_POLICY")
    strategy = strategy_of("signds", Health(4.0))
    messages = list(strategy.configure_train(1, record(MODEL), ConfigRecord(), Nodes(12)))
    deployment = (POLICY % ", health: {epsilon: 4.0}").replace("simulation", "deployment")
    replies = []

    def failing(asked: Message, _: Context) -> Message:
        raise ValueError("a bug")

    for sent in messages:
        site = tmp_path / str(sent.metadata.dst_node_id)
        site.mkdir(mode=0o755)
        (site / "policy.yaml").write_text(deployment, encoding="utf-8")
        (site / "policy.yaml").chmod(0o644)
        Ledger.open(site / "health.sqlite", create=True).close()
        own = Context(3, 7, {"ldp-policy": str(site / "policy.yaml")}, RecordDict(), {})
        replies.append(LdpMod(train=SignDSRelease())(sent, own, failing))
    assert not any(reply.has_error() for reply in replies)
    with pytest.raises(RunStopped, match="of 12 reports"):
        strategy.aggregate_train(1, replies)

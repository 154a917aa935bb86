"""Split training in one process: alignment, learning, frozen bottoms, clear failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import nn

from flower_ldp.labels import RandomizedLabels
from flower_ldp.mechanisms import (
    BottomModelClaim,
    CodebookEmbedding,
    KaryResponse,
    RRWithPrior,
    UnaryEncoding,
)
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.split import ForwardCorrected, TorchTop
from flower_ldp.strategies import (
    CodeTop,
    LocalExchange,
    NoisyLabels,
    PartyError,
    SplitStrategy,
)
from flower_ldp.strategies.split_exchange import Exchange, align, send_labels
from flower_ldp.wire.embedding import BACKWARD, FORWARD, PREPARE, TableTerms
from flower_ldp.wire.record_ids import Records, RecordTables
from tests.split_world import Everything, Side, labels, local, tables

pytestmark = pytest.mark.usefixtures("simulation_policy")
CONDITIONAL = BottomModelClaim("conditional")
PUBLIC = BottomModelClaim("public")


def top(width: int, parties: int = 2, lr: float = 0.01) -> TorchTop:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(width * parties, 64), nn.ReLU(), nn.Linear(64, 10))
    return TorchTop(module, lambda parameters: torch.optim.Adam(parameters, lr))


#: Enough to learn from: blocks and records of a table.
MORE: dict[str, int] = {"block": 50, "one_in": 5}


def strategy(width: int = 32, eps: float = 8.0, parties: int = 2, **more: int) -> SplitStrategy:
    own = tables(**more)
    mechanism = UnaryEncoding(eps, width)
    return SplitStrategy(top(width, parties), mechanism, own, labels(own), parties=parties)


class Listening(Exchange):
    """An exchange that notes what is asked."""

    def __init__(self, inner: LocalExchange) -> None:
        self.inner = inner
        self.asked: list[tuple[str, list[int]]] = []
        self.replies: list[Message] = []

    def nodes(self, least: int) -> list[int]:
        return self.inner.nodes(least)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        self.asked.append((kind, list(contents)))
        found = self.inner.ask(kind, contents)
        self.replies += found.values()
        return found


def test_random_bits_teach_nothing(tmp_path: Path) -> None:
    sides = {1: Side("left", tmp_path, CONDITIONAL, **MORE)}
    with pytest.raises(PartyError, match="ldp:refused:policy"):
        strategy(eps=0.0, parties=1, **MORE).start(local(sides), epochs=1)
    exchange = local(sides, Everything())
    result = strategy(eps=0.0, parties=1, **MORE).start(exchange, epochs=4, evaluate_every=4)
    # with an epsilon of 8 in place of 0 it is 1.2 to 1.7
    assert result.history[-1]["loss-test"] > 2.2  # ten classes: log 10 is 2.30


def test_only_parties_whose_bottoms_learn_are_sent_gradients(tmp_path: Path) -> None:
    sides = {1: Side("left", tmp_path, CONDITIONAL), 2: Side("right", tmp_path, PUBLIC)}
    before = {node: side(None).digest() for node, side in sides.items()}  # type: ignore[arg-type]
    exchange = Listening(local(sides))
    strategy().start(exchange, epochs=1, evaluate_every=0)
    assert {tuple(nodes) for kind, nodes in exchange.asked if kind == BACKWARD} == {(1,)}
    assert {tuple(nodes) for kind, nodes in exchange.asked if kind == FORWARD} == {(1, 2)}
    after = {node: side(None).digest() for node, side in sides.items()}  # type: ignore[arg-type]
    assert before[1] != after[1]
    assert before[2] == after[2]


def test_a_frozen_bottom_takes_no_gradients(tmp_path: Path) -> None:
    exchange = local({1: Side("left", tmp_path, PUBLIC)})
    (reply,) = exchange.ask(BACKWARD, {1: RecordDict()}).values()
    assert reply.error.reason == "ldp:refused:message"


def test_nothing_but_packed_bits_comes_back(tmp_path: Path) -> None:
    exchange = Listening(local({1: Side("left", tmp_path, CONDITIONAL)}))
    strategy(parties=1).start(exchange, epochs=1)
    sizes = set()
    for reply in exchange.replies[1:]:
        (record,) = reply.content.config_records.values()
        (payload,) = record.values()
        assert isinstance(payload, bytes)
        sizes.add(len(payload))
    # 25 records of 32 bits, the last 5 of the test table, and empty acknowledgements
    assert sizes == {0, 1 + 25 * 4, 1 + 5 * 4}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"block": 10}, "size of blocks"),
        ({"side": "other"}, "bring the ids and the size of blocks"),
    ],
)
def test_other_records_are_a_clear_error_before_anything_is_released(
    change: dict[str, object], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = Side("left", tmp_path, PUBLIC, block=int(str(change.get("block", 25))))
    if "side" in change:
        one_off = dict(tables().tables)
        one_off["train"] = Records.of([*one_off["train"].ids[1:], "somebody-else"])
        own = RecordTables(one_off, 25)
        monkeypatch.setattr("tests.split_world.tables", lambda *_: own)
    exchange = Listening(local({4: side}))
    with pytest.raises(PartyError, match=text) as caught:
        strategy(parties=1).start(exchange, epochs=1)
    assert caught.value.reason == "ldp:refused:records"
    assert "node 4" in str(caught.value)
    assert [kind for kind, _ in exchange.asked] == ["query.align"]


def test_two_parties_of_one_name_and_too_many_nodes_are_errors(tmp_path: Path) -> None:
    same = Side("left", tmp_path, PUBLIC)
    with pytest.raises(PartyError, match="two nodes have this name: 1 and 2"):
        strategy().start(local({1: same, 2: same}), epochs=1)
    with pytest.raises(ValueError, match="2 nodes are there and 1 parties"):
        strategy(parties=1).start(local({1: same, 2: same}), epochs=1)


def test_embeddings_of_another_width_are_answered_as_unknown_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    side = Side("left", tmp_path, PUBLIC, width=31)
    with pytest.raises(PartyError, match="ldp:failed"):  # a simulation is loud
        strategy(parties=1).start(local({1: side}), epochs=1)
    exchange = Listening(local({1: side}, Everything(is_simulation=False)))
    strategy(parties=1).start(exchange, epochs=1)
    sizes = {
        len(value)
        for reply in exchange.replies[1:]
        for record in reply.content.config_records.values()
        for value in record.values()
        if isinstance(value, bytes)
    }
    assert sizes == {1 + 25 * 4, 1 + 5 * 4}
    assert "neutral" in caplog.text  # the reason stays in the party's log


def test_a_party_that_fails_is_named_and_tells_no_more() -> None:
    def broken(_: object) -> Side:
        raise ValueError("secret")

    exchange = Listening(local({1: broken}))  # type: ignore[dict-item]
    with pytest.raises(PartyError, match="ldp:failed"):
        strategy(parties=1).start(exchange, epochs=1)
    assert "secret" not in str([reply.error for reply in exchange.replies])


def noisy(epsilon: float = 4.0, **more: int) -> NoisyLabels:
    response = KaryResponse(epsilon, 10)
    labels_ = response.randomize_array(labels(tables(**more))["train"], RandomSource.seeded(2))
    return NoisyLabels(RandomizedLabels(labels_, np.arange(len(labels_)), response))


def coded(given: NoisyLabels | None, parties: int = 2, **more: int) -> SplitStrategy:
    own = tables(**more)
    mechanism = CodebookEmbedding(8.0, 10)
    return SplitStrategy(
        CodeTop(10), mechanism, own, labels(own), parties=parties, noisy_labels=given
    )


def test_bottoms_learn_from_randomized_labels_and_release_codes(tmp_path: Path) -> None:
    sides = {
        1: Side("left", tmp_path, CONDITIONAL, width=10, shuffle=7, **MORE),
        2: Side("right", tmp_path, BottomModelClaim("dp", 2.0, 1e-5), width=10, **MORE),
    }
    exchange = Listening(local(sides))
    result = coded(noisy(**MORE), **MORE).start(exchange, epochs=1)
    # 0.83 of 60, and 0.1 if labels do not belong to the rows
    assert result.history[-1]["accuracy-test"] > 0.6
    kinds = [kind for kind, _ in exchange.asked]
    assert kinds[:2] == ["query.align", PREPARE]
    assert BACKWARD not in kinds
    digests = [side(None).digest() for side in sides.values()]  # type: ignore[arg-type]
    coded(noisy(**MORE), **MORE).start(local(sides), epochs=0)
    assert [side(None).digest() for side in sides.values()] == digests  # type: ignore[arg-type]


def test_labels_are_not_told_to_a_frozen_bottom_and_train_a_private_one_once(
    tmp_path: Path,
) -> None:
    public = {1: Side("left", tmp_path / "public", PUBLIC, width=10)}
    exchange = Listening(local(public))
    coded(noisy(), 1).start(exchange, epochs=0)
    assert PREPARE not in [kind for kind, _ in exchange.asked]
    private = {1: Side("left", tmp_path / "dp", BottomModelClaim("dp", 2.0, 1e-5), width=10)}
    coded(noisy(), 1).start(local(private), epochs=0)
    with pytest.raises(PartyError, match="ldp:failed"):
        coded(noisy(3.0), 1).start(local(private), epochs=0)


def test_labels_that_do_not_fit_are_an_error_before_anyone_is_asked() -> None:
    good = noisy().private
    for change, text in (
        ({"members": good.members[::-1]}, "in the order of the ids"),
        ({"reports": good.reports[1:]}, "labels must be 150"),
        ({"reports": good.reports + 1}, "labels must be integers in"),
        ({"mechanism": RRWithPrior(4.0, 10)}, "parties correct for KaryResponse"),
    ):
        with pytest.raises(ValueError, match=text):
            coded(NoisyLabels(replace(good, **change)))


def test_noisy_labels_may_be_given_under_their_first_name_and_not_under_both() -> None:
    own, mechanism, given = tables(), CodebookEmbedding(8.0, 10), noisy()
    first = SplitStrategy(CodeTop(10), mechanism, own, labels(own), told=given)
    assert first.noisy_labels is first.told is given
    with pytest.raises(TypeError, match="give noisy_labels alone"):
        SplitStrategy(CodeTop(10), mechanism, own, labels(own), told=given, noisy_labels=given)


@pytest.mark.parametrize("change", ["length", "range", "channel"])
def test_malformed_labels_are_refused(change: str, tmp_path: Path) -> None:
    party = Side("left", tmp_path, CONDITIONAL, width=10)
    exchange, good, own = local({1: party}), noisy().private, tables()
    records = own.tables["train"]
    terms = TableTerms("train", records.digest, 150, 25)
    (aligned,) = align(exchange, [terms], 1)
    before = party(None).digest()  # type: ignore[arg-type]
    if change == "length":
        records, private = Records.of(range(3)), replace(good, reports=good.reports[:3])
    elif change == "range":
        private = replace(good, reports=good.reports + 1)
    else:
        private = replace(good, mechanism=KaryResponse(4.0, 5))
    bad = NoisyLabels(private)
    with pytest.raises(PartyError, match="ldp:refused:proposal"):
        send_labels(exchange, [aligned], terms, records, bad)
    assert party(None).digest() == before  # type: ignore[arg-type]


def test_labels_may_be_randomized_before_the_parties_learn_of_them(tmp_path: Path) -> None:
    own = tables()
    response = KaryResponse(2.0, 10)
    private_ = dict(labels(own))
    private_["train"] = response.randomize_array(private_["train"], RandomSource.seeded(3))
    assert (private_["train"] != labels(own)["train"]).mean() > 0.4
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    private = TorchTop(module, lambda p: torch.optim.Adam(p, 0.01), loss=ForwardCorrected(response))
    result = SplitStrategy(private, UnaryEncoding(8.0, 32), own, private_, parties=1).start(
        local({1: Side("left", tmp_path, CONDITIONAL)}), epochs=5, evaluate_every=0
    )
    assert result.history[-1]["loss"] < result.history[0]["loss"]


@pytest.mark.parametrize("epsilon", [0.5, 100.0])
def test_the_corrected_loss_is_that_of_the_channel(epsilon: float) -> None:
    response = KaryResponse(epsilon, 4)
    scores = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    told = torch.tensor([0, 1, 2, 3, 3, 1])
    other = (1 - response.keep_probability) / 3
    channel = torch.full((4, 4), other, dtype=torch.float64).fill_diagonal_(
        response.keep_probability
    )
    expected = -(torch.softmax(scores, 1) @ channel)[range(6), told].log().mean()
    assert ForwardCorrected(response)(scores, told).item() == pytest.approx(expected.item())


def test_checkpoints_continue_where_they_stopped(tmp_path: Path) -> None:
    sides = {1: Side("left", tmp_path, CONDITIONAL)}
    first = strategy(parties=1)
    first.start(local(sides), epochs=4, evaluate_every=0)
    assert isinstance(first.top, TorchTop)
    first.top.save(tmp_path / "top.pt")
    second = strategy(parties=1)
    assert isinstance(second.top, TorchTop)
    second.top.load(tmp_path / "top.pt")
    found = second.start(local(sides), epochs=1)
    assert found.history[-1]["loss"] < 1.8
    assert not list(tmp_path.rglob("*.new"))
    with pytest.raises(ValueError, match="cannot be declared anew"):
        Side("left", tmp_path, PUBLIC)(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="holds another bottom"):
        Side("left", tmp_path, CONDITIONAL, width=7)(None)  # type: ignore[arg-type]


def test_a_step_that_is_delivered_twice_is_made_once(tmp_path: Path) -> None:
    side = Side("left", tmp_path, CONDITIONAL)
    party = side(None)  # type: ignore[arg-type]
    rows, gradient = np.arange(5), np.ones((5, 32), dtype=np.float32)
    party.learn("train", rows, gradient, "s-1")
    once = side(None).digest()  # type: ignore[arg-type]
    side(None).learn("train", rows, gradient, "s-1")  # type: ignore[arg-type]
    assert side(None).digest() == once  # type: ignore[arg-type]
    side(None).learn("train", rows, gradient, "s-2")  # type: ignore[arg-type]
    assert side(None).digest() != once  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"parties": 0}, "parties must be"),
        ({"train_table": "x"}, "train_table must be"),
        ({"mechanism": UnaryEncoding(None, 32)}, "must have an epsilon"),
        ({"labels": {"train": np.zeros(150, dtype=int)}}, "labels must be for"),
        ({"labels": {"train": np.zeros(3, dtype=int), "test": np.zeros(30, dtype=int)}}, "150"),
    ],
)
def test_what_does_not_fit_together_is_an_error(change: dict[str, object], text: str) -> None:
    own = tables()
    arguments: dict[str, object] = {
        "top": top(32),
        "mechanism": UnaryEncoding(1.0, 32),
        "tables": own,
        "labels": labels(own),
        **change,
    }
    with pytest.raises(ValueError, match=text):
        SplitStrategy(**arguments)  # type: ignore[arg-type]

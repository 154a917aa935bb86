"""One step for all: what a run does when a party or the server was killed, or restored."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.split import TorchParty, TorchTop, weights_digest
from flower_ldp.strategies import CodeTop, LocalExchange, PartyError, SplitResult, SplitStrategy
from flower_ldp.strategies.split_exchange import Exchange
from flower_ldp.wire.embedding import BACKWARD, FORWARD, REWIND, STEP_KEY
from tests.long.test_split import Listening, top
from tests.split_world import Everything, Side, labels, local, tables

CONDITIONAL = BottomModelClaim("conditional")
BLOCK = 75  # so that an epoch has two steps


class Killed(KeyboardInterrupt):
    """Nothing in the process goes on after this."""


class World:
    """Two parties and a server that have nothing but their files from one start to the next."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sides = {
            node: Side(side, folder, CONDITIONAL, block=BLOCK)
            for node, side in enumerate(("left", "right"))
        }
        self.seen: dict[str, list[str]] = {}

    def exchange(self) -> LocalExchange:
        return local(self.sides, Everything())

    def party(self, node: int) -> TorchParty:
        return self.sides[node](None)  # type: ignore[arg-type]

    def start(
        self, epochs: int = 1, exchange: object = None, checkpoint: bool = True, **options: bool
    ) -> tuple[TorchTop, SplitResult]:
        own, server = tables(block=BLOCK), top(32)
        strategy = SplitStrategy(server, UnaryEncoding(8.0, 32), own, labels(own))
        result = strategy.start(
            exchange or self.exchange(),  # type: ignore[arg-type]
            epochs=epochs,
            evaluate_every=0,
            checkpoint=self.folder / "top.pt" if checkpoint else None,
            on_step=lambda *_: self.note(server),
            **options,  # type: ignore[arg-type]
        )
        return server, result

    def state(self, server: TorchTop) -> list[str]:
        weights = weights_digest(server.module.state_dict())
        bottoms = (self.party(node).bottom.state_dict() for node in self.sides)
        return [weights, *map(weights_digest, bottoms)]

    def note(self, server: TorchTop) -> None:
        """What all held when a step was complete."""
        self.seen[str(server.at)] = self.state(server)


class Interrupted(Exchange):
    """An exchange that does something before one of its questions goes to one of its nodes."""

    def __init__(self, inner: LocalExchange, kind: str, after: int, do: object) -> None:
        self.inner, self.kind, self.left, self.do = inner, kind, after, do

    def nodes(self, least: int) -> list[int]:
        return self.inner.nodes(least)

    def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
        found: dict[int, Message] = {}
        for node, content in contents.items():
            self.left -= kind == self.kind
            if self.left == 0 and kind == self.kind:
                self.do()  # type: ignore[operator]
            found |= self.inner.ask(kind, {node: content})
        return found


def kill() -> None:
    raise Killed


def test_a_kill_between_two_parties_is_undone_by_the_next_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    with pytest.raises(Killed):
        # each step asks left, then right: the second step reaches only left
        world.start(2, Interrupted(world.exchange(), BACKWARD, 4, kill))
    assert world.party(0).step != world.party(1).step
    exchange = Listening(world.exchange())
    server, result = world.start(0, exchange)
    assert exchange.asked == [("query.align", [0, 1]), (REWIND, [0])]
    assert server.at == world.party(0).step == world.party(1).step
    assert [party.step for party in result.parties] == [server.at] * 2
    assert world.state(server) == world.seen[str(server.at)]
    world.start(1)
    assert len(world.seen) == 3


@pytest.mark.parametrize("point", range(1, 15))
def test_every_point_at_which_files_are_replaced_can_be_the_last(
    point: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of two parties and a top; a party replaces two files at each, the top three."""
    world, replace, left = World(tmp_path), os.replace, point
    world.note(world.start(0)[0])

    def replacing(path: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        replace(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replacing)
        with pytest.raises(Killed):
            world.start(2)
    server, _ = world.start(0)
    assert world.state(server) == world.seen[str(server.at)]
    # and what was put back can be killed and put back again
    with pytest.raises(Killed):
        world.start(1, Interrupted(world.exchange(), BACKWARD, 2, kill))
    again, _ = world.start(0)
    assert again.at == server.at
    assert world.state(again) == world.seen[str(again.at)]


def test_a_new_top_does_not_train_bottoms_that_were_trained_with_another(tmp_path: Path) -> None:
    world = World(tmp_path)
    first, _ = world.start(1, checkpoint=False)
    before = world.state(first)
    exchange = Listening(world.exchange())
    with pytest.raises(PartyError, match=f"party left: its bottom is at step {first.at}.*none"):
        world.start(1, exchange, checkpoint=False)
    assert [kind for kind, _ in exchange.asked] == ["query.align"]
    assert world.state(first) == before
    second, _ = world.start(1, checkpoint=False, any_step=True)
    assert world.party(0).step == world.party(1).step == second.at
    assert world.state(second) != before


def test_a_party_that_lost_its_folder_stops_the_run_before_it_releases(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(1)

    def lose() -> None:
        shutil.rmtree(tmp_path / "right")

    exchange = Listening(Interrupted(world.exchange(), FORWARD, 4, lose))  # type: ignore[arg-type]
    with pytest.raises(PartyError, match=r"party right: ldp:refused:step .*begin again"):
        world.start(1, exchange)
    assert [kind for kind, _ in exchange.asked] == ["query.align", FORWARD, BACKWARD, FORWARD]
    with pytest.raises(PartyError, match="party right: its bottom is at step none, the top at"):
        world.start(1)


def test_two_runs_do_not_take_turns_with_one_bottom(tmp_path: Path) -> None:
    world = World(tmp_path)

    def other_run() -> None:
        world.start(1, checkpoint=False, any_step=True)

    with pytest.raises(PartyError, match="party right: ldp:refused:step"):
        world.start(2, Interrupted(world.exchange(), FORWARD, 4, other_run), checkpoint=False)


def test_a_gradient_whose_answer_was_lost_may_be_sent_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    exchange, asked = world.exchange(), []

    class Noting(Interrupted):
        def ask(self, kind: str, contents: Mapping[int, RecordDict]) -> dict[int, Message]:
            asked.append((kind, dict(contents)))
            return super().ask(kind, contents)

    server, _ = world.start(1, Noting(exchange, "", 0, None))
    (kind, contents), before = asked[-1], world.state(server)
    assert kind == BACKWARD
    assert not any(reply.has_error() for reply in exchange.ask(kind, contents).values())
    assert world.state(server) == before
    (older,) = (content for kind, content in asked[:-1] if kind == BACKWARD)
    replies = exchange.ask(BACKWARD, older).values()
    assert {reply.error.reason for reply in replies} == {"ldp:refused:step"}


@pytest.mark.parametrize("after", [None, 7])
def test_a_message_that_does_not_say_its_step_is_refused(after: object, tmp_path: Path) -> None:
    world = World(tmp_path)
    content = RecordDict()
    if after is not None:
        content[STEP_KEY] = ConfigRecord({"after": after})  # type: ignore[dict-item]
    for kind in (FORWARD, BACKWARD):
        (reply,) = world.exchange().ask(kind, {0: content}).values()
        assert reply.error.reason == "ldp:refused:proposal"


def test_an_unknown_step_cannot_be_gone_back_to(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.start(1)
    before = world.party(0).digest()
    content = RecordDict({STEP_KEY: ConfigRecord({"after": "elsewhere-1"})})
    (reply,) = world.exchange().ask(REWIND, {0: content}).values()
    assert reply.error.reason == "ldp:refused:step"
    assert world.party(0).digest() == before
    frozen = local({1: Side("left", tmp_path / "p", BottomModelClaim("public"))}, Everything())
    (reply,) = frozen.ask(REWIND, {1: content}).values()
    assert reply.error.reason == "ldp:refused:message"


def test_steps_that_were_not_written_can_be_gone_back_on(tmp_path: Path) -> None:
    side = Side("left", tmp_path, CONDITIONAL)
    party = side(None)  # type: ignore[arg-type]
    lazy = TorchParty(
        *("left", tables(), party._features, party.bottom, CONDITIONAL, tmp_path / "lazy"),
        save_every=10,
    )
    digests = {"": lazy.digest()}
    for step in ("s-1", "s-2"):
        lazy.learn("train", np.arange(5), np.ones((5, 32), dtype=np.float32), step)
        digests[step] = lazy.digest()
    assert lazy.earlier() == ("",)
    lazy.rewind("")
    lazy.save()
    assert (lazy.step, lazy.digest()) == ("", digests[""])
    with pytest.raises(ValueError, match=r"lazy has no bottom of step s-2"):
        lazy.rewind("s-2")


def test_writing_a_bottom_again_does_not_lose_the_step_before(tmp_path: Path) -> None:
    party = Side("left", tmp_path, CONDITIONAL)(None)  # type: ignore[arg-type]
    for step in ("s-1", "s-2"):
        party.learn("train", np.arange(5), np.ones((5, 32), dtype=np.float32), step)
    party.save()
    assert (party.step, party.earlier()) == ("s-2", ("s-1",))
    party.rewind("s-1")
    assert (party.step, party.earlier()) == ("s-1", ("s-2",))


def test_a_top_that_cannot_be_saved_takes_no_checkpoint(tmp_path: Path) -> None:
    own = tables(block=BLOCK)
    strategy = SplitStrategy(CodeTop(10), UnaryEncoding(8.0, 32), own, labels(own))
    with pytest.raises(TypeError, match="needs a top with save and load, got CodeTop"):
        strategy.start(World(tmp_path).exchange(), epochs=1, checkpoint=tmp_path / "top.pt")

"""An app whose own handlers embed and learn: a record's bits are drawn and charged once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import EmbeddingOnceRelease, LdpMod
from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.privacy import Unit
from flower_ldp.strategies import EmbeddingQuery, LocalExchange, PartyError
from flower_ldp.strategies.replies import RunStopped
from flower_ldp.wire.record_ids import Records, RecordTables
from tests.fixtures import context_of, make_site
from tests.unit.clients.world import spent

EMBED, LEARN = "query.embed", "train.learn"
TABLES = RecordTables({"train": Records.of(range(10)), "test": Records.of(range(10, 13))}, 4)
#: So much that a bit is flipped once in 10^13.
QUERY = EmbeddingQuery(UnaryEncoding(60.0, 2), TABLES)
#: Of all records, table after table.
VALUES = np.random.default_rng(0).normal(size=(13, 2))
POLICY = """
data_id: ward-7
ledger: ledger.sqlite
mode: {mode}
messages:
  query.embed:
    "embedding_dp:conditional": {{epsilon: 60.0, unit: example}}
budgets: {{example: {{life: {{epsilon: 60.0}}}}}}
"""


def app(answer: Callable[[int], np.ndarray], *, gate: bool = True) -> ClientApp:
    """Return an app whose embeddings depend on how many gradients it was sent."""
    release = EmbeddingOnceRelease(TABLES, BottomModelClaim("conditional"))
    mod = LdpMod(actions={EMBED: release}, acknowledged=[LEARN])
    made = ClientApp(mods=[mod] if gate else [])

    @made.query("embed")
    def embed(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"embedding": Array(answer(len(context.state)))})
        return Message(RecordDict({"arrays": arrays}), reply_to=message)

    @made.train("learn")
    def learn(message: Message, context: Context) -> Message:
        context.state[f"gradient-{len(context.state)}"] = message.content["gradient"]
        return Message(RecordDict({"secret": ArrayRecord({})}), reply_to=message)

    return made


def party(
    folder: Path, made: ClientApp, mode: str = "simulation"
) -> Callable[[str, RecordDict], Message]:
    make_site(folder, POLICY.format(mode=mode))
    exchange = LocalExchange({7: (made, context_of(folder))})
    return lambda kind, content: exchange.ask(kind, {7: content})[7]


@pytest.mark.parametrize("table", ["train", "test"])
def test_each_block_is_answered_by_the_bits_of_its_own_records(tmp_path: Path, table: str) -> None:
    ask = party(tmp_path, app(lambda _: VALUES))
    start = 0 if table == "train" else 10
    for block in range(TABLES.blocks(table)):
        bits = QUERY.read(ask(EMBED, QUERY.content(table, block)), table, block)
        rows = start + TABLES.rows(table, block)
        assert np.array_equal(rows, TABLES.places(table, block))
        assert np.array_equal(bits, (VALUES[rows] > 0).astype(np.float32))


def test_bits_stay_and_cost_nothing_more_whatever_the_bottom_learns(tmp_path: Path) -> None:
    ask = party(tmp_path, app(lambda steps: VALUES if steps == 0 else -VALUES))
    first = QUERY.read(ask(EMBED, QUERY.content("train", 0)), "train", 0)
    gradient = RecordDict({"gradient": ArrayRecord({"g": Array(np.ones((10, 2)))})})
    assert list(ask(LEARN, gradient).content.array_records) == []
    again = QUERY.read(ask(EMBED, QUERY.content("train", 0)), "train", 0)
    assert np.array_equal(first, again)
    # What was not asked before comes of the bottom as it is now.
    later = QUERY.read(ask(EMBED, QUERY.content("train", 1)), "train", 1)
    assert np.array_equal(later, (-VALUES[TABLES.places("train", 1)] > 0).astype(np.float32))
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        accounts = [one for one in ledger.data_ids() if "/train/" in one]
    assert [spent(tmp_path, Unit.EXAMPLE, account) for account in accounts] == [60.0, 60.0]


def test_another_epsilon_is_another_draw_and_another_charge(tmp_path: Path) -> None:
    """Of one budget: a server gets no second draw for nothing, nor one beyond it."""
    ask = party(tmp_path, app(lambda _: VALUES))
    for epsilon in (20.0, 40.0, 20.0):
        query = EmbeddingQuery(UnaryEncoding(epsilon, 2), TABLES)
        query.read(ask(EMBED, query.content("train", 0)), "train", 0)
    with Ledger.open(tmp_path / "ledger.sqlite", read_only=True) as ledger:
        (account,) = (one for one in ledger.data_ids() if "/train/" in one)
    assert spent(tmp_path, Unit.EXAMPLE, account) == 60.0
    more = EmbeddingQuery(UnaryEncoding(1.0, 2), TABLES)
    with pytest.raises(PartyError, match="ldp:refused:budget"):
        more.read(ask(EMBED, more.content("train", 0)), "train", 0)


def test_another_number_of_embeddings_is_an_error_in_a_simulation(tmp_path: Path) -> None:
    ask = party(tmp_path, app(lambda _: VALUES[:4]))
    with pytest.raises(PartyError, match="ldp:failed"):
        QUERY.read(ask(EMBED, QUERY.content("train", 0)), "train", 0)


def test_another_number_of_embeddings_gets_a_neutral_report_in_a_deployment(tmp_path: Path) -> None:
    ask = party(tmp_path, app(lambda _: VALUES[:4]), "deployment")
    assert QUERY.read(ask(EMBED, QUERY.content("train", 0)), "train", 0).shape == (4, 2)


def test_answers_without_a_gate_stop_the_run(tmp_path: Path) -> None:
    ask = party(tmp_path, app(lambda _: VALUES, gate=False))
    with pytest.raises(RunStopped, match="no gate"):
        QUERY.read(ask(EMBED, QUERY.content("train", 0)), "train", 0)


def test_other_ids_and_more_than_the_budget_are_refused(tmp_path: Path) -> None:
    ask = party(tmp_path, app(lambda _: VALUES))
    others = EmbeddingQuery(QUERY.mechanism, RecordTables({"train": Records.of(range(9))}, 4))
    with pytest.raises(PartyError, match="ldp:refused:records"):
        others.read(ask(EMBED, others.content("train", 0)), "train", 0)
    dearer = EmbeddingQuery(UnaryEncoding(61.0, 2), TABLES)
    with pytest.raises(PartyError, match="ldp:refused:policy"):
        dearer.read(ask(EMBED, dearer.content("train", 0)), "train", 0)


def test_embeddings_without_noise_are_no_release() -> None:
    with pytest.raises(ValueError, match="quantization alone"):
        EmbeddingQuery(UnaryEncoding(None, 2), TABLES)

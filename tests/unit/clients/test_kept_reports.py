"""Split training under a policy and a ledger: what a record costs, and what is kept."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import OwnerAuthorizer, ReleaseRequest
from flower_ldp.clients.charging import MOST_DRAWS
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import BottomModelClaim, UnaryEncoding
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.strategies import PartyError, SplitStrategy
from flower_ldp.wire.embedding import FORWARD, STEP_KEY, EmbeddingProposal, TableTerms
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import context, payload, policy_text
from tests.long.test_split import top
from tests.split_world import Side, labels, local, tables

BUDGETS = "example: {life: {epsilon: 100.0, delta: 1.0e-5}}, client: {life: {epsilon: 5.0}}"
BY_NAME = '"embedding_dp:conditional": {epsilon: 32.0, unit: example}'


def policy(conditional: str = "") -> str:
    releases = f"""
  train.forward: &kinds
    embedding_dp: {{epsilon: 32.0, unit: example}}
    bottom_training: {{epsilon: 2.0, delta: 1.0e-5, unit: example}}
    {conditional}
  evaluate.forward: *kinds
"""
    return policy_text(releases, budgets=BUDGETS)


POLICY = policy()
BLOCK = 75


def run(folder: Path, kind: str, epochs: int, eps: float = 2.0, block: int = BLOCK) -> None:
    own = tables(block=block)
    claim = BottomModelClaim("dp", 2.0, 1e-5) if kind == "dp" else BottomModelClaim(kind)  # type: ignore[arg-type]
    side = Side("left", folder, claim, block=block)
    strategy = SplitStrategy(top(32, 1), UnaryEncoding(eps, 32), own, labels(own), parties=1)
    exchange = local({1: side}, OwnerAuthorizer())
    strategy.start(exchange, epochs=epochs, evaluate_every=0, any_step=True)


def spent(folder: Path) -> dict[str, tuple[Fraction, Fraction]]:
    """Epsilon and delta of each record, by the block that it is in."""
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.verify()
        return {
            name: (Fraction(amount.epsilon_text), Fraction(amount.delta_text))
            for name in ledger.data_ids()
            if "#" in name
            for unit, amount in ledger.totals(name).items()
            if unit is Unit.EXAMPLE
        }


def test_a_frozen_bottom_pays_once_whatever_the_epochs_and_runs(folder: Path) -> None:
    run(folder, "public", epochs=3)
    run(folder, "public", epochs=2)
    layout = tables(block=BLOCK).layout[:16]
    # 32 bits at label 2: 32 per record; five epochs would be 160 and over the budget
    names = [f"ward-7#{layout}/train/{block}" for block in range(2)]
    assert spent(folder) == dict.fromkeys(names, (32, 0))
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        entries = list(ledger.entries())
    assert [(entry.sealed, entry.run_id) for entry in entries] == [(True, 0)] * 2
    assert json.loads(entries[0].parameters)["claim"] == "public"


def test_a_bottom_that_learns_pays_for_every_epoch_where_the_policy_names_its_claim(
    folder: Path,
) -> None:
    with pytest.raises(PartyError, match="it does not allow the release"):
        run(folder, "conditional", epochs=1)
    assert spent(folder) == {}
    (folder / "policy.yaml").write_text(policy(BY_NAME))
    run(folder, "conditional", epochs=3)
    assert set(spent(folder).values()) == {(96, 0)}
    with pytest.raises(PartyError, match="a budget would be exceeded"):
        run(folder, "conditional", epochs=1)
    assert set(spent(folder).values()) == {(96, 0)}
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        kinds = {event.mechanism for entry in ledger.entries() for event in entry.events}
        covers = {json.loads(entry.parameters)["covers"] for entry in ledger.entries()}
    assert kinds == {"embedding_dp:conditional"}
    assert all("conditional on the bottom model" in text for text in covers)


def test_a_bottom_trained_privately_is_paid_for_once_by_all_records(folder: Path) -> None:
    run(folder, "dp", epochs=3)
    assert set(spent(folder).values()) == {(34, Fraction(1, 10**5))}
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        found = [(e.data_id, e.events[0].mechanism) for e in ledger.entries()]
        # One record may lie in a block that is never released: its training is told all the same.
        assert ledger.totals("ward-7#another/train/0")[Unit.EXAMPLE].epsilon_text == "34"
    assert [name for name, mechanism in found if mechanism == "bottom_training"] == ["ward-7"]
    assert len(found) == 3


def test_another_private_bottom_adds_to_blocks_that_the_first_one_told_of(folder: Path) -> None:
    side = Side("left", folder, BottomModelClaim("dp", 2.0, 5e-6), block=BLOCK)
    ask(folder, side)
    party = side(None)  # type: ignore[arg-type]
    party.bottom.get_parameter("0.bias").data += 1.0
    party.save()
    ask(folder, side, block=1)
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "36"  # 2 + 2 + 32


def test_another_bottom_or_label_is_another_release(folder: Path) -> None:
    run(folder, "public", epochs=1, eps=1.0)
    run(folder, "public", epochs=1, eps=2.0)
    assert set(spent(folder).values()) == {(48, 0)}
    (folder / "left" / "bottom.pt").unlink()
    first = Side("left", folder, BottomModelClaim("public"))(None)  # type: ignore[arg-type]
    first.bottom.get_parameter("0.bias").data += 1.0
    first.save()
    run(folder, "public", epochs=1)
    assert set(spent(folder).values()) == {(80, 0)}


def test_records_in_other_blocks_pay_for_both(folder: Path) -> None:
    run(folder, "public", epochs=1)
    run(folder, "public", epochs=1, eps=1.0, block=50)
    # 32 in one layout and 16 in the other: whichever blocks a record is in, it has paid both
    assert set(spent(folder).values()) == {(48, 0)}
    run(folder, "public", epochs=1, eps=1.5, block=50)
    with pytest.raises(PartyError, match="a budget would be exceeded"):
        run(folder, "public", epochs=1, eps=2.0, block=38)
    assert set(spent(folder).values()) == {(72, 0)}


def ask(folder: Path, owner_side: Side, block: int = 0) -> bytes:
    own = owner_side(None).tables  # type: ignore[arg-type]
    terms = TableTerms("train", own.tables["train"].digest, 150, own.block_size)
    fields = EmbeddingProposal(UnaryEncoding(2.0, 32), terms, block).to_fields()
    step = ConfigRecord({"after": owner_side(None).step})  # type: ignore[arg-type]
    content = RecordDict({PROPOSAL_KEY: ConfigRecord({**fields}), STEP_KEY: step})
    (reply,) = local({1: owner_side}, OwnerAuthorizer()).ask(FORWARD, {1: content}).values()
    if reply.has_error():
        raise PartyError("left", reply.error.reason or "")
    return payload(reply)


def test_the_same_question_gets_the_same_bits_until_the_bottom_moves(folder: Path) -> None:
    (folder / "policy.yaml").write_text(policy(BY_NAME))
    side = Side("left", folder, BottomModelClaim("conditional"), block=BLOCK)
    first = ask(folder, side)
    assert ask(folder, side) == first
    assert list(spent(folder).values()) == [(32, 0)]
    gradient = np.ones((5, 32), dtype=np.float32)
    side(None).learn("train", np.arange(5), gradient, "s")  # type: ignore[arg-type]
    assert ask(folder, side) != first
    assert list(spent(folder).values()) == [(64, 0)]


def request(part: str, unit: Unit, memo: str = "") -> ReleaseRequest:
    events = (PrivacyEvent("embedding_dp", 1.0, unit=unit),)
    return ReleaseRequest(1, f"m{part}", "train.forward", events, "{}", part, memo)


def test_what_is_charged_to_all_of_the_data_is_charged_to_each_part(folder: Path) -> None:
    """A bottom trained on the very data, or labels of it: charged as a whole, before or after."""
    authorizer = OwnerAuthorizer()
    for part in ("layout/train/0", "", "another/train/0", "layout/train/1"):
        authorizer.authorize(request(part, Unit.EXAMPLE), context()).close()
    assert spent(folder) == dict.fromkeys(
        (f"ward-7#{part}" for part in ("another/train/0", "layout/train/0", "layout/train/1")),
        (3, 0),
    )
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.totals("ward-7")[Unit.EXAMPLE].epsilon_text == "3"
        assert Unit.CLIENT not in ledger.totals("ward-7")


def test_a_question_whose_report_never_comes_is_refused_in_the_end(folder: Path) -> None:
    asked = request("layout/train/0", Unit.EXAMPLE, "q")
    for _ in range(MOST_DRAWS):
        OwnerAuthorizer().authorize(asked, context()).close()
    with pytest.raises(RefusalError, match="no report was sealed"):
        OwnerAuthorizer().authorize(asked, context()).close()
    assert list(spent(folder).values()) == [(MOST_DRAWS, 0)]

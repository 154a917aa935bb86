"""Refusal codes: each stands once, and what is said of it elsewhere is said of the same codes."""

from __future__ import annotations

import re
from pathlib import Path

from flower_ldp import refusals
from flower_ldp.errors import BudgetExhausted
from flower_ldp.refusals import HINTS, MEANINGS
from flower_ldp.strategies.replies import UNCHARGED
from flower_ldp.strategies.split_exchange import PartyError

WIRE = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return one section of docs/wire.md, in one line."""
    return " ".join(WIRE.split(f"\n## {title}\n")[1].split("\n## ")[0].split())


def test_every_code_has_one_row() -> None:
    own = [
        getattr(refusals, name)
        for name in vars(refusals)
        if name == "FAILED" or name.startswith("REFUSED_")
    ]
    assert sorted(own) == sorted(MEANINGS)
    assert all(code == one.code for code, one in MEANINGS.items())
    assert all(one.meaning and one.remedy for one in MEANINGS.values())
    assert all(refusals.is_code(code) for code in MEANINGS)
    assert not refusals.is_code("record")


def test_the_documentation_has_the_same_rows() -> None:
    told = re.findall(
        r"- `(ldp:[a-z:]+?)(?:: <text>)?` \((\w+)(; feature party)?\): ",
        section("When the client does not answer"),
    )
    assert sorted((code, stage, bool(party)) for code, stage, party in told) == sorted(
        (code, one.stage, one.party) for code, one in MEANINGS.items()
    )


def test_what_the_server_leaves_out_of_its_account_was_never_charged() -> None:
    expected = {
        "ldp:refused:app",
        "ldp:refused:budget",
        "ldp:refused:message",
        "ldp:refused:policy",
        "ldp:refused:proposal",
        "ldp:refused:rehearsal",
    }
    assert expected == UNCHARGED
    assert HINTS.keys() < MEANINGS.keys()


def test_a_party_that_refuses_is_explained() -> None:
    assert all("(" in str(PartyError("bank", code)) for code in MEANINGS)


def test_the_names_that_were_there_before_are_the_same_codes() -> None:
    from flower_ldp.accounting.ledger import REFUSED_REPEAT
    from flower_ldp.policy import REFUSED_POLICY

    assert {REFUSED_POLICY, REFUSED_REPEAT, BudgetExhausted("").code} < MEANINGS.keys()

"""Claims: what follows for the ledger from how a bottom came to be."""

from __future__ import annotations

import math

import pytest

from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import BottomModelClaim, CodebookEmbedding, UnaryEncoding
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent, Unit, compose
from tests.fixtures import parse_policy

RELEASE = UnaryEncoding(5.0, 128).events()


def test_a_public_bottom_costs_the_release() -> None:
    assert BottomModelClaim("public").events(RELEASE) == RELEASE


def test_a_private_bottom_brings_its_training() -> None:
    claim = BottomModelClaim("dp", 2.0, 1e-5)
    (release,) = claim.events(CodebookEmbedding(6.0, 10).events())
    (training,) = claim.training()
    assert release == PrivacyEvent("codebook_embedding", 6.0, unit=Unit.EXAMPLE)
    assert training == PrivacyEvent("bottom_training", 2.0, 1e-5, Unit.EXAMPLE)
    total = compose((release, training))[Unit.EXAMPLE]
    assert (total.epsilon, total.delta) == (8.0, 1e-5)
    assert "epsilon 2, delta 1e-05" in claim.covers


def test_a_conditional_claim_is_in_the_name_of_every_event() -> None:
    claim = BottomModelClaim("conditional")
    (event,) = claim.events(RELEASE)
    assert event.mechanism == "embedding_dp:conditional"
    assert (event.epsilon, event.unit) == (320.0, Unit.EXAMPLE)
    assert "conditional on the bottom model" in claim.covers


@pytest.mark.parametrize("kind", ["public", "dp", "conditional"])
def test_a_release_that_costs_nothing_costs_nothing(kind: str) -> None:
    claim = BottomModelClaim("dp", 1.0, 1e-6) if kind == "dp" else BottomModelClaim(kind)  # type: ignore[arg-type]
    assert claim.events(()) == ()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("private",), "kind must be one of"),
        (("public", 1.0), "for kind 'dp' only"),
        (("conditional", 0.0, 1e-5), "for kind 'dp' only"),
        (("dp",), "epsilon must be in"),
        (("dp", math.inf, 1e-5), "epsilon must be in"),
        (("dp", math.nan, 1e-5), "epsilon must be in"),
        (("dp", 1.0), "delta must be in"),
        (("dp", 1.0, 1.0), "delta must be in"),
    ],
)
def test_amounts_go_with_the_kind(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        BottomModelClaim(*arguments)  # type: ignore[arg-type]


POLICY = """
data_id: ward-7
ledger: spent.sqlite
mode: {mode}
messages: {messages}
unlisted_messages: {unlisted}
budgets:
  example:
    life: {{epsilon: 1000.0}}
"""
BY_NAME = '{train.forward: {"embedding_dp:conditional": {epsilon: 320.0, unit: example}}}'
PLAIN = "{train.forward: {embedding_dp: {epsilon: 320.0, unit: example}}}"


def policy(mode: str, messages: str = "{}", unlisted: str = "refuse") -> Policy:
    return parse_policy(POLICY.format(mode=mode, messages=messages, unlisted=unlisted))


def allowed(judge: Policy, claim: BottomModelClaim) -> bool:
    try:
        judge.check("train.forward", (*claim.events(RELEASE), *claim.training()))
    except RefusalError:
        return False
    return True


@pytest.mark.parametrize("mode", ["deployment", "simulation"])
def test_a_mechanism_that_is_allowed_is_not_allowed_conditionally(mode: str) -> None:
    assert allowed(policy(mode, PLAIN), BottomModelClaim("public"))
    assert not allowed(policy(mode, PLAIN), BottomModelClaim("conditional"))
    assert allowed(policy(mode, BY_NAME), BottomModelClaim("conditional"))
    assert not allowed(policy(mode, BY_NAME), BottomModelClaim("public"))


def test_a_deployment_that_answers_everything_does_not_answer_conditionally() -> None:
    assert allowed(policy("simulation", unlisted="answer"), BottomModelClaim("conditional"))
    assert not allowed(policy("deployment", unlisted="answer"), BottomModelClaim("conditional"))
    assert allowed(policy("deployment", unlisted="answer"), BottomModelClaim("public"))


def test_the_training_of_a_bottom_must_be_allowed_too() -> None:
    claim = BottomModelClaim("dp", 2.0, 1e-5)
    assert not allowed(policy("deployment", PLAIN), claim)
    training = "bottom_training: {epsilon: 2.0, delta: 1.0e-5, unit: example}"
    both = PLAIN.replace("{embedding_dp:", "{" + training + ", embedding_dp:")
    assert allowed(policy("deployment", both), claim)
    assert not allowed(policy("deployment", both), BottomModelClaim("dp", 2.1, 1e-5))

"""The apps that a policy lists: what is no list, and which configurations of a run are allowed."""

from __future__ import annotations

import math

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.policy import App, Policy
from tests.fixtures import parse_policy, policy_text

DIGEST = "sha256:" + "0f" * 32
TEXT = policy_text("{}")
APP = """
  releases: [embedding_dp, "embedding_dp:conditional", dpsgd]
  run_config:
    rate: {numbers: [0.01, 1.0]}
    steps: {integers: [1, 20]}
    model: {values: [small, large]}
    exact: {values: [true, 1.5]}
"""


def listed(app: str = APP, digest: str = DIGEST) -> Policy:
    indented = app.replace("\n", "\n  ")
    return parse_policy(f"{TEXT}apps:\n  {digest}:{indented}\n")


def only(policy: Policy) -> App:
    (app,) = policy.apps.values()
    return app


def test_a_policy_lists_apps_by_digest() -> None:
    policy = listed()
    assert list(policy.apps) == [DIGEST]
    assert policy.unlisted_apps == "answer"
    assert parse_policy(TEXT).apps == {}
    app = only(policy)
    assert app.may_release("dpsgd")
    assert not app.may_release("kary_response")
    assert app.environment is None


@pytest.mark.parametrize(
    "digest",
    ["0f" * 32, "sha256:" + "0f" * 31, "sha256:" + "0F" * 32, "sha1:" + "0f" * 32, f"'{DIGEST} '"],
)
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(ConfigError, match="64 hexadecimal digits"):
        listed(digest=digest)


@pytest.mark.parametrize(
    ("app", "complaint"),
    [
        ("release: []", "not a known field"),
        ("releases: [embeding_dp]", "embedding_dp"),
        ("environment: 0f0f", "64 hexadecimal"),
        ("environment:", "filled in or left out"),
        ("run_config: {rate: {}}", "must have one of"),
        ("run_config: {rate: {values: []}}", "must have one of"),
        ("run_config: {rate: {values: [1], integers: [1, 2]}}", "must have one of"),
        ("run_config: {rate: {integers: [2, 1]}}", "least and the greatest"),
        ("run_config: {rate: {integers: [1]}}", "least and the greatest"),
        ("run_config: {rate: {integers: [1, 2.5]}}", "integer"),
        ("run_config: {rate: {integers: [false, true]}}", "integer"),
        ("run_config: {rate: {numbers: [0.1, .inf]}}", "least and the greatest"),
        ("run_config: {rate: {numbers: [0.1, .nan]}}", "least and the greatest"),
        ("run_config: {rate: 3}", "section"),
    ],
)
def test_what_is_no_list_of_apps_is_refused(app: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        listed(f"\n  {app}")


ALLOWED: list[dict[str, object]] = [{}, {"rate": 0.01}, {"exact": 1.5}]
ALLOWED += [{"rate": 1.0, "steps": 20, "model": "large", "exact": True}]
OTHERS: dict[str, tuple[object, ...]] = {
    "other": (1,),
    "rate": (1.1, math.nan, math.inf, 1, "0.5", True),
    "steps": (0, 5.0, True),
    "model": ("Small", 1),
    "exact": (1, 1.0, "True"),
    "Rate": (0.5,),
}


@pytest.mark.parametrize("overrides", ALLOWED)
def test_a_configuration_within_the_list_is_allowed(overrides: dict[str, object]) -> None:
    assert only(listed()).misfit(overrides) is None


@pytest.mark.parametrize(
    "overrides",
    [{"rate": 0.5, "other": 1}, *[{name: one} for name, every in OTHERS.items() for one in every]],
)
def test_any_other_configuration_is_not(overrides: dict[str, object]) -> None:
    assert str(only(listed()).misfit(overrides)).startswith("the run may not set ")


def test_conditional_claims_are_listed_by_name() -> None:
    plain = only(listed("\n  releases: [embedding_dp]"))
    assert plain.may_embed("embedding_dp")
    assert not plain.may_embed("codebook_embedding")
    assert not plain.may_learn(gradients=False)
    trained = only(listed("\n  releases: [embedding_dp, bottom_training]"))
    assert trained.may_learn(gradients=False)
    assert not trained.may_learn(gradients=True)
    conditional = only(listed('\n  releases: ["embedding_dp:conditional"]'))
    assert conditional.may_embed("embedding_dp")
    assert conditional.may_learn(gradients=True)

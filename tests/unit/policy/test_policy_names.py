"""A policy that names a mechanism nearly right is an error that gives the right name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import flower_ldp
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import MECHANISMS
from flower_ldp.policy import Policy
from tests.fixtures import ROOT, parse_policy, policy_text

PACKAGE = Path(flower_ldp.__file__).parent


def policy(name: str) -> Policy:
    text = policy_text(f"{{train: {{{name}: {{epsilon: 1.0}}}}}}")
    return parse_policy(text, source="site.yaml")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("sign_ds", "signds"),
        ("SignDS", "signds"),
        ("SignDSRelease", "signds"),
        ("signdds", "signds"),
        ("mag-rr", "magrr"),
        ("Gaussian", "gaussian"),
        ("dp_encrypt", "gaussian"),
        ("laplace_eval", "laplace"),
        ("codebook", "codebook_response"),
        ("dp_sgd", "dpsgd"),
        ("helth", "health"),
        ("embeddingdp:conditional", "embedding_dp:conditional"),
    ],
)
def test_a_near_miss_is_refused_with_the_right_name(given: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        policy(given)
    assert f"site.yaml, line 5: messages.train.{given}" in str(caught.value)
    assert f"must be {meant!r}: no mechanism is called {given!r}" in str(caught.value)


@pytest.mark.parametrize(
    "name", [*MECHANISMS, "embedding_dp:conditional", "privunit", "our_own", "laplace_2", "x"]
)
def test_known_names_and_those_of_other_mechanisms_are_taken(name: str) -> None:
    assert list(policy(name).messages["train"]) == [name]


def test_the_names_are_those_that_the_documentation_lists() -> None:
    text = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    table = text.partition("| message, unit | mechanisms |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[2] for row in table.splitlines()]
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(listed) > 15
    assert listed <= set(MECHANISMS)


def test_no_event_of_the_package_has_a_name_that_is_not_known() -> None:
    named = set()
    folders = ("mechanisms", "labels", "training", "wire")
    for path in [path for folder in folders for path in (PACKAGE / folder).rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'PrivacyEvent\(\s*"(\w+)"', text))
        named |= set(re.findall(r'(?m)^ {4}name(?:: [\w\[\]]+)? = "(\w+)"', text))
        named |= set(re.findall(r'BinaryResponse\([^)]*name="(\w+)"', text))
    assert {"signds", "magrr", "laplace", "dpsgd"} <= named
    assert named <= set(MECHANISMS)

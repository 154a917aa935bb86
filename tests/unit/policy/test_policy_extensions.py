"""The extensions that a policy lists: what is no list, and which could never be charged."""

from __future__ import annotations

import pytest

from flower_ldp.errors import ConfigError
from tests.extension_world import NAME, policy_text
from tests.fixtures import parse_policy

DIGEST = "sha256:" + "0f" * 32
TEXT = policy_text(DIGEST)


def test_a_policy_lists_extensions_by_name() -> None:
    policy = parse_policy(TEXT)
    (entry,) = policy.extensions.values()
    assert list(policy.extensions) == [NAME]
    assert (entry.distribution, entry.version) == ("one-bit", "0.1.0")
    assert (entry.digest, entry.epsilon, entry.delta) == (DIGEST, 1.0, 0.0)
    assert parse_policy(TEXT.partition("extensions:")[0]).extensions == {}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("one_bit: {", "signds: {", "overrides none"),
        ("one_bit: {", "laplace_2: {", "overrides none"),
        ("one_bit: {", "codeword_: {", "overrides none"),
        ("one_bit: {", "dpencrypt: {", "overrides none"),
        ("one_bit: {", "codewort: {", "must be 'codeword'"),
        ("one_bit: {", "One_Bit: {", "no name of an extension"),
        ("one_bit: {", "\uff4fne_bit: {", "no name of an extension"),
        ('"one-bit"', '"One_Bit"', "normal name"),
        ('"one-bit"', '"one-b\u0131t"', "normal name"),
        ('"0.1.0"', '">=0.1"', "one version"),
        ('"0.1.0"', "0.1", "must be text"),
        (DIGEST, "sha256:0f", "64 hexadecimal digits"),
        ('"epsilon": 1.0', '"epsilon": 0.0', "epsilon"),
        ('"epsilon": 1.0', '"epsilon": 4.5', "at least what extensions charges"),
        ('"epsilon": 1.0', '"epsilon": 1.0, "delta": 0.1', "at least what extensions charges"),
        (', "epsilon": 1.0', "", "epsilon"),
        ("{epsilon: 4.0}", "{epsilon: 4.0, unit: example}", "budget|must be client"),
        ('"epsilon": 1.0', '"epsilon": 1.0, "path": "here"', "path"),
    ],
)
def test_what_is_no_list_of_extensions_is_refused(old: str, new: str, complaint: str) -> None:
    head, place, tail = TEXT.partition("extensions:")
    if old in tail:
        tail = tail.replace(old, new)
    else:
        head = head.replace(old, new)
    assert head + place + tail != TEXT
    with pytest.raises(ConfigError, match=complaint):
        parse_policy(head + place + tail)


def test_an_extension_is_about_the_client() -> None:
    text = TEXT.replace("{epsilon: 4.0}", "{epsilon: 4.0, unit: example}")
    text = text.replace("budgets: {", "budgets: {example: {life: {epsilon: 9.0}}, ")
    with pytest.raises(ConfigError, match="must be client"):
        parse_policy(text)

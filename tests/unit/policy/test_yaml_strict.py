"""YAML files are read as a person reads them, or not at all."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.errors import ConfigError
from flower_ldp.policy import Policy
from tests.fixtures import parse_policy

TEXT = """\
data_id: ward-7
ledger: spent.sqlite
mode: deployment
messages:
  train: {signds: {epsilon: 8.0}}
budgets:
  client:
    life: {epsilon: 90.0, delta: 1.0e-6}
"""
LIFE = "    life: {epsilon: 90.0, delta: 1.0e-6}\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, source="owner.yaml")
    return str(caught.value)


def read(text: str) -> Policy | None:
    try:
        return parse_policy(text)
    except ConfigError:
        return None


#: And how YAML would read them: 90, 90, 90.5, 8, -8, 3, 31, 10, 10.5, 0, 10.5, 90, 8, 8 and 90.
NOTATIONS = ["1:30", "+1:30", "1:30.5", "010", "-010", "0b11", "0x1F", "1_0", "1_0.5", "00"]
NOTATIONS += ["010.5", "!!float 1:30", "!!int '010'", "! 010", "!<tag:yaml.org,2002:float> 1:30"]


@pytest.mark.parametrize("number", NOTATIONS)
def test_a_number_in_another_notation_is_refused(number: str) -> None:
    message = refusal(TEXT.replace("90.0", number))
    wanted = "owner.yaml, line 8: budgets.client.life.epsilon must be written in plain decimals"
    assert message.startswith(wanted)
    assert message.endswith(f"got {number.split()[-1].strip(chr(39))}")


def test_a_number_in_a_section_of_its_own_is_refused() -> None:
    message = refusal(TEXT.replace("90.0", "!!float {=: 8}"))
    assert "line 8: budgets.client.life.epsilon is a section or a list, tagged" in message


@pytest.mark.parametrize(
    ("number", "value"),
    [("90", 90.0), ("+90.", 90.0), (".5", 0.5), ("1.0e+2", 100.0), ("1.5E-1", 0.15), ("9e0", None)],
)
def test_plain_decimals_are_numbers(number: str, value: float | None) -> None:
    policy = read(TEXT.replace("90.0", number))
    assert (policy and policy.budgets["client"].life.epsilon) == value


@given(st.text("0123456789+-._:eExXob", min_size=1, max_size=9))
def test_numbers_read_as_they_are_written(number: str) -> None:
    policy = read(TEXT.replace("90.0", number))
    if policy is not None:
        assert policy.budgets["client"].life.epsilon == float(number)
        assert "_" not in number


START = TEXT[: TEXT.index("budgets")]


@pytest.mark.parametrize("step", ["{{<<: [*a{0}, *a{0}]}}", "{{x: *a{0}, y: *a{0}}}"])
@pytest.mark.parametrize("levels", [8, 25])
def test_a_file_that_grows_when_it_is_read_is_refused(step: str, levels: int) -> None:
    steps = "".join(f"a{n + 1}: &a{n + 1} {step.format(n)}\n" for n in range(levels))
    bomb = "a0: &a0 {x: 1}\n" + steps
    assert len(bomb) < 800
    begun = time.process_time()
    message = refusal(START + bomb)
    assert time.process_time() - begun < 1
    if levels == 25:
        wanted = "it has more than 16 aliases (*): write the fields out"
        assert message == f"owner.yaml, line 15: not valid YAML: {wanted}"


@pytest.mark.parametrize("merged", ["<<: {life: {epsilon: 500.0}}", "!!merge x: {}"])
def test_a_merge_is_refused(merged: str) -> None:
    message = refusal(TEXT.replace(LIFE, f"    {merged}\n" + LIFE))
    wanted = "merges (<<) are not read: write the fields out"
    assert message == f"owner.yaml, line 8: not valid YAML: {wanted}"


def test_an_alias_is_read() -> None:
    policy = parse_policy(TEXT.replace("client:\n", "client: &all\n") + "  example: *all\n")
    assert policy.budgets["example"] == policy.budgets["client"]


BREAKS = ["\r", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("end", BREAKS)
def test_a_comment_ends_where_the_line_does(end: str) -> None:
    hidden = TEXT.replace(LIFE, f"    # was:{end}    life: {{epsilon: 500.0}}\n")
    wanted = f"holds the character U+{ord(end):04X}, which an editor may not show"
    assert refusal(hidden).startswith(f"owner.yaml, line 8: {wanted}")


@pytest.mark.parametrize("turned", ["\u202e", "\u2066", "\u202a"])
def test_what_turns_the_order_of_letters_is_refused(turned: str) -> None:
    assert f"U+{ord(turned):04X}" in refusal(TEXT + f"# {turned}5\n")


def test_lines_may_end_as_on_windows() -> None:
    assert parse_policy(TEXT.replace("\n", "\r\n")) == parse_policy(TEXT)


ODD = st.sampled_from([*BREAKS, "\x0b", "\x0c", "\u202e", "\ufeff", "\x00", "\x1c"])


@given(st.text(ODD | st.characters(), max_size=6))
def test_no_character_in_a_comment_adds_a_field(characters: str) -> None:
    if "\n" in characters:
        return
    policy = read(TEXT + f"# {characters}unlisted_messages: answer\n")
    assert policy is None or policy == parse_policy(TEXT)

"""The data owner's policy: what loads, what is refused and why, and which budgets it states."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flower_ldp.accounting.ledger.charges import Limit, NumberLimit
from flower_ldp.errors import ConfigError, RefusalError
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.policy import (
    ENVIRONMENT_VARIABLE,
    NODE_CONFIG_KEY,
    REFUSED_POLICY,
    Policy,
    find_policy,
    load_policy,
    sections,
)
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import CONFIGS, parse_policy

SAMPLE = CONFIGS / "client_policy.yaml"

TEXT = """\
data_id: ward-7
ledger: spent.sqlite
mode: deployment
messages:
  train:
    signds: {epsilon: 8.0}
    magrr: {epsilon: 1}
    gauss: {epsilon: 2.0, delta: 1.0e-6, unit: example}
  evaluate:
    laplace: {epsilon: 4.0}
budgets:
  client:
    run: {epsilon: 90.0}
    window: {epsilon: 180.0, days: 30}
    life: {epsilon: 900.0}
  example:
    life: {epsilon: 10.0, delta: 1.0e-4}
"""

SIGNDS = PrivacyEvent("signds", 8.0)
MAGRR = PrivacyEvent("magrr", 1.0)
GAUSS = PrivacyEvent("gauss", 2.0, 1e-6, Unit.EXAMPLE)


Events = tuple[PrivacyEvent, ...]


@pytest.fixture
def policy() -> Policy:
    return parse_policy(TEXT)


def refusal(text: str) -> str:
    """Return the text of the error that ``text`` must cause."""
    with pytest.raises(ConfigError) as caught:
        parse_policy(text, source="owner.yaml")
    return str(caught.value)


def changed(old: str, new: str) -> str:
    """Return the file with one piece replaced."""
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


def refused(policy: Policy, message_type: str, *events: PrivacyEvent) -> str:
    """Return the detail of the refusal that a release must cause."""
    with pytest.raises(RefusalError) as caught:
        policy.check(message_type, events)
    assert caught.value.code == REFUSED_POLICY == "ldp:refused:policy"
    return caught.value.detail


# What loads.


def test_sample_loads_and_says_what_its_comments_say() -> None:
    policy = load_policy(SAMPLE)
    assert policy.data_id == "ward-7-images"
    assert policy.ledger == SAMPLE.parent / "privacy-ledger.sqlite"
    assert (policy.mode, policy.is_simulation) == ("deployment", False)
    assert policy.unlisted_messages == "refuse"
    assert policy.limits() == (
        Limit(Unit.CLIENT, "run", 450.0),
        Limit(Unit.CLIENT, "window", 450.0, 0.0, 30 * 86_400.0),
        Limit(Unit.CLIENT, "life", 900.0),
    )
    policy.check("train", [SIGNDS, MAGRR])
    for message_type in ("evaluate", "query"):
        refused(policy, message_type, SIGNDS)


def test_sample_names_every_field() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    assert {*yaml.safe_load(text), "anchor", "analyzer"} == set(Policy.model_fields)
    names = ("Allowance", "AnchorPlace", "Budget", "Releases", "ReleaseWindow", "Total", "Window")
    for name in names:
        assert all(field in text for field in getattr(sections, name).model_fields)
    assert f"{NODE_CONFIG_KEY}=" in text
    assert f"{ENVIRONMENT_VARIABLE}=" in text


def test_budgets_are_the_limits_of_a_ledger(policy: Policy) -> None:
    assert policy.limits() == (
        Limit(Unit.CLIENT, "run", 90.0),
        Limit(Unit.CLIENT, "window", 180.0, 0.0, 2_592_000.0),
        Limit(Unit.CLIENT, "life", 900.0),
        Limit(Unit.EXAMPLE, "life", 10.0, 1e-4),
    )


def test_a_window_may_be_a_fraction_of_a_day_and_a_mode_a_simulation() -> None:
    assert parse_policy(changed("days: 30", "days: 0.5")).limits()[1].window_seconds == 43_200.0
    assert parse_policy(changed("deployment", "simulation")).is_simulation


def test_a_policy_cannot_be_changed(policy: Policy) -> None:
    with pytest.raises(ValueError, match="frozen"):
        policy.mode = "simulation"
    with pytest.raises(ValueError, match="frozen"):
        policy.budgets["client"].life.epsilon = 1e5


# The ledger's path.


def test_a_ledger_is_found_from_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "owner.yaml"
    path.write_text(TEXT, encoding="utf-8")
    for folder, name in ((tmp_path.parent, f"{tmp_path.name}/owner.yaml"), (tmp_path, path.name)):
        monkeypatch.chdir(folder)
        assert load_policy(name).ledger == tmp_path / "spent.sqlite"
    path.write_text(changed("spent.sqlite", "/var/lib/ldp/spent.sqlite"), encoding="utf-8")
    assert load_policy(path).ledger == Path("/var/lib/ldp/spent.sqlite")


@pytest.mark.parametrize("value", ["", "''", "' '", "~/spent.sqlite", "3", "[a]", "true"])
def test_a_ledger_that_is_no_path_is_refused(value: str) -> None:
    message = refusal(changed("ledger: spent.sqlite", f"ledger: {value}"))
    assert message.startswith("owner.yaml, line 2: ledger must be a path as text")


@pytest.mark.parametrize(("more", "deltas"), [("", 1e-8), (", release_deltas: 1.0e-6", 1e-6)])
def test_a_life_by_zcdp_is_a_limit_with_release_deltas(more: str, deltas: float) -> None:
    life = LIFE.replace("900.0", f"4.0, delta: 1.0e-5, by: zcdp{more}")
    limits = parse_policy(changed(LIFE, life)).limits()
    assert Limit(Unit.CLIENT, "life", 4.0, 1e-5, release_deltas=deltas) in limits
    assert [limit.release_deltas for limit in limits if limit.scope != "life"] == [None, None]


def test_evaluations_belong_to_the_plan_of_train() -> None:
    plan = "{rounds: 1, steps: 1, rate: 1, noise: 4, clip: 1, evaluations: {number: 2, epsilon: 1}}"
    text = changed(
        "messages:\n",
        f"messages:\n  query: {{dpsgd: {{epsilon: 1, unit: example, plan: {plan}}}}}\n",
    )
    assert "messages.query.dpsgd.plan.evaluations belongs to the plan of train" in refusal(text)


# Errors of the file.

LAPLACE = "messages.evaluate.laplace"
UNLISTED = "unlisted_messages must be 'refuse' or 'answer'"
LABEL = "messages.train.signds.unit must be a unit with a budget, got label"
MODE, LIFE = "mode: deployment", "    life: {epsilon: 900.0}"
WINDOW = "    window: {epsilon: 180.0, days: 30}"
ERRORS = [
    ("data_id: ward-7\n", "", 1, "data_id is missing"),
    ("ledger: spent.sqlite\n", "", 1, "ledger is missing"),
    (f"{MODE}\n", "", 1, "mode is missing"),
    ("data_id: ward-7", "data_id: ''", 1, "data_id must be printable text of 1 to 200"),
    ("data_id: ward-7", "data_id: ' a'", 1, "data_id must be printable text"),
    ("data_id: ward-7", 'data_id: "a\\n"', 1, "data_id must be printable text"),
    ("data_id: ward-7", f"data_id: {'x' * 201}", 1, "data_id must be printable text"),
    ("data_id: ward-7", "data_id: 7", 1, "data_id must be text, got 7"),
    (MODE, "mode: test", 3, "mode must be 'deployment' or 'simulation', got test"),
    (MODE, f"{MODE}\nmood: 1", 4, "mood is not a known field"),
    (MODE, f"{MODE}\nunlisted_messages: yes", 4, f"{UNLISTED}, got yes"),
    ("  evaluate:", "  test:", 9, "messages.test: this name must be 'train', 'evaluate' or 'q"),
    ("    laplace: {epsilon: 4.0}", "    - laplace", 9, "messages.evaluate must be a section"),
    ("    laplace: {epsilon: 4.0}\n", "", 9, "messages.evaluate must be a section of fields"),
    ("{epsilon: 4.0}", "4.0", 10, f"{LAPLACE} must be a section of fields, got 4.0"),
    ("{epsilon: 4.0}", "", 10, f"{LAPLACE} must be a section of fields, got noth"),
    ("{epsilon: 4.0}", "{}", 10, f"{LAPLACE}.epsilon is missing"),
    ("    laplace:", "    ' laplace':", 10, "messages.evaluate. laplace: this name must be print"),
    ("    laplace:", "    7:", 10, "messages.evaluate.7: this name must be text"),
    ("epsilon: 4.0", "eps: 4.0", 10, f"{LAPLACE}.eps is not a known field"),
    ("{epsilon: 8.0}", "{epsilon: 8, unit: row}", 6, "messages.train.signds.unit must be 'client'"),
    ("{epsilon: 8.0}", "{epsilon: 8, unit: label}", 6, LABEL),
    (f"{LIFE}\n", "", 12, "budgets.client.life is missing"),
    (LIFE, "    life:", 15, "budgets.client.life must be a section of fie"),
    (LIFE, LIFE.replace("}", ", by: rdp}"), 15, "budgets.client.life.by must be 'sums' or 'zcdp'"),
    (LIFE, LIFE.replace("}", ", by: zcdp}"), 15, "budgets.client.life.delta must be above 0 for"),
    (LIFE, LIFE.replace("}", ", release_deltas: 0.1}"), 15, "budgets.client.life.release_deltas b"),
    (
        LIFE,
        LIFE.replace("}", ", delta: 0.1, by: zcdp, release_deltas: 0.05}"),
        15,
        "budgets.client.life.release_deltas must be below half of delta",
    ),
    ("    run: {epsilon: 90.0}", "    run:", 13, "budgets.client.run must be filled in or left"),
    (WINDOW, "    window:", 14, "budgets.client.window must be filled in or left out, got nothing"),
    (", days: 30", "", 14, "budgets.client.window.days is missing"),
    ("run: {epsilon: 90.0}", "run: {epsilon: 90.0, days: 1}", 13, "budgets.client.run.days is not"),
    ("  client:", "  node:", 12, "budgets.node: this name must be 'client', 'example' or 'label'"),
    ("    magrr:", "    signds:", 7, "signds is given twice"),
]


@pytest.mark.parametrize(("old", "new", "line", "complaint"), ERRORS)
def test_errors_name_file_line_and_field(old: str, new: str, line: int, complaint: str) -> None:
    messages = refusal(changed(old, new)).splitlines()
    assert any(text.startswith(f"owner.yaml, line {line}: {complaint}") for text in messages)


FIELDS = [
    ("epsilon: 4.0", "messages.evaluate.laplace.epsilon", "(0, 1000000]", [0, -1, 1000001]),
    ("epsilon: 900.0", "budgets.client.life.epsilon", "(0, 1000000]", [0, -1, 1000001]),
    ("delta: 1.0e-6", "messages.train.gauss.delta", "[0, 1)", [-0.1, 1, 2]),
    ("delta: 1.0e-4", "budgets.example.life.delta", "[0, 1)", [-0.1, 1, 2]),
    ("days: 30", "budgets.client.window.days", "(0, 36500]", [0, -1, 36501]),
]


@pytest.mark.parametrize(("piece", "name", "ends", "outside"), FIELDS)
def test_numbers_outside_their_intervals_are_refused(
    piece: str, name: str, ends: str, outside: list[float]
) -> None:
    field = piece.split(":")[0]
    for value in [*outside, ".nan", ".inf", "true", "'1'", "1e-3", "[1]"]:
        message = refusal(changed(piece, f"{field}: {value}"))
        assert f": {name} must be a number in {ends}" in message
        assert message.endswith(f"got {value}")
        assert "\n" not in message


def test_all_errors_are_told_at_once() -> None:
    text = changed("mode: deployment", "mode: test").replace("epsilon: 8.0", "epsilon: 0")
    places = [line.split(": ")[0] for line in refusal(text).splitlines()]
    assert places == ["owner.yaml, line 3", "owner.yaml, line 6"]


def test_policies_built_in_code_are_checked_too() -> None:
    fields = {"data_id": "x", "ledger": Path("x.sqlite"), "mode": "simulation"}
    messages = {"train": {"m": sections.Allowance(epsilon=1.0, unit="label")}}
    with pytest.raises(ValueError, match="unit with a budget"):
        Policy(**fields, messages=messages, budgets={"client": {"life": {"epsilon": 1.0}}})


# Judging a release.


@pytest.mark.parametrize(
    "events",
    [
        (SIGNDS,),
        (SIGNDS, MAGRR),
        (SIGNDS, MAGRR, GAUSS),
        (replace(SIGNDS, epsilon=0.001),),
        (replace(SIGNDS, epsilon=2.0, count=4),),
        (replace(SIGNDS, epsilon=3.0), replace(SIGNDS, epsilon=5.0)),
        (replace(GAUSS, epsilon=0.5, delta=2.5e-7, count=4),),
        (replace(GAUSS, delta=0.0),),
    ],
)
def test_releases_within_limits_are_allowed(policy: Policy, events: Events) -> None:
    policy.check("train", events)
    policy.check("train", iter(events))


OVER = [
    ((replace(SIGNDS, epsilon=math.nextafter(8.0, 9.0)),), "signds in a 'train' message: epsilon"),
    ((SIGNDS, replace(MAGRR, epsilon=1.5)), "magrr in a 'train' message: epsilon 1.5 per client"),
    ((SIGNDS, SIGNDS), "epsilon 16 per client asked for, at most 8 allowed"),
    ((replace(SIGNDS, epsilon=2.0, count=5),), "epsilon 10 per client asked for"),
    ((replace(SIGNDS, epsilon=8e-9, count=10**9 + 1),), "at most 8 allowed"),
    ((replace(SIGNDS, delta=1e-300),), "delta 1e-300 per client asked for, at most 0 allowed"),
    ((replace(GAUSS, delta=1.1e-6),), "delta 1.1e-06 per example asked for, at most 1e-06"),
    ((replace(GAUSS, epsilon=1.0, count=2, delta=0.6e-6),), "delta 1.2e-06"),
    ((PrivacyEvent("laplace", 1.0),), "laplace may not answer a 'train' message"),
    ((SIGNDS, PrivacyEvent("Signds", 1.0)), "Signds may not answer"),
    ((replace(SIGNDS, unit=Unit.EXAMPLE),), "signds is allowed per client, asked for per example"),
    ((replace(GAUSS, unit=Unit.CLIENT),), "gauss is allowed per example, asked for per client"),
    ((SIGNDS, replace(SIGNDS, epsilon=1.0, unit=Unit.EXAMPLE)), "per client, example"),
    ((replace(SIGNDS, unit=Unit.LABEL),), "there is no budget per label, for signds"),
    ((), "the release states no cost"),
]


@pytest.mark.parametrize(("events", "why"), OVER)
def test_anything_over_a_limit_is_refused(policy: Policy, events: Events, why: str) -> None:
    assert why in refused(policy, "train", *events)


@pytest.mark.parametrize("events", [case for case, why in OVER[:12] if "Signds" not in why])
@pytest.mark.parametrize("message_type", ["train", "query"])
def test_a_refusal_says_what_allows_it(policy: Policy, events: Events, message_type: str) -> None:
    line = refused(policy, message_type, *events).partition("To allow it: ")[2]
    start, _, end = TEXT.partition("messages:")
    parse_policy(f"{start}{line}\n{end[end.index('budgets:') :]}").check(message_type, events)


def test_each_type_of_message_has_its_own_list(policy: Policy) -> None:
    policy.check("evaluate", [PrivacyEvent("laplace", 4.0)])
    assert "signds may not answer a 'evaluate' message" in refused(policy, "evaluate", SIGNDS)


def test_costs_add_up_as_the_decimals_that_people_write() -> None:
    policy = parse_policy(changed("epsilon: 8.0", "epsilon: 0.3"))
    policy.check("train", [PrivacyEvent("signds", 0.1, count=3)])
    assert 3 * 0.1 > 0.3  # what doubles would say
    refused(policy, "train", PrivacyEvent("signds", 0.1, count=3), PrivacyEvent("signds", 1e-17))


@pytest.mark.parametrize("message_type", ["query", "train.other", "TRAIN", "", "get_properties"])
def test_unlisted_messages(policy: Policy, message_type: str) -> None:
    why = f"no mechanism may answer a {message_type!r} message"
    assert refused(policy, message_type, SIGNDS).startswith(f"{why}. To allow it: ")
    open_policy = parse_policy(TEXT + "unlisted_messages: answer\n")
    open_policy.check(message_type, [PrivacyEvent("anything", 800.0)])
    # Open is not boundless: what no budget counts is refused, and so is a cost left unsaid.
    for events, said in (
        ([replace(SIGNDS, unit=Unit.LABEL)], "no budget per label"),
        ([], "no cost"),
        ([PrivacyEvent("x", 1e-12)], "at least 0.001"),
    ):
        assert said in refused(open_policy, message_type, *events)


def test_answering_unlisted_messages_leaves_the_listed_ones_as_they_are() -> None:
    text = changed("  evaluate:\n    laplace: {epsilon: 4.0}\n", "  evaluate: {}\n")
    policy = parse_policy(text + "unlisted_messages: answer\n")
    for message_type in ("train", "evaluate"):
        assert "laplace may not" in refused(policy, message_type, PrivacyEvent("laplace", 1.0))


# A least price, largest numbers, and what else is stated beside budgets.


def test_a_release_below_the_least_price_is_refused(policy: Policy) -> None:
    assert policy.least_epsilon == 0.001
    for cheap in (replace(SIGNDS, epsilon=5e-324), replace(SIGNDS, epsilon=1e-6, count=999)):
        why = refused(policy, "train", cheap)
        assert "must cost an epsilon of at least 0.001 per client, this one costs" in why
    for enough in (replace(SIGNDS, epsilon=0.001), replace(SIGNDS, epsilon=1e-6, count=1000)):
        policy.check("train", [enough])
    policy.check("train", [replace(SIGNDS, epsilon=1e-6), MAGRR])  # the whole release counts
    own = parse_policy(TEXT + "least_epsilon: 4\n")
    own.check("evaluate", [PrivacyEvent("laplace", 4.0)])
    assert "at least 4 per client" in refused(own, "evaluate", PrivacyEvent("laplace", 3.999))


def test_each_unit_that_a_release_is_about_has_its_price(policy: Policy) -> None:
    # A large cost per example buys no answer about the client.
    why = refused(policy, "train", GAUSS, replace(SIGNDS, epsilon=1e-9))
    assert "at least 0.001 per client" in why


def test_what_a_release_rests_on_pays_for_no_answer(policy: Policy) -> None:
    cheap = replace(SIGNDS, epsilon=1e-9)
    with pytest.raises(RefusalError, match=r"at least 0\.001"):
        policy.check("train", [cheap], basis=[GAUSS])
    policy.check("train", [SIGNDS], basis=[replace(GAUSS, epsilon=1e-9)])
    with pytest.raises(RefusalError, match="laplace may not answer"):
        policy.check("train", [SIGNDS], basis=[PrivacyEvent("laplace", 1.0)])
    with pytest.raises(RefusalError, match="states no cost"):
        policy.check("train", [], basis=[GAUSS])


def test_a_part_of_what_was_charged_as_a_whole_has_no_price_of_its_own(policy: Policy) -> None:
    policy.check("train", [replace(SIGNDS, epsilon=1e-9)], whole=False)


def test_largest_numbers_are_stated_in_plain_values(policy: Policy) -> None:
    assert policy.numbers() == (NumberLimit(10_000),)
    assert policy.repeats == 100_000
    own = parse_policy(TEXT + "releases: {life: 50, window: {number: 7, days: 0.5}}\nrepeats: 3\n")
    assert own.numbers() == (NumberLimit(50), NumberLimit(7, 43_200.0))
    assert own.repeats == 3
    window = parse_policy(TEXT + "releases: {window: {number: 7, days: 1}}\n").numbers()
    assert window == (NumberLimit(10_000), NumberLimit(7, 86_400.0))


def test_a_moment_to_answer_and_an_anchor_are_stated(tmp_path: Path) -> None:
    plain = parse_policy(TEXT)
    assert (dict(plain.answer_after), plain.anchor) == ({}, None)
    own = parse_policy(TEXT + "answer_after: {train: 30, train.forward: 0.5}\n")
    assert own.answer_after == {"train": 30, "train.forward": 0.5}
    path = tmp_path / "owner.yaml"
    for place, file, command in (
        ("file: mark", tmp_path / "mark", None),
        ("command: [/bin/keep, it]", None, ["/bin/keep", "it"]),
    ):
        path.write_text(f"{TEXT}anchor: {{{place}}}\n")
        anchor = load_policy(path).anchor
        assert anchor is not None
        assert (anchor.file, anchor.command) == (file, command)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("least_epsilon: 0", "least_epsilon must be a number in (0, 1000000], got 0"),
        ("least_epsilon: '1'", "least_epsilon must be a number in (0, 1000000], not text"),
        ("releases: 10", "releases must be a section of fields, got 10"),
        ("releases: {life: 0}", "releases.life must be an integer in [1, 1000000000000], got 0"),
        ("releases: {life: 1.5}", "releases.life must be an integer in"),
        ("releases: {life: }", "releases.life must be an integer in"),
        ("releases: {window: {number: 1}}", "releases.window.days is missing"),
        ("releases: {window: }", "releases.window must be filled in or left out"),
        ("repeats: true", "repeats must be an integer in"),
        ("answer_after: {train: 0}", "answer_after.train must be a number in (0, 86400], got 0"),
        ("answer_after: {fit: 1}", "answer_after.fit: this name must be 'train'"),
        ("answer_after: 5", "answer_after must be a section of fields"),
        ("anchor:", "anchor must be filled in or left out"),
        ("anchor: {}", "anchor must name either a file or a command"),
        ("anchor: {file: a, command: [/b]}", "anchor must name either a file or a command"),
        ("anchor: {file: ~}", "anchor.file must be filled in or left out"),
        ("anchor: {file: '~/x'}", "anchor.file must be a path as text"),
        ('anchor: {file: "a\\0b"}', "anchor.file must be a path as text"),
        ("anchor: {command: []}", "anchor.command must begin with a program by its absolute path"),
        ("anchor: {command: [keep]}", "anchor.command must begin with a program"),
        ("anchor: {command: [/bin/keep, '']}", "anchor.command.1 must be text, and not empty"),
        ("anchor: {command: /bin/keep}", "anchor.command must be a list, got /bin/keep"),
    ],
)
def test_errors_in_what_stands_beside_budgets_name_the_field(line: str, complaint: str) -> None:
    number = TEXT.count("\n") + 1
    assert refusal(TEXT + line + "\n").startswith(f"owner.yaml, line {number}: {complaint}")


# Which file.

KEY_MISSING = "ldp-policy must name a policy file"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(TEXT, encoding="utf-8")
    second.write_text(changed("ward-7", "ward-8"), encoding="utf-8")
    return str(first), str(second)


def found(node: dict[str, Any], environment: dict[str, str] | None = None) -> str | None:
    """Return whose policy is found."""
    policy = find_policy(node, environment)
    return None if policy is None else policy.data_id


def test_the_operators_policy(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = files
    assert found({NODE_CONFIG_KEY: first, "partition-id": 0}, {"HOME": "/"}) == "ward-7"
    assert found({"partition-id": 0}, {ENVIRONMENT_VARIABLE: second}) == "ward-8"
    assert found({"partition-id": 0}, {"HOME": "/"}) is None
    # By default the process's environment is meant.
    monkeypatch.setenv("FLOWER_LDP_POLICY", second)
    assert found({}) == "ward-8"
    monkeypatch.delenv("FLOWER_LDP_POLICY")
    assert found({}) is None


def test_two_different_files_are_refused(files: tuple[str, str]) -> None:
    first, second = files
    with pytest.raises(ConfigError, match=f"two policies.*{first}.*{second}"):
        find_policy({NODE_CONFIG_KEY: first}, {ENVIRONMENT_VARIABLE: second})


def test_one_file_named_twice(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(files[0]).parent)
    policy = find_policy({NODE_CONFIG_KEY: files[0]}, {ENVIRONMENT_VARIABLE: "first.yaml"})
    assert policy is not None
    assert policy.ledger == Path(files[0]).parent / "spent.sqlite"


@pytest.mark.parametrize(
    ("node", "environment", "complaint"),
    [
        *[({NODE_CONFIG_KEY: no}, {}, KEY_MISSING) for no in ("", " ", 3, True, None)],
        ({}, {ENVIRONMENT_VARIABLE: ""}, "FLOWER_LDP_POLICY must name a policy file, got ''"),
        ({NODE_CONFIG_KEY: "/nowhere/absent.yaml"}, {}, "cannot be read"),
    ],
)
def test_a_name_that_is_none_is_refused(
    node: dict[str, Any], environment: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        find_policy(node, environment)


def test_a_file_with_an_error_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "owner.yaml"
    path.write_text(changed("epsilon: 8.0", "epsilon: 0"), encoding="utf-8")
    wanted = f"^{path}, line 6: messages.train.signds.epsilon must be"
    with pytest.raises(ConfigError, match=wanted):
        find_policy({}, {ENVIRONMENT_VARIABLE: str(path)})


# Plans of private training, and what an example is.

PLANNED = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
example: patient
examples: 91
messages:
  train:
    dpsgd: {epsilon: 1.0, delta: 1.0e-3, unit: example, plan: {rounds: 20, steps: 5, rate: 0.05,
      noise: 3.74, clip: 1.0}}
budgets:
  example:
    life: {epsilon: 2.0, delta: 1.0e-2}
"""
PLAN = TrainingPlan(20, 5, 0.05, 3.74, 1.0, 1e-3, clip=1.0)


def test_the_owners_plan_holds_and_is_proposed_exactly_or_not_at_all() -> None:
    policy = parse_policy(PLANNED)
    assert policy.plan("train", None) == policy.plan("train", PLAN) == PLAN
    named = replace(PLAN, name="second")
    assert policy.plan("train", named) == named
    for changes in ({"noise": 4.0}, {"rounds": 19}, {"epsilon": 0.9}, {"delta": 1e-4}):
        with pytest.raises(RefusalError, match="is proposed"):
            policy.plan("train", replace(PLAN, **changes))
    with pytest.raises(RefusalError, match="no plan"):
        policy.plan("evaluate", None)


def test_without_a_plan_of_the_owners_the_server_proposes_one() -> None:
    text = re.sub(r", plan: \{[^}]*\}", "", PLANNED)
    policy = parse_policy(text)
    assert policy.plan("train", PLAN) == PLAN
    with pytest.raises(RefusalError, match="no plan"):
        policy.plan("train", None)
    with pytest.raises(RefusalError, match="how many"):
        parse_policy(text.replace("examples: 91\n", "")).plan("train", PLAN)


@pytest.mark.parametrize("own", [False, True])
def test_a_plans_delta_is_below_one_over_n(own: bool) -> None:
    text = PLANNED
    if own:  # It is enough that the plan's own number of examples stands there.
        text = text.replace("examples: 91\n", "").replace(", plan", ", examples: 91, plan")
    parse_policy(text.replace("examples: 91", "examples: 999")).plan("train", PLAN)
    policy = parse_policy(text.replace("examples: 91", "examples: 1000"))
    with pytest.raises(RefusalError, match="below 1/1,000"):
        policy.plan("train", PLAN)


def test_a_type_of_message_may_be_about_another_number_of_examples() -> None:
    counted = "  evaluate: {example_mean: {epsilon: 0.05, unit: example, examples: 18}}\n"
    policy = parse_policy(PLANNED.replace("budgets:", f"{counted}budgets:"))
    assert policy.examples_for("evaluate", "example_mean") == 18
    for message_type, mechanism in (("train", "dpsgd"), ("train", "example_mean"), ("query", "x")):
        assert policy.examples_for(message_type, mechanism) == 91
    own = parse_policy(PLANNED.replace("unit: example, plan", "unit: example, examples: 73, plan"))
    assert own.examples_for("train", "dpsgd") == 73
    assert parse_policy(PLANNED).examples_for("evaluate", "example_mean") == 91


@pytest.mark.parametrize(
    "allowed",
    [
        "counts: {epsilon: 1.0, unit: example, examples: 9}",
        "example_mean: {epsilon: 1.0, examples: 9}",
        "signds: {epsilon: 1.0, unit: example, examples: 9}",
    ],
)
def test_a_number_of_examples_that_nothing_is_divided_by_is_an_error(allowed: str) -> None:
    text = PLANNED.replace("train:", f"train:\n    {allowed}")
    with pytest.raises(ConfigError, match="examples belongs to dpsgd and example_mean with unit"):
        parse_policy(text + "  client: {life: {epsilon: 2.0}}\n")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rounds: 20, steps: 5", "rounds: 1000000, steps: 101", "at most 100,000,000"),
        ("    dpsgd:", "    gaussian:", "belongs to dpsgd"),
        ("unit: example, plan", "plan", "unit"),
        ("examples: 91\n", "", "how many there are"),
        ("epsilon: 1.0, delta: 1.0e-3", "epsilon: 31.0, delta: 1.0e-3", "epsilon must be in"),
        ("epsilon: 1.0, delta: 1.0e-3", "epsilon: 1.0", "delta must be in"),
        ("rounds: 20, ", "", "rounds is missing"),
        ("rate: 0.05", "rate: 1.5", "rate must be"),
        ("steps: 5", "steps: 5.5", "steps must be"),
        ("clip: 1.0", "clip: 1.0, lr: 0.1", "lr is not a known field"),
        ("examples: 91", "examples: 0", "examples must be"),
        ("unit: example, plan", "unit: example, examples: 0, plan", "examples must be"),
        ("unit: example, plan", "unit: example, examples: 1.5, plan", "examples must be"),
        ("unit: example, plan", "unit: example, examples: , plan", "examples must be"),
        ("unit: example, plan", "unit: example, examples: [9], plan", "examples must be"),
        ("example: patient", "example: person", "example must be"),
    ],
)
def test_plans_that_are_none(old: str, new: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_policy(PLANNED.replace(old, new))


def test_what_is_private_per_row_is_refused_where_an_example_is_a_patient() -> None:
    policy = parse_policy(PLANNED)
    event = PrivacyEvent("dpsgd", 1.0, 1e-3, Unit.EXAMPLE)
    policy.check("train", [event], example="patient")
    with pytest.raises(RefusalError, match="per row"):
        policy.check("train", [event])
    with pytest.raises(RefusalError, match="per patient"):
        parse_policy(PLANNED.replace("patient", "row")).check("train", [event], example="patient")


@pytest.mark.parametrize(("action", "is_name"), [("forward", True), ("x·y", True), ("x²", False)])
def test_an_action_is_a_name_as_flower_takes_it(action: str, is_name: bool) -> None:
    text = TEXT + f"answer_after: {{train.{action}: 0.5}}\n"
    if is_name:
        assert list(parse_policy(text).answer_after) == [f"train.{action}"]
    else:
        with pytest.raises(ConfigError, match=r"one of these and an action"):
            parse_policy(text)

"""``data check`` and ``plan dpsgd``: whose rows are whose, and the noise of a plan."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import pytest
import yaml

from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.privacy import rounded_up
from tests.cli import Done, flower_ldp

WARD = ["ann,1,40", "ann,2,41", "ben,3,50", "ben,4,50", "ben,5,51", "eve,6,60"]
POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
example: patient
examples: 3
messages:
  train:
    dpsgd:
      epsilon: 8.0
      delta: 1.0e-2
      unit: example
      plan: {rounds: 2, steps: 3, rate: 1.0, noise: NOISE, clip: 1.0}
budgets:
  example:
    life: {epsilon: 8.0, delta: 1.0e-2}
"""


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    return write(tmp_path / "ward.csv", WARD)


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["patient,scan,age", *rows, ""]))
    return path


def check(path: Path, *words: object) -> Done:
    return flower_ldp("data", "check", path, "--group", "patient", *words, "--json")


def test_patients_and_their_rows_are_counted(ward: Path) -> None:
    found = check(ward, "--max-rows", 2).json
    assert (found["ok"], found["rows"], found["patients"]) == (True, 6, 3)
    assert found["rows_of_a_patient"] == {"least": 1, "most": 3, "above_max_rows": 1}


def test_more_rows_than_a_training_takes_are_refused(ward: Path) -> None:
    done = check(ward, "--max-rows", 1001)
    assert done.code == 2
    assert "must be in [1, 1000]" in done.err


def test_a_row_without_a_group_is_a_problem_and_its_line_is_named(tmp_path: Path) -> None:
    rows = [*WARD[:2], ",9,33", *WARD[2:], "  ,10,34"]
    done = check(write(tmp_path / "ward.csv", rows))
    assert done.code == 1
    found = done.json
    assert (found["rows"], found["without_group"], found["lines"]) == (8, 2, [4, 9])
    assert "count as zero" in found["problems"][0]


def test_the_number_of_patients_is_compared_with_the_policys(ward: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.replace("NOISE", "2.1"))
    assert check(ward, "--policy", policy).json["policy"] == {"example": "patient", "examples": 3}
    policy.write_text(POLICY.replace("NOISE", "2.1").replace("examples: 3", "examples: 4"))
    assert "4 of examples, the table has 3" in check(ward, "--policy", policy).json["problems"][0]
    policy.write_text(POLICY.replace("NOISE", "2.1").replace("example: patient", "example: row"))
    assert "per row" in check(ward, "--policy", policy).json["problems"][0]


@pytest.mark.parametrize(
    ("rows", "cut", "joined"),
    [
        (WARD, 0, 0),
        ([row.replace("ben", "p-7") for row in WARD], 0, 0),  # another name, the same rows
        ([*WARD, "ben,7,52", "tom,8,20"], 0, 0),
        ([*WARD[:4], "bob,5,51", WARD[5]], 1, 0),
        ([row.replace("eve", "ann") for row in WARD], 0, 1),
    ],
)
def test_groups_that_are_cut_otherwise_than_before_are_found(
    tmp_path: Path, ward: Path, rows: list[str], cut: int, joined: int
) -> None:
    memory = tmp_path / "ward.groups"
    assert check(ward, "--remember", memory).code == 0
    first = memory.read_bytes()
    for name in ("ann", "ben", "eve"):
        assert name.encode() not in first
    assert memory.stat().st_mode & 0o077 == 0
    done = check(write(ward, rows), "--remember", memory)
    assert done.code == (1 if cut or joined else 0)
    assert (done.json["groups"]["cut"], done.json["groups"]["joined"]) == (cut, joined)
    if cut or joined:  # what was found is found again
        assert memory.read_bytes() == first


def test_rows_are_told_apart_by_a_column(tmp_path: Path, ward: Path) -> None:
    memory = tmp_path / "ward.groups"
    check(ward, "--remember", memory, "--row", "scan")
    older = [row[:-2] + "99" for row in WARD]
    found = check(write(ward, older), "--remember", memory, "--row", "scan").json
    assert found["groups"]["compared"] == 6


def test_what_cannot_be_compared_is_a_problem_and_is_not_remembered(
    tmp_path: Path, ward: Path
) -> None:
    memory, key = tmp_path / "ward.groups", tmp_path / "ward.groups.key"
    check(ward, "--remember", memory)
    first, secret = memory.read_bytes(), key.read_bytes()
    key.unlink()
    assert "its key ward.groups.key is missing" in check(ward, "--remember", memory).err
    assert (memory.read_bytes(), key.exists()) == (first, False)
    key.write_bytes(secret[::-1])
    key.chmod(0o600)
    done = check(ward, "--remember", memory)
    assert "no row was there the last time" in done.json["problems"][0]
    assert memory.read_bytes() == first


def test_a_table_without_rows_or_with_an_open_quote_is_no_table(tmp_path: Path) -> None:
    assert "no rows" in check(write(tmp_path / "none.csv", [])).json["problems"][0]
    done = check(write(tmp_path / "open.csv", ['"ann,1,40', *WARD[1:]]))
    assert "cannot be read" in done.json["problems"][0]


def test_a_table_that_is_none_is_refused(tmp_path: Path, ward: Path) -> None:
    assert check(tmp_path / "none.csv").code == 1
    assert flower_ldp("data", "check", ward, "--group", "person").code == 2
    (tmp_path / "bytes.csv").write_bytes(b"patient\n\xff\xfe")
    assert check(tmp_path / "bytes.csv").code == 1
    (tmp_path / "memory").write_text("[1]")
    assert check(ward, "--remember", tmp_path / "memory").code == 1


PLAN = ("--epsilon", 8, "--delta", 1e-2, "--rounds", 2, "--steps", 3, "--examples", 9)


def test_the_planned_noise_is_enough_and_hardly_more() -> None:
    pytest.importorskip("scipy")
    from flower_ldp.accounting.dpsgd import SampledGaussian

    found = flower_ldp("plan", "dpsgd", *PLAN, "--rate", 1, "--json").json
    noise = found["noise_multiplier"]
    assert SampledGaussian(noise, 1.0, 6).delta(8.0) <= 1e-2
    assert SampledGaussian(noise / 1.005, 1.0, 6).delta(8.0) > 1e-2
    assert found["policy"] == f"{{rounds: 2, steps: 3, rate: 1.0, noise: {noise}, clip: 1.0}}"
    assert found["step"] == {"examples": 9.0, "deviation": pytest.approx(noise / 9)}


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    list(itertools.product((0.5, 2.0, 8.0), (0.01, 0.1, 1.0), (1, 20))),
)
def test_the_noise_that_is_printed_is_enough(epsilon: float, rate: float, steps: int) -> None:
    pytest.importorskip("scipy")
    from flower_ldp.accounting.dpsgd import check_noise

    ask = ("--epsilon", epsilon, "--delta", 1e-5, "--rounds", 2, "--steps", steps)
    out = flower_ldp("plan", "dpsgd", *ask, "--rate", rate, "--examples", 900).out
    (policy,) = re.findall("in the policy +plan: (.*)", out)
    copied = TrainingPlan(epsilon=epsilon, delta=1e-5, **yaml.safe_load(policy))
    check_noise(copied)
    assert re.search(rf"noise multiplier +{copied.noise},", out)


def test_numbers_are_rounded_up_by_their_exact_values() -> None:
    for value in (0.05, 9.899, 3.735, 0.9463, 1234.0, 9999.0, 1e4):
        assert rounded_up(value, 4) == value
        above = math.nextafter(value, math.inf)
        assert above < rounded_up(above, 4) <= value * (1 + 1.1e-3)


def test_a_noise_that_is_too_little_is_told_in_all_its_digits(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("NOISE", "1.00000049"))
    done = flower_ldp("policy", "check", path)
    told = " ".join((done.out + done.err).split())
    assert " 1.00000049 " in told
    assert "noise 1.00000049 is not enough" in told


def test_a_planned_line_is_one_of_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    text = POLICY.partition("{rounds")[0]
    found = flower_ldp("plan", "dpsgd", *PLAN, "--rate", 1e-3, "--json").json
    path = tmp_path / "policy.yaml"
    path.write_text(text + found["policy"] + "\nbudgets:" + POLICY.partition("budgets:")[2])
    facts = flower_ldp("policy", "check", path, "--json").json
    assert facts["plans"][0]["rate"] == 1e-3
    assert (facts["example"], facts["examples"]) == ("patient", 3)


def test_a_number_of_examples_of_an_allowances_own_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    own = "  evaluate: {example_mean: {epsilon: 0.1, unit: example, examples: 2}}\nbudgets:"
    path.write_text(POLICY.replace("budgets:", own).replace("NOISE", "9.0"))
    done = flower_ldp("policy", "check", path)
    assert re.search("evaluate +example_mean +2\n", done.out)
    found = flower_ldp("policy", "check", path, "--json").json
    assert found["counts"] == [{"message": "evaluate", "mechanism": "example_mean", "examples": 2}]


def test_a_policy_whose_plan_has_too_little_noise_is_a_problem(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.replace("NOISE", "1.0"))
    done = flower_ldp("policy", "check", path, "--json")
    assert "not enough" in done.json["problems"][0]


@pytest.mark.parametrize(
    "words", [("--rate", 0), ("--rate", 1, "--rounds", 0), ("--rate", 1, "--epsilon", 99)]
)
def test_numbers_outside_their_intervals(words: tuple[object, ...]) -> None:
    assert flower_ldp("plan", "dpsgd", *PLAN, *words).code == 2

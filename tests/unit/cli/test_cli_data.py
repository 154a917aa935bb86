"""``data check`` and ``plan dpsgd``: whose rows are whose, and the noise of a plan."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.privacy import rounded_up
from tests.cli import Done, facts, flower_ldp

WARD = ["ann,1,40", "ann,2,41", "ben,3,50", "ben,4,50", "ben,5,51", "eve,6,60"]
POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
example: patient
examples: 3
messages:
  train:
    dpsgd: {epsilon: 8.0, delta: 1.0e-2, unit: example, plan: {rounds: 2, steps: 3, rate: 1.0,
      noise: NOISE, clip: 1.0}}
budgets: {example: {life: {epsilon: 8.0, delta: 1.0e-2}}}
"""
PLAN = ("--epsilon", 8, "--delta", 1e-2, "--rounds", 2, "--steps", 3, "--examples", 9)


@pytest.fixture
def ward(tmp_path: Path) -> Path:
    return write(tmp_path / "ward.csv", WARD)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def write(path: Path, rows: list[str]) -> Path:
    path.write_text("\n".join(["patient,scan,age", *rows, ""]))
    return path


def check(path: Path, *words: object) -> Done:
    return flower_ldp("data", "check", path, "--group", "patient", *words, "--json")


def test_patients_and_their_rows_are_counted(ward: Path) -> None:
    found = check(ward, "--max-rows", 2).json
    assert (found["ok"], found["rows"], found["patients"]) == (True, 6, 3)
    assert found["rows_of_a_patient"] == {"least": 1, "most": 3, "above_max_rows": 1}
    assert "must be in [1, 1000]" in check(ward, "--max-rows", 1001).err


def test_a_row_without_a_group_is_a_problem_and_its_line_is_named(tmp_path: Path) -> None:
    rows = [*WARD[:2], ",9,33", *WARD[2:], "  ,10,34"]
    done = check(write(tmp_path / "ward.csv", rows))
    assert done.code == 1
    found = done.json
    assert (found["rows"], found["without_group"], found["lines"]) == (8, 2, [4, 9])
    assert "count as zero" in found["problems"][0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("examples: 3", "examples: 4", "4 of examples, the table has 3"),
        ("example: patient", "example: row", "per row"),
    ],
)
def test_patients_and_the_policy(ward: Path, policy: Path, old: str, new: str, said: str) -> None:
    policy.write_text(POLICY.replace("NOISE", "2.1"))
    assert check(ward, "--policy", policy).json["policy"] == {"example": "patient", "examples": 3}
    policy.write_text(policy.read_text().replace(old, new))
    assert said in check(ward, "--policy", policy).json["problems"][0]


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


def test_what_cannot_be_compared_is_not_remembered(tmp_path: Path, ward: Path) -> None:
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


def test_a_table_that_is_none_is_a_problem(tmp_path: Path, ward: Path) -> None:
    assert "no rows" in check(write(tmp_path / "none.csv", [])).json["problems"][0]
    opened = write(tmp_path / "open.csv", ['"ann,1,40', *WARD[1:]])
    assert "cannot be read" in check(opened).json["problems"][0]
    (tmp_path / "bytes.csv").write_bytes(b"patient\n\xff\xfe")
    (tmp_path / "memory").write_text("[1]")
    for table, words in (
        (tmp_path / "missing.csv", ()),
        (tmp_path / "bytes.csv", ()),
        (ward, ("--remember", tmp_path / "memory")),
    ):
        assert check(table, *words).code == 1


def test_the_planned_noise_is_enough_and_hardly_more() -> None:
    pytest.importorskip("scipy")
    from flower_ldp.accounting.dpsgd import SampledGaussian

    found = facts("plan", "dpsgd", *PLAN, "--rate", 1)
    noise = found["noise_multiplier"]
    assert SampledGaussian(noise, 1.0, 6).delta(8.0) <= 1e-2
    assert SampledGaussian(noise / 1.005, 1.0, 6).delta(8.0) > 1e-2
    line = f"rounds: 2, steps: 3, rate: 1.0, noise: {noise}"
    assert found["policy"] == f"{{{line}}}"
    assert found["step"] == {"examples": 9.0, "deviation": pytest.approx(noise / 9)}
    clipped = facts("plan", "dpsgd", *PLAN, "--rate", 1, "--clip", 3)
    assert clipped["policy"] == f"{{{line}, clip: 3.0}}"
    assert clipped["step"]["deviation"] == pytest.approx(3 * noise / 9)


def test_the_outlook_of_a_plan_is_told_with_what_would_help() -> None:
    pytest.importorskip("scipy")
    sizes = ("--rounds", 4, "--steps", 5, "--rate", 0.2, "--examples", 300, "--params", 650)
    ask = ("--epsilon", 1, "--delta", 1e-5, *sizes, "--classes", 10)
    found = facts("plan", "dpsgd", *ask)
    assert found["outlook"]["verdict"] == "uncertain"
    assert found["step"]["noise_length"] == pytest.approx(
        found["noise_multiplier"] * math.sqrt(650) / 60
    )
    measured = facts("plan", "dpsgd", *ask, "--agreement", 0.001)["outlook"]
    assert measured["verdict"] == "hopeless"
    enough = measured["remedies"]["sites"]
    good = facts("plan", "dpsgd", *ask, "--agreement", 0.001, "--sites", enough)["outlook"]
    assert (good["verdict"], good["remedies"]) == ("good", None)
    assert "outlook" not in facts("plan", "dpsgd", *PLAN, "--rate", 1)


def test_a_plan_with_evaluations_is_told_beside_the_sum() -> None:
    pytest.importorskip("scipy")
    sizes = ("--rounds", 20, "--steps", 5, "--rate", 0.05, "--examples", 1200)
    ask = ("--epsilon", 1.32, "--delta", 1e-5, *sizes, "--evaluations", 20)
    found = facts("plan", "dpsgd", *ask)["epsilon"]
    assert (found["plan"], found["sum"]) == (1.32, pytest.approx(2.0, abs=0.005))
    assert re.search("as a sum +1.99", flower_ldp("plan", "dpsgd", *ask).out)
    assert "sum" not in facts("plan", "dpsgd", *PLAN, "--rate", 1)["epsilon"]


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 20), (0.1, 1), (1.0, 20)])
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


def test_a_noise_that_is_too_little_is_told_in_all_its_digits(policy: Path) -> None:
    pytest.importorskip("scipy")
    policy.write_text(POLICY.replace("NOISE", "1.00000049"))
    told = " ".join(flower_ldp("policy", "check", policy).both.split())
    assert " 1.00000049 " in told
    assert "noise 1.00000049 is not enough" in told
    assert "not enough" in facts("policy", "check", policy)["problems"][0]


def test_a_planned_line_is_one_of_a_policy(policy: Path) -> None:
    pytest.importorskip("scipy")
    planned = facts("plan", "dpsgd", *PLAN, "--rate", 1e-3)["policy"]
    start, end = POLICY.partition("{rounds")[0], POLICY.partition("budgets:")[2]
    policy.write_text(f"{start}{planned}}}\nbudgets:{end}")
    found = facts("policy", "check", policy)
    assert (found["plans"][0]["rate"], found["plans"][0]["clip"]) == (1e-3, "automatic")
    assert (found["example"], found["examples"]) == ("patient", 3)


def test_a_number_of_examples_of_an_allowances_own_is_shown(policy: Path) -> None:
    own = "  evaluate: {example_mean: {epsilon: 0.1, unit: example, examples: 2}}\nbudgets:"
    policy.write_text(POLICY.replace("budgets:", own).replace("NOISE", "9.0"))
    assert re.search("evaluate +example_mean +2\n", flower_ldp("policy", "check", policy).out)
    found = facts("policy", "check", policy)["counts"]
    assert found == [{"message": "evaluate", "mechanism": "example_mean", "examples": 2}]

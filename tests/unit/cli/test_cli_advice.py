"""``flower-ldp plan`` with a total alone: the function's answer, in lines and in JSON."""

from __future__ import annotations

from flower_ldp.advice import advise
from tests.cli import facts

ASKED = ("--clients", 1000, "--params", 62006, "--total-epsilon", 8)


def test_a_total_alone_is_answered_by_advice() -> None:
    expected = advise(clients=1_000, weights=62_006, total_epsilon=8.0)
    found = facts("plan", *ASKED)
    assert found["outlook"]["cosine_run"] == expected.outlook.run_cosine
    assert found["outlook"]["verdict"] == "hopeless"
    assert found["outlook"]["remedies"]["clients"] == 8_200
    assert found["advice"]["rounds"] == 40
    assert found["bytes_up"] == {"per_round": 4, "total": 4, "dense_float32_per_round": 248_024}


def test_other_questions_are_those_of_signds() -> None:
    assert facts("plan", *ASKED, "--rounds", 2)["affordable"]
    assert facts("plan", *ASKED, "--k", 0.2)["mechanism"] == "signds"
    found = facts("plan", "--params", 6000, "--epsilon", 8, "--clients", 99)
    assert found["outlook"]["verdict"] == "hopeless"


def test_choices_can_be_fixed() -> None:
    asked = ("plan", "advice", *ASKED, "--mechanism", "signds", "--answers-per-client", 2)
    found = facts(*asked, "--rounds", 50)
    assert found["mechanism"] == "signds"
    assert found["advice"]["epsilon_answer"] == 4.0
    assert (found["advice"]["rounds"], found["advice"]["clients_per_round"]) == (50, 40)

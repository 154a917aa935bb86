"""``flower-ldp plan`` with a total alone: the function's answer, in lines and in JSON."""

from __future__ import annotations

import pytest

from flower_ldp.advice import advise
from tests.cli import flower_ldp

ASKED = ("--clients", 1000, "--params", 62006, "--total-epsilon", 8)


def test_a_total_alone_is_answered_by_advice() -> None:
    expected = advise(clients=1_000, weights=62_006, total_epsilon=8.0)
    found = flower_ldp("plan", *ASKED, "--json").json
    assert found["outlook"]["cosine_run"] == expected.outlook.run_cosine
    assert found["outlook"]["verdict"] == "hopeless"
    assert found["outlook"]["remedies"]["clients"] == 8_200
    assert found["advice"]["rounds"] == 40
    assert found["bytes_up"] == {"per_round": 4, "total": 4, "dense_float32_per_round": 248_024}
    words = flower_ldp("plan", *ASKED).out
    assert "hopeless" in words
    assert "at most about 7,800 weights" in words
    assert "40 of 25 clients each" in words


def test_other_questions_are_those_of_signds() -> None:
    assert flower_ldp("plan", *ASKED, "--rounds", 2, "--json").json["affordable"]
    assert flower_ldp("plan", *ASKED, "--k", 0.2, "--json").json["mechanism"] == "signds"
    found = flower_ldp("plan", "--params", 6000, "--epsilon", 8, "--clients", 99, "--json").json
    assert found["outlook"]["verdict"] == "hopeless"


def test_choices_can_be_fixed() -> None:
    asked = ("plan", "advice", *ASKED, "--mechanism", "signds", "--answers-per-client", 2)
    found = flower_ldp(*asked, "--rounds", 50, "--json").json
    assert found["mechanism"] == "signds"
    assert found["advice"]["epsilon_answer"] == 4.0
    assert (found["advice"]["rounds"], found["advice"]["clients_per_round"]) == (50, 40)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--answers-per-client", 3, "--rounds", 2), "--rounds: must be an integer in [3, "),
        (("--answers-per-client", 3, "--epsilon", 2), "No such option '--epsilon'"),
        (("--answers-per-client", 0), "--answers-per-client: must be"),
        (("--params", 2**24 + 1, "--mechanism", "codeword"), "--params: must be at most"),
    ],
)
def test_contradictions_are_wrong_usage(options: tuple[object, ...], said: str) -> None:
    done = flower_ldp("plan", *ASKED, *options)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(("params", "total"), [(1, 8), (99, 0), (99, "nan")])
def test_a_value_outside_its_interval_names_its_option(params: int, total: object) -> None:
    done = flower_ldp("plan", "--clients", 9, "--params", params, "--total-epsilon", total)
    assert done.code == 2
    assert ("--params" if params == 1 else "--total-epsilon") in done.err

"""``explain``: what is told of a setting is what the curve says, and what is not covered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flower_ldp.mechanisms.gaussian import gaussian_delta
from flower_ldp.strategies.other_software import local_dp_mod, mindspore_dp
from tests.cli import facts, flower_ldp, refused
from tests.fixtures import CONFIGS

ISSUED = ("--clipping-norm", 1, "--sensitivity", "1e-4", "--epsilon", 10, "--delta", "1e-5")
CENTRAL = ("--noise-multiplier", 1, "--sampled-clients", 20, "--delta", "1e-5")


def test_localdp_tells_the_true_epsilon_beside_the_stated_one() -> None:
    found = facts("explain", "localdp", *ISSUED, "--rounds", 10)
    noise = local_dp_mod(1.0, 1e-4, 10.0, 1e-5)
    assert found["epsilon"] == {
        "unit": "client",
        "relation": "replace-one client",
        "stated": 10.0,
        "round": noise.epsilon(1e-5),
        "total": noise.epsilon(1e-5, 10),
        "delta": 1e-5,
        "delta_at_stated": 1.0,
    }
    assert found["noise"]["needed_deviation"] == pytest.approx(0.99978, rel=1e-5)
    assert "a clip of 1 has one of 2" in found["warnings"][0]
    for what in ("metrics", "arrays without a dimension", "integers", "a NaN"):
        assert what in found["not_covered"]


def test_a_sensitivity_of_two_clips_is_the_textbook_and_near_the_truth() -> None:
    given = ("--clipping-norm", 1, "--sensitivity", 2, "--epsilon", 1, "--delta", "1e-5")
    found = facts("explain", "localdp", *given)
    assert found["warnings"] == []
    assert 0.5 < found["epsilon"]["round"] < 1.0


@pytest.mark.parametrize(("clip", "sensitivity"), [("1e30", "1e-30"), ("1e-30", "1e30")])
@pytest.mark.parametrize("epsilon", ["1e-30", "1e30"])
def test_sizes_of_any_kind_have_a_finite_figure(clip: str, sensitivity: str, epsilon: str) -> None:
    given = ("--clipping-norm", clip, "--sensitivity", sensitivity, "--epsilon", epsilon)
    found = facts("explain", "localdp", *given, "--delta", 0.9, "--rounds", 10**6)["epsilon"]
    assert 0 <= found["round"] <= found["total"] < float("inf")


@pytest.mark.parametrize("multiplier", ["1e-30", "1e30"])
@pytest.mark.parametrize("share", [(), ("--largest-share", 1)])
def test_wrappers_of_any_size_have_a_figure(multiplier: str, share: tuple[object, ...]) -> None:
    sizes = ("--sampled-clients", 2**32 - 1, "--rounds", 10**6, "--delta", "1e-18")
    found = facts("explain", "central", "--noise-multiplier", multiplier, *sizes, *share)
    assert 0 <= found["epsilon"]["total_replace_one"] < float("inf")


def test_what_is_printed_is_a_bound_too() -> None:
    out = flower_ldp("explain", "localdp", *ISSUED).out
    deviation = float(out.split("needed")[1].split()[1])
    assert gaussian_delta(10.0, 2.0 / deviation) <= 1e-5
    printed = float(out.split("true epsilon")[1].split()[0])
    assert printed >= local_dp_mod(1.0, 1e-4, 10.0, 1e-5).epsilon(1e-5)


def test_without_noise_there_is_no_number() -> None:
    given = ("--clipping-norm", 1, "--sensitivity", 0, "--epsilon", 1, "--delta", "1e-5")
    found = facts("explain", "localdp", *given)["epsilon"]
    assert (found["round"], found["delta_at_stated"]) == (None, 1.0)
    out = flower_ldp("explain", "localdp", *given).out
    assert "Without noise nothing is protected" in out
    assert "no noise = distance" not in out


@pytest.mark.parametrize("extra", [(), ("--clients", 100), ("--adaptive",)])
def test_central_has_both_relations_and_flowers_own_figure(extra: tuple[object, ...]) -> None:
    pytest.importorskip("dp_accounting")
    found = facts("explain", "central", *CENTRAL, "--rounds", 50, *extra)
    epsilon = found["epsilon"]
    assert epsilon["total_zero_one"] == pytest.approx(54.3766, rel=1e-5)
    assert epsilon["total_replace_one"] == pytest.approx(159.4415, rel=1e-5)
    assert epsilon["total_flower"] == pytest.approx(57.30, rel=1e-3)
    assert epsilon["round_replace_one"] < epsilon["total_replace_one"]
    assert "the server" in found["not_covered"]
    assert bool(found["warnings"]) is ("--adaptive" in extra)


def test_a_client_that_weighs_more_has_more_to_lose() -> None:
    even = facts("explain", "central", *CENTRAL)["epsilon"]
    half = facts("explain", "central", *CENTRAL, "--largest-share", 0.5)
    assert half["noise"]["weight"] == 10.0
    assert half["epsilon"]["round_replace_one"] > 5 * even["round_replace_one"]


def test_without_the_extra_it_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    found = facts("explain", "central", *CENTRAL)
    assert found["epsilon"]["total_flower"] is None
    assert "flwr[dp]" in found["warnings"][0]


def test_mindspores_noise_is_made_for_half_the_distance() -> None:
    found = facts("explain", "mindspore", CONFIGS / "dp_encrypt.yaml")["epsilon"]
    assert found["round"] == mindspore_dp(1.0, 50.0, 0.01).epsilon(0.01)
    assert found["stated"] == 50.0
    assert found["delta_at_stated"] > 0.999


def test_mindspores_evaluation_is_twice_its_label() -> None:
    found = facts("explain", "mindspore", CONFIGS / "laplace_eval.yaml", "--rounds", 3)
    assert found["epsilon"] is None
    evaluation = found["evaluation"]
    assert (evaluation["stated"], evaluation["row"], evaluation["total"]) == (4.0, 8.0, 24.0)


def test_signds_is_as_stated_but_for_the_bit_that_nobody_named() -> None:
    found = facts("explain", "mindspore", CONFIGS / "signds.yaml", "--rounds", 10)
    assert found["epsilon"]["total"] == 10 * found["epsilon"]["round"]
    assert "does not name its epsilon" in found["warnings"][0]


def test_the_published_file_needs_no_warning_of_the_mechanism(tmp_path: Path) -> None:
    file = tmp_path / "published.yaml"
    file.write_text(
        "encrypt:\n  encrypt_train_type: SIGNDS\n  privacy_eval_type: LAPLACE\n"
        "  laplace_eval:\n    laplace_eval_eps: 230260\n"
    )
    assert facts("explain", "mindspore", file)["evaluation"]["row"] == 460_520.0


def test_what_is_none_of_mindspores_is_a_problem(tmp_path: Path) -> None:
    done = flower_ldp("explain", "mindspore", CONFIGS / "codeword.yaml")
    assert (done.code, "config check" in done.err) == (1, True)
    assert "none.yaml" in refused("explain", "mindspore", tmp_path / "none.yaml")

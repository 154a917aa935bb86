"""``flower-ldp config check``: each kind of file is known by its section, and explained."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.mechanisms import Gaussian, KaryResponse
from flower_ldp.privacy import PrivacySpent, Unit, meaning
from tests.cli import flower_ldp

CONFIGS = Path(__file__).parents[2] / "configs"


def test_evaluation() -> None:
    found = flower_ldp("config", "check", CONFIGS / "laplace_eval.yaml", "--json").json
    assert (found["kind"], found["mechanism"]) == ("encrypt", None)
    evaluation = found["evaluation"]
    assert evaluation["row"] == {"epsilon": 8.0, "published_epsilon": 4.0}
    assert evaluation["epsilon"] == {"unit": "client", "round": 9.0}
    assert evaluation["noise"]["scale"] == 0.25
    assert "no protection in training" in found["warnings"][0]
    words = flower_ldp("config", "check", CONFIGS / "laplace_eval.yaml").out
    assert "8 per client, pure; published as 4, which names half" in words
    assert "epsilon 1, clipped to [0.0, 2.3]" in words


def test_the_published_evaluation_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("encrypt:\n  encrypt_train_type: SIGNDS\n  privacy_eval_type: LAPLACE\n")
    done = flower_ldp("config", "check", path)
    assert done.code == 0
    (warning,) = done.err.splitlines()
    assert "true epsilon of 460,520 per row and client, and protects nothing" in warning
    assert "epsilon a round   100 per client" in done.out
    assert "epsilon a row           460,520 per client" in done.out


def test_dp_encrypt() -> None:
    found = flower_ldp("config", "check", CONFIGS / "dp_encrypt.yaml", "--json").json
    assert (found["kind"], found["mechanism"]) == ("encrypt", "gaussian")
    assert found["epsilon"] == {"unit": "client", "round": 50.0, "delta": 0.01}
    assert found["noise"]["deviation"] == Gaussian(50.0, 0.01).deviation
    assert "delta 0.01" in flower_ldp("config", "check", CONFIGS / "dp_encrypt.yaml").out


def test_dpsgd() -> None:
    found = flower_ldp("config", "check", CONFIGS / "dpsgd.yaml", "--json").json
    assert (found["kind"], found["mechanism"]) == ("dpsgd", "dpsgd")
    assert found["epsilon"] == {"unit": "example", "training": 1.0, "delta": 1e-5}
    assert found["meaning"]["training"] == meaning(PrivacySpent(Unit.EXAMPLE, 1.0))
    words = flower_ldp("config", "check", CONFIGS / "dpsgd.yaml").out
    assert "Odds about an example's data" in words
    assert "A client's data as a whole is not protected" in words


def test_label_dp() -> None:
    found = flower_ldp("config", "check", CONFIGS / "label_dp.yaml", "--json").json
    assert (found["kind"], found["mechanism"]) == ("label_dp", "lp_2st")
    assert found["epsilon"] == {"unit": "label", "once": 1.0}
    keep = KaryResponse(1.0, 10).keep_probability
    assert found["response"]["keep_probability"] == keep
    words = flower_ldp("config", "check", CONFIGS / "label_dp.yaml").out
    assert "KaryResponse + RRWithPrior, on 3 + 2 of every 5 examples" in words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budgets: {}\n", "none of the sections encrypt, dpsgd, label_dp"),
        ("", "none of the sections"),
        ("- encrypt\n", "none of the sections"),
        ("encrypt: [\n", "not valid YAML"),
        ("dpsgd: {epsilon: 1.0, delta: 2}\n", "line 1: dpsgd.delta must be a number"),
        ("label_dp: {eps: 1.0, categories: 10}\ndpsgd: {}\n", "dpsgd"),
    ],
)
def test_what_cannot_be_used_ends_with_1(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    done = flower_ldp("config", "check", path)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert flower_ldp("config", "check", tmp_path / "missing").code == 1

"""``flower-ldp config check``: each kind of file is known by its section, and explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flower_ldp.mechanisms import Gaussian, KaryResponse, SubsetSelection
from flower_ldp.policy import load_policy
from flower_ldp.privacy import PrivacySpent, Unit, meaning
from tests.cli import facts, flower_ldp, refused
from tests.fixtures import CONFIGS, new_ledger, private_file

CLIENT = {"unit": "client", "relation": "replace-one client"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "c.yaml"


def test_evaluation() -> None:
    found = facts("config", "check", CONFIGS / "laplace_eval.yaml")
    assert (found["kind"], found["mechanism"]) == ("encrypt", None)
    evaluation = found["evaluation"]
    assert evaluation["row"] == {"epsilon": 8.0, "published_epsilon": 4.0}
    assert evaluation["epsilon"] == {**CLIENT, "round": 9.0}
    assert evaluation["noise"]["scale"] == 0.25
    assert found["warnings"] == []


def test_the_published_evaluation_is_warned_of(file: Path) -> None:
    file.write_text("encrypt:\n  encrypt_train_type: SIGNDS\n  privacy_eval_type: LAPLACE\n")
    done = flower_ldp("config", "check", file)
    assert done.code == 0
    (warning,) = done.err.splitlines()
    assert "true epsilon of 460,520 per row and client, and protects nothing" in warning
    assert re.search("epsilon a round +100 per client", done.out)
    assert re.search("epsilon a row +460,520 per client", done.out)


def test_dp_encrypt() -> None:
    found = facts("config", "check", CONFIGS / "dp_encrypt.yaml")
    assert (found["kind"], found["mechanism"]) == ("encrypt", "gaussian")
    assert found["epsilon"] == {**CLIENT, "round": 50.0, "delta": 0.01}
    assert found["noise"]["deviation"] == Gaussian(50.0, 0.01).deviation
    assert "delta 0.01" in flower_ldp("config", "check", CONFIGS / "dp_encrypt.yaml").out


def test_dpsgd() -> None:
    found = facts("config", "check", CONFIGS / "dpsgd.yaml")
    assert (found["kind"], found["mechanism"]) == ("dpsgd", "dpsgd")
    spent = {"unit": "example", "relation": "replace-one example"}
    assert found["epsilon"].items() >= {**spent, "training": 1.0, "delta": 1e-5}.items()
    assert found["meaning"]["training"] == meaning(PrivacySpent(Unit.EXAMPLE, 1.0, 1e-5))
    words = flower_ldp("config", "check", CONFIGS / "dpsgd.yaml").out
    assert "Probabilities of what an example's data may show" in words
    assert re.search("not protected +a client's data as a whole", words)


def test_label_dp() -> None:
    found = facts("config", "check", CONFIGS / "label_dp.yaml")
    assert (found["kind"], found["mechanism"]) == ("label_dp", "lp_2st")
    assert (found["epsilon"]["unit"], found["epsilon"]["once"]) == ("label", 1.0)
    assert found["response"]["keep_probability"] == KaryResponse(1.0, 10).keep_probability


def test_sets_of_labels(file: Path) -> None:
    file.write_text("label_dp: {eps: 1.0, categories: 10, response: subset_selection}")
    keep = SubsetSelection(1.0, 10).keep_probability
    assert facts("config", "check", file)["response"] == {"keep_probability": keep}
    assert "a set holds the label" in flower_ldp("config", "check", file).out


def test_embedding_dp() -> None:
    found = facts("config", "check", CONFIGS / "embedding_dp.yaml")
    assert (found["kind"], found["mechanism"]) == ("embedding_dp", "embedding_dp")
    assert found["epsilon"]["unit"] == "example"
    assert (found["epsilon"]["release"], found["epsilon"]["training"]) == (320.0, 3200.0)
    assert found["parameters"]["width"] == 128
    (warning,) = found["warnings"]
    assert "gradients of true labels" in warning


@pytest.mark.parametrize(
    ("section", "release", "training"),
    [
        ("{eps: 3.0, width: 10, one_hot: true, epochs: 4}", 3.0, 12.0),
        ("{eps: 3.0, width: 10, randomizer: codebook_embedding, epochs: 0}", 3.0, 0.0),
        ("{eps: 0.0, width: 10}", 0.0, 0.0),
    ],
)
def test_embeddings_have_their_cost(
    section: str, release: float, training: float, file: Path
) -> None:
    file.write_text(f"embedding_dp: {section}\n")
    found = facts("config", "check", file)
    assert (found["epsilon"]["release"], found["epsilon"]["training"]) == (release, training)
    assert any("policies refuse" in text for text in found["warnings"]) == (release == 0)


def test_labels_that_are_randomized_are_not_warned_of(file: Path) -> None:
    file.write_text("embedding_dp: {eps: 1.0, width: 4, label_eps: 2.5, classes: 3}\n")
    done = flower_ldp("config", "check", file)
    assert "randomized: epsilon 2.5 per label, pure, once" in done.out
    assert done.err == ""


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_every_file_in_configs_passes_its_check(name: str, tmp_path: Path) -> None:
    path = private_file(tmp_path / name, (CONFIGS / name).read_text(encoding="utf-8"))
    if name not in ("client_policy.yaml", "simulation_policy.yaml"):
        done = flower_ldp("config", "check", path)
        assert (done.code, done.out != "") == (0, True)
        return
    said = refused("config", "check", path)
    assert f"is a data owner's policy: flower-ldp policy check {path}" in said
    new_ledger(load_policy(path).ledger)
    assert flower_ldp("policy", "check", path).code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budgets: {}\n", "none of the sections encrypt, dpsgd, label_dp, embedding_dp"),
        ("", "none of the sections"),
        ("- encrypt\n", "none of the sections"),
        ("encrypt: [\n", "not valid YAML"),
        ("dpsgd: {epsilon: 1.0, delta: 2}\n", "line 1: dpsgd.delta must be a number"),
        ("label_dp: {eps: 1.0, categories: 10}\ndpsgd: {}\n", "dpsgd"),
    ],
)
def test_what_cannot_be_used_ends_with_1(file: Path, text: str, says: str) -> None:
    file.write_text(text)
    assert says in refused("config", "check", file)


@pytest.mark.parametrize(
    ("name", "plain"), [("signds", 30.0), ("dp_encrypt", 50.0), ("laplace_eval", 9.0)]
)
def test_the_health_bit_is_part_of_a_rounds_cost(name: str, plain: float, file: Path) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text(encoding="utf-8")
    file.write_text(text.replace("\nencrypt:\n", "\nencrypt:\n  health_eps: 0.5\n", 1))
    found = facts("config", "check", file)
    assert found.get("evaluation", found)["epsilon"]["round"] == plain + 0.5
    assert "health 0.5" in flower_ldp("config", "check", file).out

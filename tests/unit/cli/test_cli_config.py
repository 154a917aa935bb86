"""``flower-ldp config check``: each kind of file is known by its section, and explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms import Gaussian, KaryResponse, SubsetSelection
from flower_ldp.policy import load_policy
from flower_ldp.privacy import PrivacySpent, Unit, meaning
from tests.cli import facts, flower_ldp

CONFIGS = Path(__file__).parents[3] / "configs"
CLIENT = {"unit": "client", "relation": "replace-one client"}


def test_evaluation() -> None:
    found = facts("config", "check", CONFIGS / "laplace_eval.yaml")
    assert (found["kind"], found["mechanism"]) == ("encrypt", None)
    evaluation = found["evaluation"]
    assert evaluation["row"] == {"epsilon": 8.0, "published_epsilon": 4.0}
    assert evaluation["epsilon"] == {**CLIENT, "round": 9.0}
    assert evaluation["noise"]["scale"] == 0.25
    assert found["warnings"] == []
    words = flower_ldp("config", "check", CONFIGS / "laplace_eval.yaml").out
    assert "8 per client, pure" in words
    assert "4 (scale = 1 / epsilon, which names half)" in words
    assert "loss epsilon 1, lower 0, upper 2.3" in words


def test_the_published_evaluation_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_text("encrypt:\n  encrypt_train_type: SIGNDS\n  privacy_eval_type: LAPLACE\n")
    done = flower_ldp("config", "check", path)
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
    assert (found["epsilon"]["unit"], found["epsilon"]["relation"]) == (
        "example",
        "replace-one example",
    )
    assert (found["epsilon"]["training"], found["epsilon"]["delta"]) == (1.0, 1e-5)
    assert found["meaning"]["training"] == meaning(PrivacySpent(Unit.EXAMPLE, 1.0, 1e-5))
    words = flower_ldp("config", "check", CONFIGS / "dpsgd.yaml").out
    assert "Probabilities of what an example's data may show" in words
    assert re.search("not protected +a client's data as a whole", words)


def test_label_dp() -> None:
    found = facts("config", "check", CONFIGS / "label_dp.yaml")
    assert (found["kind"], found["mechanism"]) == ("label_dp", "lp_2st")
    assert (found["epsilon"]["unit"], found["epsilon"]["once"]) == ("label", 1.0)
    keep = KaryResponse(1.0, 10).keep_probability
    assert found["response"]["keep_probability"] == keep
    words = flower_ldp("config", "check", CONFIGS / "label_dp.yaml").out
    assert "KaryResponse + RRWithPrior, on 3 + 2 of every 5 examples" in words
    assert re.search("priors +found from the randomized labels", words)


def test_updates() -> None:
    words = flower_ldp("config", "check", CONFIGS / "signds.yaml").out
    assert "learned, but sign_global_lr where less than 5 % of the clients are asked" in words
    names = re.findall(r"^(\w+|a report of) {2,}(\S+ weights)?", words, flags=re.MULTILINE)
    assert [what for name, what in names if name == "a report of"] == [
        "2,000 weights",
        "60,000 weights",
    ]
    fields = [name for name, _ in names]
    assert fields.index("sign_k") < fields.index("trainable") < fields.index("step")


def test_sets_of_labels(tmp_path: Path) -> None:
    file = tmp_path / "sets.yaml"
    file.write_text("label_dp: {eps: 1.0, categories: 10, response: subset_selection}")
    found = facts("config", "check", file)
    keep = SubsetSelection(1.0, 10).keep_probability
    assert found["response"] == {"keep_probability": keep}
    assert "a set holds the label" in flower_ldp("config", "check", file).out


def test_embedding_dp() -> None:
    found = facts("config", "check", CONFIGS / "embedding_dp.yaml")
    assert (found["kind"], found["mechanism"]) == ("embedding_dp", "embedding_dp")
    assert found["epsilon"]["unit"] == "example"
    assert (found["epsilon"]["release"], found["epsilon"]["training"]) == (320.0, 3200.0)
    assert found["parameters"]["width"] == 128
    (warning,) = found["warnings"]
    assert "gradients of true labels" in warning
    words = flower_ldp("config", "check", CONFIGS / "embedding_dp.yaml").out
    assert "320 per example, pure, for a party" in words
    assert "not protected          a party's data as a whole" in words


@pytest.mark.parametrize(
    ("section", "release", "training"),
    [
        ("{eps: 3.0, width: 10, one_hot: true, epochs: 4}", 3.0, 12.0),
        ("{eps: 3.0, width: 10, randomizer: codebook_embedding, epochs: 0}", 3.0, 0.0),
        ("{eps: 0.0, width: 10}", 0.0, 0.0),
    ],
)
def test_embeddings_cost_what_their_mechanism_says(
    section: str, release: float, training: float, tmp_path: Path
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"embedding_dp: {section}\n")
    found = facts("config", "check", path)
    assert (found["epsilon"]["release"], found["epsilon"]["training"]) == (release, training)
    assert any("policies refuse" in text for text in found["warnings"]) == (release == 0)


def test_labels_that_are_randomized_are_not_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("embedding_dp: {eps: 1.0, width: 4, label_eps: 2.5, classes: 3}\n")
    done = flower_ldp("config", "check", path)
    assert "randomized: epsilon 2.5 per label, pure, once" in done.out
    assert done.err == ""


POLICIES = {"client_policy.yaml", "simulation_policy.yaml"}


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.yaml")))
def test_every_file_in_configs_passes_its_check(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes((CONFIGS / name).read_bytes())
    path.chmod(0o600)
    done = flower_ldp("config", "check", path)
    if name not in POLICIES:
        assert (done.code, done.out != "") == (0, True)
        return
    assert (done.code, done.out) == (1, "")
    assert f"is a data owner's policy: flower-ldp policy check {path}" in done.err
    Ledger.open(load_policy(path).ledger, create=True).close()
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
def test_what_cannot_be_used_ends_with_1(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    done = flower_ldp("config", "check", path)
    assert (done.code, done.out) == (1, "")
    assert says in done.err
    assert flower_ldp("config", "check", tmp_path / "missing").code == 1


@pytest.mark.parametrize(
    ("name", "plain", "section"),
    [("signds.yaml", 30.0, None), ("dp_encrypt.yaml", 50.0, None), ("laplace_eval.yaml", 9.0, "e")],
)
def test_the_health_bit_is_part_of_what_a_round_costs(
    name: str, plain: float, section: str | None, tmp_path: Path
) -> None:
    text = (CONFIGS / name).read_text(encoding="utf-8")
    path = tmp_path / name
    path.write_text(text.replace("\nencrypt:\n", "\nencrypt:\n  health_eps: 0.5\n", 1))
    found = facts("config", "check", path)
    assert (found["evaluation"] if section else found)["epsilon"]["round"] == plain + 0.5
    assert "health 0.5" in flower_ldp("config", "check", path).out

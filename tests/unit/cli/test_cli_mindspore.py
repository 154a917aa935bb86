"""``explain mindspore`` and ``config check`` of whole files of MindSpore Federated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import facts, flower_ldp

PARTY = """\
role: leader
hyper_parameters: {epochs: 20}
privacy: {embedding_dp: {eps: 5.0}, label_dp: {eps: 1.0}}
"""


@pytest.fixture
def party(tmp_path: Path) -> Path:
    path = tmp_path / "leader.yaml"
    path.write_text(PARTY, encoding="utf-8")
    return path


def test_a_partys_epsilons_add_up_over_the_files_passes(party: Path) -> None:
    found = facts("explain", "mindspore", party)
    assert found["rounds"] == 20
    assert found["embedding"] == {"stated": 5.0, "entry": 2.5}
    assert (found["labels"]["stated"], found["labels"]["total"]) == (1.0, 20.0)
    words = flower_ldp("explain", "mindspore", party, "--rounds", 3).out
    assert "width x 7.5 in 3 passes" in words
    assert found["labels"]["total_of_many"] == 40.0
    refused = flower_ldp("explain", "mindspore", party, "--rounds", 0)
    assert "--rounds: must be an integer" in refused.err


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("embedding_dp: {eps: 0}", "embedding"),
        ("embedding_dp: {eps: 35}", "embedding"),
        ("label_dp: {eps: 38}", "labels"),
    ],
)
def test_no_epsilon_is_printed_where_its_noise_is_rounded_away(
    section: str, key: str, tmp_path: Path
) -> None:
    path = tmp_path / "party.yaml"
    path.write_text(f"privacy: {{{section}}}\n", encoding="utf-8")
    assert facts("explain", "mindspore", path)[key].get("entry") is None
    assert "none: " in flower_ldp("explain", "mindspore", path).out


@pytest.mark.parametrize("epochs", ["-5", "20.0", "'20'", "true"])
def test_passes_are_a_number(epochs: str, tmp_path: Path) -> None:
    path = tmp_path / "party.yaml"
    path.write_text(PARTY.replace("20", epochs), encoding="utf-8")
    assert "epochs must be an integer" in flower_ldp("explain", "mindspore", path).err


def test_rounds_are_the_files_where_none_are_given(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("encrypt: {encrypt_type: SIGNDS}\nfl_iteration_num: 7\n", encoding="utf-8")
    found = facts("explain", "mindspore", path)
    assert found["epsilon"]["total"] == 7 * found["epsilon"]["round"] == 700.0


def test_check_names_what_is_not_used_and_where_flower_has_it(party: Path) -> None:
    found = facts("config", "check", party)
    assert (found["kind"], found["embedding_eps"], found["label_eps"]) == ("privacy", 5.0, 1.0)
    fields = {row["field"]: row["in_flower"] for row in found["elsewhere"]}
    assert fields.keys() == {"role", "hyper_parameters"}
    assert "examples/split-digits" in fields["role"]

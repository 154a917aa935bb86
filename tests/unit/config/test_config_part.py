"""``trainable`` and ``subspace`` in the three sections that training goes by."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import Subspace
from tests.cli import facts, flower_ldp
from tests.fixtures import parse_config

SECTIONS = {
    "SIGNDS": "signds: {sign_eps: 8.0, sign_k: null, ",
    "CODEWORD": "codeword: {codeword_eps: 8.0, codeword_server_optimizer: {kind: momentum}, ",
    "DP_ENCRYPT": "dp_encrypt: {",
}
EVERY = pytest.mark.parametrize("kind", SECTIONS)


def text(kind: str, part: str) -> str:
    return f"encrypt:\n  encrypt_train_type: {kind}\n  {SECTIONS[kind]}{part}}}\n"


PARTS = [
    ("trainable: [a.*, '*b*'], subspace: {dimension: 7, seed: 3}", ("a.*", "*b*"), Subspace(7, 3)),
    ("trainable: head.*, subspace: {dimension: 9}", ("head.*",), Subspace(9)),
    ("", None, None),
    ("trainable: null, subspace: null", None, None),
]


@EVERY
@pytest.mark.parametrize(("part", "trainable", "subspace"), PARTS)
def test_a_part_is_what_a_strategy_takes(
    kind: str, part: str, trainable: tuple[str, ...] | None, subspace: Subspace | None
) -> None:
    section = parse_config(text(kind, part)).encrypt.protection()
    assert section is not None
    assert (section.trainable, section.public_subspace()) == (trainable, subspace)


@EVERY
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("trainable: 3", "trainable must be a name or pattern of arrays, or a list, got 3"),
        ("trainable: []", "trainable must be a name"),
        ("trainable: ['']", "trainable must be a name"),
        ("trainable: [1]", "trainable must be a name"),
        ("subspace: 2000", "subspace must be a section"),
        ("subspace: {}", "subspace.dimension is missing"),
        ("subspace: {dimension: 0}", r"dimension must be an integer in \[1, 4194304\]"),
        ("subspace: {dimension: 2.5}", "dimension must be an integer"),
        ("subspace: {dimension: 2, seed: -1}", "seed must be an integer in"),
        ("subspace: {dimension: 2, kind: fast}", "kind is not a known field"),
    ],
)
def test_other_parts_are_refused_by_line_and_field(kind: str, part: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"line 3: .*{words}"):
        parse_config(text(kind, part))


def test_a_seed_is_below_2_to_the_63() -> None:
    largest = parse_config(text("SIGNDS", f"subspace: {{dimension: 2, seed: {2**63 - 1}}}"))
    assert largest.encrypt.signds.public_subspace() == Subspace(2, 2**63 - 1)
    with pytest.raises(ConfigError, match="seed must be an integer"):
        parse_config(text("SIGNDS", f"subspace: {{dimension: 2, seed: {2**63}}}"))


@EVERY
def test_config_check_says_which_part(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text(text(kind, "trainable: head.*, subspace: {dimension: 2000, seed: 3}"))
    found = facts("config", "check", file)
    assert found["parameters"]["trainable"] == ["head.*"]
    assert found["parameters"]["subspace"] == {"dimension": 2000, "seed": 3}
    assert kind != "CODEWORD" or list(found["reports"]) == ["2000"]
    said = " ".join(flower_ldp("config", "check", file).out.split())
    for words in ("subspace dimension 2,000, seed 3", "trainable head.*", "not about weights"):
        assert words in said

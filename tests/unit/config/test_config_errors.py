"""Errors of a configuration file: what is wrong, in which field and line of which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.config import load_config
from flower_ldp.errors import ConfigError
from tests.unit.config.texts import HEAD, refusal, signds_text

KINDS = (
    "kind must be 'momentum' or 'fixed_length' or 'agreed_length' or 'adam' or 'yogi' or 'adagrad'"
)
OPTIMIZER = "encrypt.signds.sign_server_optimizer"


OPTIMIZERS = [
    ("{kind: momentum, momentum: 1.0}", "momentum must be a number in [0, 1), got 1.0"),
    ("{kind: momentum, momentum: -0.1}", "momentum must be a number in [0, 1), got -0.1"),
    ("{kind: momentum, learning_rate: 0}", "learning_rate must be a number in (0, inf), got 0"),
    ("{kind: momentum, length: 1}", "length is not a known field"),
    ("{kind: fixed_length, length: 1}", "rounds is missing"),
    ("{kind: fixed_length, rounds: 1}", "length is missing"),
    (
        "{kind: fixed_length, length: 0, rounds: 1}",
        "length must be a number in (0, inf), got 0",
    ),
    (
        "{kind: fixed_length, length: 1, rounds: 0}",
        "rounds must be an integer in [1, inf), got 0",
    ),
    (
        "{kind: fixed_length, length: 1, rounds: 1, momentum: 1}",
        "momentum must be a number in [0, 1), got 1",
    ),
    (
        "{kind: fixed_length, length: 1, rounds: 1, final_fraction: 1.5}",
        "final_fraction must be a number in [0, 1], got 1.5",
    ),
    ("{kind: adam, eta: 0}", "eta must be a number in (0, inf), got 0"),
    ("{kind: adam, beta_1: 1}", "beta_1 must be a number in [0, 1), got 1"),
    ("{kind: yogi, beta_2: 1}", "beta_2 must be a number in [0, 1), got 1"),
    ("{kind: adagrad, tau: 0}", "tau must be a number in (0, inf), got 0"),
    ("{kind: adagrad, beta_1: 0.5}", "beta_1 is not a known field"),
    ("{kind: sgd}", f"{KINDS}, got sgd"),
    ("{kind: [momentum]}", f"{KINDS}, got [momentum]"),
    ("{momentum: 0.9}", f"{KINDS}, got nothing"),
]


@pytest.mark.parametrize(("value", "complaint"), OPTIMIZERS)
def test_server_optimizer_errors_name_fields_of_the_file(value: str, complaint: str) -> None:
    message = refusal(signds_text(f"sign_server_optimizer: {value}"))
    assert message == f"site.yaml, line 4: {OPTIMIZER}.{complaint}"


@pytest.mark.parametrize(
    "chosen", ["{kind: fixed_length, length: 1, rounds: 9}", "{kind: agreed_length}"]
)
def test_steps_of_planned_length_are_refused_with_a_magnitude_bit(chosen: str) -> None:
    fixed = f"sign_server_optimizer: {chosen}"
    assert refusal(signds_text(fixed, "sign_mag_eps: 0.5")) == (
        "site.yaml, line 5: encrypt.signds.sign_mag_eps must be left out with planned "
        "steps, which ignore what the bit tells, got 0.5"
    )


def test_server_optimizer_errors_have_the_line_of_the_field() -> None:
    message = refusal(
        signds_text("sign_server_optimizer:", "  kind: momentum", "", "  momentum: 2")
    )
    assert message.startswith(f"site.yaml, line 7: {OPTIMIZER}.momentum must")


# Shapes of the file.


SHAPES = [
    ("", 1, "the file must be a section of fields, got nothing"),
    ("# only a comment\n", 1, "the file must be a section of fields, got nothing"),
    ("- encrypt\n", 1, "the file must be a section of fields, got - encrypt"),
    ("encrypt", 1, "the file must be a section of fields, got encrypt"),
    ("12\n", 1, "the file must be a section of fields, got 12"),
    ("{}\n", 1, "encrypt is missing"),
    ("encrypt: {encrypt_train_type: CODEWORD}", 1, "encrypt.codeword is missing"),
    ("fl_name: lenet", 1, "encrypt is missing"),
    ("\n\nencrypt:\n", 3, "encrypt must be a section of fields, got nothing"),
    ("encrypt: [SIGNDS]\n", 1, "encrypt must be a section of fields, got [SIGNDS]"),
    (HEAD + "  signds:\n", 3, "encrypt.signds must be a section of fields, got nothing"),
    (HEAD + "  dp_encrypt: 3\n", 3, "encrypt.dp_encrypt must be a section of fields, got 3"),
    (signds_text("sign_q: 1"), 4, "encrypt.signds.sign_q is not a known field"),
    (HEAD + "  compression: {}\n", 3, "encrypt.compression is not a known field"),
    (
        "encrypt:\n\n  encrypt_type: SIGN_DS\n",
        3,
        "encrypt.encrypt_type must be 'SIGNDS', 'CODEWORD', 'DP_ENCRYPT' or 'NOT_ENCRYPT', "
        "got SIGN_DS",
    ),
    (
        signds_text("sign_scaling: none"),
        4,
        "encrypt.signds.sign_scaling must be 'published' or 'unbiased', got none",
    ),
    (
        signds_text("sign_server_optimizer: momentum"),
        4,
        f"{OPTIMIZER} must be a section of fields, got momentum",
    ),
    (signds_text("sign_k: 0.1", "sign_eps: 1", "sign_k: 0.2"), 6, "sign_k is given twice"),
    (HEAD + "  encrypt_type: SIGNDS\n", 3, "encrypt_type is given twice"),
    (HEAD + "encrypt: {}\n", 3, "encrypt is given twice"),
    (HEAD + "  x: [{a: 1, a: 2}]\n", 3, "a is given twice"),
    ("encrypt: &a [*a]\n", 1, "encrypt must be a section of fields, got &a [*a]"),
    ("encrypt: *x\n", 1, "not valid YAML: found undefined alias 'x'"),
    ("!!omap [[a, b]: c]\n", 1, "the file must be a section of fields, got !!omap [[a, b]: c]"),
    ("encrypt:\n  - [\n", 3, "not valid YAML: expected the node content, but found"),
    ("encrypt:\n\tsignds: 1\n", 2, "not valid YAML: found character '\\t'"),
    ("a: 1\n---\nb: 1\n", 2, "not valid YAML: but found another document"),
    (HEAD + "1: 2\n", 3, "1 is not a known field"),
    ("? [a, b]\n: c\n", 1, "not valid YAML: found unhashable key"),
    ("\nencrypt: !!python/object:os.system {}\n", 2, "not valid YAML: could not determine"),
]


@pytest.mark.parametrize(("text", "line", "complaint"), SHAPES)
def test_malformed_files_are_refused_with_the_line(text: str, line: int, complaint: str) -> None:
    assert refusal(text).startswith(f"site.yaml, line {line}: {complaint}")


@pytest.mark.parametrize(
    "text",
    [
        "encrypt: 2020-13-45\n",
        "encrypt: !!int x\n",
        "encrypt: !!int ''\n",
        "encrypt: !!float x\n",
        "encrypt: !!bool x\n",
        "encrypt: !!timestamp x\n",
        "encrypt: 0x_\n",
        "encrypt: 1" + "0" * 5000 + "\n",
        "encrypt: a\0b\n",
        "[" * 1000 + "]" * 1000,
    ],
)
def test_whatever_the_parser_raises_is_a_config_error(text: str) -> None:
    assert refusal(text).startswith("site.yaml: not valid YAML: ")


def test_an_alias_to_itself_is_refused() -> None:
    assert "encrypt.x is not a known field" in refusal("encrypt: &a\n  x: *a\n")


def test_all_errors_are_told_in_the_order_of_lines() -> None:
    lines = refusal(
        signds_text("sign_q: 1", "sign_thr_ratio: 2", "sign_k: 1") + "other: 1\n"
    ).splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"site.yaml, line {n}" for n in (4, 5, 6, 7)]


def test_long_values_are_cut() -> None:
    message = refusal(signds_text("sign_k: " + "x" * 10_000))
    assert len(message) < 250
    assert message.endswith("xxx...")


# Files.


def test_errors_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "client 1.yaml"
    path.write_text(signds_text("sign_k: 1"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"{path}, line 4: encrypt.signds.sign_k must be a number in (0, 0.25], got 1"
    )


def test_files_that_cannot_be_read_are_config_errors(tmp_path: Path) -> None:
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"encrypt: caf\xe9\n")
    for path, complaint in [
        (tmp_path / "absent.yaml", "cannot be read"),
        (tmp_path, "cannot be read"),
        (latin, "is not a UTF-8 text file"),
    ]:
        with pytest.raises(ConfigError, match=complaint) as caught:
            load_config(path)
        assert str(path) in str(caught.value)
    with pytest.raises(ConfigError):
        load_config("a\0b.yaml")

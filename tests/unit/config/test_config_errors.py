"""Errors of a configuration file: what is wrong, in which field and line of which file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.config import load_config
from flower_ldp.errors import ConfigError
from tests.unit.config.texts import HEAD, refusal, signds_text

NAMES = ("momentum", "fixed_length", "agreed_length", "adam", "yogi", "adagrad")
KIND = f"kind must be {' or '.join(map(repr, NAMES))}"
OPTIMIZER = "encrypt.signds.sign_server_optimizer"
PLANNED = "kind: fixed_length, length: 1, rounds: 1"
OPTIMIZERS = [
    ("kind: momentum, momentum: 1.0", "momentum must be a number in [0, 1), got 1.0"),
    ("kind: momentum, momentum: -0.1", "momentum must be a number in [0, 1), got -0.1"),
    ("kind: momentum, learning_rate: 0", "learning_rate must be a number in (0, inf), got 0"),
    ("kind: momentum, length: 1", "length is not a known field"),
    ("kind: fixed_length, length: 1", "rounds is missing"),
    ("kind: fixed_length, rounds: 1", "length is missing"),
    ("kind: fixed_length, length: 0, rounds: 1", "length must be a number in (0, inf), got 0"),
    ("kind: fixed_length, length: 1, rounds: 0", "rounds must be an integer in [1, inf), got 0"),
    (f"{PLANNED}, momentum: 1", "momentum must be a number in [0, 1), got 1"),
    (f"{PLANNED}, final_fraction: 1.5", "final_fraction must be a number in [0, 1], got 1.5"),
    ("kind: adam, eta: 0", "eta must be a number in (0, inf), got 0"),
    ("kind: adam, beta_1: 1", "beta_1 must be a number in [0, 1), got 1"),
    ("kind: yogi, beta_2: 1", "beta_2 must be a number in [0, 1), got 1"),
    ("kind: adagrad, tau: 0", "tau must be a number in (0, inf), got 0"),
    ("kind: adagrad, beta_1: 0.5", "beta_1 is not a known field"),
    ("kind: sgd", f"{KIND}, got sgd"),
    ("kind: [momentum]", f"{KIND}, got [momentum]"),
    ("momentum: 0.9", f"{KIND}, got nothing"),
]


@pytest.mark.parametrize(("value", "complaint"), OPTIMIZERS)
def test_server_optimizer_errors_name_fields_of_the_file(value: str, complaint: str) -> None:
    message = refusal(signds_text(f"sign_server_optimizer: {{{value}}}"))
    assert message == f"site.yaml, line 4: {OPTIMIZER}.{complaint}"


@pytest.mark.parametrize("chosen", [PLANNED, "kind: agreed_length"])
def test_steps_of_planned_length_are_refused_with_a_magnitude_bit(chosen: str) -> None:
    fixed = f"sign_server_optimizer: {{{chosen}}}"
    assert refusal(signds_text(fixed, "sign_mag_eps: 0.5")) == (
        "site.yaml, line 5: encrypt.signds.sign_mag_eps must be left out with planned "
        "steps, which ignore what the bit tells, got 0.5"
    )


# Shapes of the file.


SECTION = "must be a section of fields"
TYPE = "encrypt.encrypt_type must be 'SIGNDS', 'CODEWORD', 'DP_ENCRYPT' or 'NOT_ENCRYPT'"
SCALING = "encrypt.signds.sign_scaling must be 'published' or 'unbiased'"
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
    ("encrypt:\n\n  encrypt_type: SIGN_DS\n", 3, f"{TYPE}, got SIGN_DS"),
    (signds_text("sign_scaling: none"), 4, f"{SCALING}, got none"),
    (signds_text("sign_server_optimizer: momentum"), 4, f"{OPTIMIZER} {SECTION}, got momentum"),
    (
        signds_text("sign_server_optimizer:", "  kind: momentum", "", "  momentum: 2"),
        7,
        f"{OPTIMIZER}.momentum must",
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
    ("encrypt: &a\n  x: *a\n", 2, "encrypt.x is not a known field"),
]


@pytest.mark.parametrize(("text", "line", "complaint"), SHAPES)
def test_malformed_files_are_refused_with_the_line(text: str, line: int, complaint: str) -> None:
    assert refusal(text).startswith(f"site.yaml, line {line}: {complaint}")


UNREADABLE = ["2020-13-45", "!!int x", "!!int ''", "!!float x", "!!bool x", "!!timestamp x", "0x_"]
UNREADABLE += ["1" + "0" * 5000, "a\0b", "[" * 1000 + "]" * 1000]


@pytest.mark.parametrize("text", UNREADABLE)
def test_whatever_the_parser_raises_is_a_config_error(text: str) -> None:
    assert refusal(f"encrypt: {text}\n").startswith("site.yaml: not valid YAML: ")


def test_all_errors_are_told_in_the_order_of_lines() -> None:
    text = signds_text("sign_q: 1", "sign_thr_ratio: 2", "sign_k: 1") + "other: 1\n"
    places = [line.split(": ")[0] for line in refusal(text).splitlines()]
    assert places == [f"site.yaml, line {number}" for number in (4, 5, 6, 7)]


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
    wanted = "encrypt.signds.sign_k must be a number in (0, 0.25], got 1"
    assert str(caught.value) == f"{path}, line 4: {wanted}"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("absent.yaml", "cannot be read"),
        ("", "cannot be read"),
        ("latin.yaml", "is not a UTF-8 text file"),
        ("a\0b.yaml", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_are_errors(name: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"encrypt: caf\xe9\n")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load_config(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)

"""Configuration files: what loads, what is refused, and that errors say where and why."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from flower_ldp.config import DPEncryptConfig, SignDSConfig, load_config
from flower_ldp.config.updates import KINDS
from flower_ldp.errors import ConfigError, LdpError
from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.strategies import FixedLength, FixedStep, Health, LearnedStep
from tests.fixtures import CONFIGS, parse_config
from tests.unit.config.texts import HEAD, refusal, signds_text

SAMPLE = CONFIGS / "signds.yaml"
DP_ENCRYPT = DPEncryptConfig(dp_eps=50.0, dp_delta=0.01, dp_norm_clip=1.0)
MINDSPORE = """\
encrypt:
  encrypt_train_type: SIGNDS
  pw_encrypt: {share_secrets_ratio: 1.0, cipher_time_window: 3000, reconstruct_secrets_threshold: 1}
  dp_encrypt: {dp_eps: 50.0, dp_delta: 0.01, dp_norm_clip: 1.0}
  signds: {sign_k: 0.01, sign_eps: 100, sign_thr_ratio: 0.6, sign_global_lr: 0.1, sign_dim_out: 0}
"""


def signds(*fields: str) -> SignDSConfig:
    return parse_config(signds_text(*fields)).encrypt.signds


# What loads.


def test_sample_loads_and_builds_what_its_comments_say() -> None:
    section = load_config(SAMPLE).encrypt.signds
    assert section.mechanism() == SignDS(epsilon=29.0, k=0.2, threshold_ratio=0.6, dim_out=0)
    assert section.step() == LearnedStep(MagRR(1.0, 2.0**-10, 2.3, 5), FixedStep(0.1), 0.05)
    assert section.server_optimizer() is None
    assert section.sign_scaling == "unbiased"


def test_sample_explains_every_field() -> None:
    text = SAMPLE.read_text(encoding="utf-8")
    section = yaml.safe_load(text)["encrypt"]["signds"]
    assert set(section) == set(SignDSConfig.model_fields)
    for kind in ("momentum", "fixed_length", "agreed_length"):
        for field in KINDS[kind].model_fields:
            assert field in text
    assert "sign_eps + sign_mag_eps" in text


@pytest.mark.parametrize("key", ["encrypt_train_type", "encrypt_type"])
def test_mindspore_section_loads_unchanged(key: str) -> None:
    encrypt = parse_config(MINDSPORE.replace("encrypt_train_type", key)).encrypt
    section = encrypt.signds
    assert encrypt.encrypt_train_type == "SIGNDS"
    assert section.mechanism() == SignDS(100.0, 0.01, 0.6, 0)
    assert (section.step(), section.server_optimizer()) == (FixedStep(0.1), None)
    assert section.sign_scaling == "published"
    assert encrypt.dp_encrypt == DP_ENCRYPT
    assert encrypt.pw_encrypt is not None
    assert encrypt.pw_encrypt.cipher_time_window == 3000


def test_defaults_are_the_published_ones() -> None:
    encrypt, published = parse_config(HEAD).encrypt, parse_config(MINDSPORE).encrypt
    assert (encrypt.signds, encrypt.dp_encrypt) == (published.signds, DP_ENCRYPT)
    assert encrypt.pw_encrypt is None


def test_integers_are_numbers() -> None:
    assert repr(signds("sign_eps: 8").sign_eps) == "8.0"


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "signds.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + MINDSPORE.replace("\n", "\r\n").encode())
    assert load_config(str(path)) == parse_config(MINDSPORE)


@pytest.mark.parametrize("absent", [(), ("sign_mag_eps: null",), ("sign_mag_eps:",)])
def test_without_magnitude_epsilon_the_step_is_fixed(absent: tuple[str, ...]) -> None:
    assert signds("sign_global_lr: 0.25", *absent).step() == FixedStep(0.25)


def test_with_magnitude_epsilon_the_step_is_learned() -> None:
    fields = {"eps": 0.5, "initial": 0.125, "significance": 0, "regrow_after": 0}
    bit = [f"sign_mag_{name}: {value}" for name, value in fields.items()]
    section = signds("sign_global_lr: 0.25", *bit, "sign_min_participation: 1")
    assert section.step() == LearnedStep(MagRR(0.5, 0.125, 0.0, 0), FixedStep(0.25), 1.0)


def test_server_optimizer_has_fresh_state_each_time() -> None:
    section = signds("sign_server_optimizer: {kind: fixed_length, length: 2, rounds: 50}")
    first, second = section.server_optimizer(), section.server_optimizer()
    assert first == second == FixedLength(2.0, 50, 0.9, 0.0)
    assert first is not second


# Intervals. One row a field: the interval, values inside at both ends, values outside.

TINY, HUGE = 5e-324, 1.7976931348623157e308
INTERVALS: list[tuple[str, str, list[float], list[float]]] = [
    ("sign_k", "(0, 0.25]", [TINY, 0.25], [0.0, -0.01, math.nextafter(0.25, 1), 1]),
    ("sign_eps", "(0, 100]", [TINY, 100], [0, -1, math.nextafter(100, 101), 101]),
    ("sign_thr_ratio", "[0.5, 1]", [0.5, 1], [math.nextafter(0.5, 0), math.nextafter(1, 2), 0]),
    ("sign_global_lr", "(0, inf)", [TINY, HUGE], [0, -0.1]),
    ("sign_dim_out", "[0, 50]", [0, 50], [-1, 51, 1.5, 1.0]),
    ("sign_mag_eps", "(0, 100]", [TINY, 100], [0, -1, math.nextafter(100, 101)]),
    ("sign_mag_initial", "[1e-30, 1e+30]", [1e-30, 1e30], [0, 9.9e-31, 1.1e30]),
    ("sign_mag_significance", "[0, inf)", [0, HUGE], [-TINY, -1]),
    ("sign_mag_regrow_after", "[0, inf)", [0, 10**9], [-1, 1.5, 1.0]),
    ("sign_min_participation", "[0, 1]", [0, 1], [-TINY, math.nextafter(1, 2)]),
]
INTEGERS = {"sign_dim_out", "sign_mag_regrow_after", "rounds"}
INSIDE = [(name, value) for name, _, inside, _ in INTERVALS for value in inside]
OUTSIDE = [(name, ends, value) for name, ends, _, outside in INTERVALS for value in outside]


def literal(value: float) -> str:
    """Return a number as YAML writes it: repr's 1e-30 would be text."""
    return str(yaml.safe_dump(value)).split("\n", maxsplit=1)[0]


def test_every_number_of_the_section_is_in_the_table() -> None:
    others = {"sign_scaling", "sign_server_optimizer", "trainable", "subspace"}
    assert {name for name, *_ in INTERVALS} | others == set(SignDSConfig.model_fields)


@pytest.mark.parametrize(("name", "value"), INSIDE)
def test_ends_of_intervals_are_accepted(name: str, value: float) -> None:
    section = signds(f"{name}: {literal(value)}")
    assert getattr(section, name) == value
    section.mechanism()
    section.step()


@pytest.mark.parametrize(("name", "interval", "value"), OUTSIDE)
def test_values_outside_are_refused(name: str, interval: str, value: float) -> None:
    kind = "an integer" if name in INTEGERS else "a number"
    wanted = f"{name} must be {kind} in {interval}, got {literal(value)}"
    message = refusal(signds_text("", f"{name}: {literal(value)}"))
    assert message == f"site.yaml, line 5: encrypt.signds.{wanted}"


@pytest.mark.parametrize(("name", "interval"), [row[:2] for row in INTERVALS])
@pytest.mark.parametrize("value", ["'0.6'", "text", "true", "[0.6]", ".nan", ".inf", "-.inf", "{}"])
def test_values_that_are_no_numbers_are_refused(name: str, interval: str, value: str) -> None:
    message = refusal(signds_text(f"{name}: {value}"))
    assert message.startswith(f"site.yaml, line 4: encrypt.signds.{name} must be a")
    assert f" in {interval}, " in message
    assert message.endswith(f"got {value}")


MAY_BE_EMPTY = {"sign_mag_eps", "sign_k"}


def test_an_empty_sign_k_leaves_the_sizes_to_the_worth_of_a_report() -> None:
    assert signds("sign_k:", "sign_eps: 8").mechanism() == SignDS(8.0)
    assert signds("sign_eps: 8").mechanism() == SignDS(8.0, 0.01)


@pytest.mark.parametrize("name", [row[0] for row in INTERVALS if row[0] not in MAY_BE_EMPTY])
def test_a_number_left_empty_is_refused(name: str) -> None:
    message = refusal(signds_text(f"{name}:"))
    assert message.startswith(f"site.yaml, line 4: encrypt.signds.{name} must be a")
    assert message.endswith("got nothing")


def test_an_exponent_without_a_point_is_text_and_the_error_says_so() -> None:
    assert re.search("not text.*1.0e-3", refusal(signds_text("sign_mag_initial: 1e-3")))
    assert signds("sign_mag_initial: 1.0e-3").sign_mag_initial == 0.001


@pytest.mark.parametrize("digits", [39, 400, 4000])
@pytest.mark.parametrize("name", ["sign_eps", "sign_dim_out", "sign_global_lr"])
def test_integers_of_any_size_are_judged(name: str, digits: int) -> None:
    text = signds_text(f"{name}: 1{'0' * digits}")
    if name == "sign_global_lr" and digits < 300:
        assert parse_config(text).encrypt.signds.sign_global_lr == float(10**digits)
    else:
        message = refusal(text)
        assert message.startswith(f"site.yaml, line 4: encrypt.signds.{name} must be a")
        assert len(message) < 200


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("dp_encrypt.dp_eps", "-1", "a number in (0, inf)"),
        ("dp_encrypt.dp_delta", "1", "a number in (0, 1)"),
        ("dp_encrypt.dp_norm_clip", "0", "a number in (0, inf)"),
        ("pw_encrypt.share_secrets_ratio", "1.1", "a number in (0, 1]"),
        ("pw_encrypt.cipher_time_window", "-1", "an integer in [0, inf)"),
        ("pw_encrypt.reconstruct_secrets_threshold", "0.5", "an integer in [0, inf)"),
    ],
)
def test_sibling_sections_are_checked(field: str, value: str, wanted: str) -> None:
    section, _, name = field.partition(".")
    message = refusal(f"{HEAD}  {section}:\n    {name}: {value}\n")
    assert message == f"site.yaml, line 4: encrypt.{field} must be {wanted}, got {value}"


def test_config_errors_are_value_errors_of_this_package() -> None:
    assert {ValueError, LdpError} <= {*ConfigError.__mro__}


def test_sections_are_frozen_and_checked_in_code_too() -> None:
    section = parse_config(HEAD).encrypt.signds
    with pytest.raises(ValueError, match="frozen"):
        section.sign_k = 0.2
    with pytest.raises(ValueError, match=r"\(0, 0\.25\]"):
        SignDSConfig(sign_k=0.3)


def test_the_health_bit_is_asked_for_where_the_file_says_so() -> None:
    asked = HEAD + "  health_eps: {}\n"
    assert parse_config(asked.format(0.5)).encrypt.health() == Health(0.5)
    assert parse_config(HEAD).encrypt.health() is None
    for wrong in ("0", "0.009", "101", ".nan", ".inf", "text", "true"):
        assert "encrypt.health_eps" in refusal(asked.format(wrong))

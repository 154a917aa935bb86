"""DP_ENCRYPT in a configuration: strict where it is used, as published where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.config import load_dpsgd_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import Gaussian
from tests.fixtures import CONFIGS, parse_config
from tests.unit.config.texts import refusal

PUBLISHED = """
encrypt:
  encrypt_type: DP_ENCRYPT
  dp_encrypt:
    dp_eps: 50.0
    dp_delta: 0.01
    dp_norm_clip: 1.0
"""


def test_the_published_section_loads_unchanged() -> None:
    section = parse_config(PUBLISHED).encrypt.dp_encrypt
    assert section is not None
    assert section.mechanism() == Gaussian(50.0, 0.01, 1.0)


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("dp_eps: 50.0", "dp_eps: 101.0", "line 5: encrypt.dp_encrypt.dp_eps must be in"),
        ("dp_delta: 0.01", "dp_delta: 0.6", "line 6: encrypt.dp_encrypt.dp_delta must be in"),
        ("norm_clip: 1.0", "norm_clip: 1.0e+40", "line 7: encrypt.dp_encrypt.dp_norm_clip must"),
        ("dp_eps:", "dp_epsilon:", "dp_epsilon"),
    ],
)
def test_what_the_mechanism_does_not_allow_is_an_error(old: str, new: str, wanted: str) -> None:
    assert wanted in refusal(PUBLISHED.replace(old, new))


def test_beside_signds_the_published_intervals_hold() -> None:
    text = PUBLISHED.replace("DP_ENCRYPT", "SIGNDS").replace("50.0", "5000.0")
    section = parse_config(text).encrypt.dp_encrypt
    assert section is not None
    with pytest.raises(ValueError, match="epsilon must be in"):
        section.mechanism()


def test_the_shipped_dpsgd_configuration_loads() -> None:
    found = load_dpsgd_config(CONFIGS / "dpsgd.yaml").model_dump()
    sizes = {"epochs": 3, "batch_size": 250, "max_grad_norm": 1.0}
    assert found == {"epsilon": 1.0, "delta": 1e-5, **sizes}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("epsilon: 50.0", r"line 2: dpsgd.epsilon must be a number in \[0.01, 30\]"),
        ("delta: 0", r"line 3: dpsgd.delta must be a number in \[1e-10, 0.5\]"),
        ("epochs: 1.5", "line 4: dpsgd.epochs must be a"),
        ("batch_size: 0", "line 4: dpsgd.batch_size must be a"),
        ("noise: 1.0", "line 4: dpsgd.noise is not a known field"),
    ],
)
def test_dpsgd_errors_name_line_and_field(line: str, wanted: str, tmp_path: Path) -> None:
    fields = {"epsilon": "epsilon: 1.0", "delta": "delta: 1.0e-5"}
    fields[line.split(":")[0]] = line
    path = tmp_path / "dpsgd.yaml"
    path.write_text("dpsgd:\n" + "".join(f"  {text}\n" for text in fields.values()))
    with pytest.raises(ConfigError, match=wanted):
        load_dpsgd_config(path)

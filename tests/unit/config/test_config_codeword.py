"""The section ``codeword``: strict, and what it stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.config import from_config, load_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import Codeword
from flower_ldp.shuffle import Analyzer, ReportAnalyzer
from flower_ldp.strategies import AgreedLength, CodewordStrategy, Momentum
from tests.cli import facts, flower_ldp
from tests.fixtures import CONFIGS, parse_config

SAMPLE = CONFIGS / "codeword.yaml"
TEXT = """
encrypt:
  encrypt_train_type: CODEWORD
  codeword:
    codeword_eps: 4.0
    codeword_server_optimizer: {kind: momentum, momentum: 0.5}
"""


def test_the_sample_is_what_it_says() -> None:
    encrypt = load_config(SAMPLE).encrypt
    section = encrypt.protection()
    assert section is not None
    assert section is encrypt.codeword
    assert section.mechanism() == Codeword(8.0, 0, 64)
    assert section.server_optimizer() == AgreedLength(0.6)
    assert section.server_optimizer() is not section.server_optimizer()
    assert [(event.mechanism, event.epsilon) for event in section.events()] == [("codeword", 8.0)]


def test_defaults_are_those_of_the_mechanism() -> None:
    section = parse_config(TEXT).encrypt.codeword
    assert section is not None
    assert section.mechanism() == Codeword(4.0)
    assert isinstance(section.server_optimizer(), Momentum)


def test_beside_another_type_it_is_read_and_not_used() -> None:
    encrypt = parse_config(TEXT.replace("CODEWORD", "SIGNDS")).encrypt
    assert encrypt.codeword is not None
    assert encrypt.protection() is encrypt.signds


@pytest.mark.parametrize(
    ("chosen", "momentum"), [("null", 0.6), ("{kind: agreed_length, momentum: 0.5}", 0.5)]
)
def test_steps_without_a_length_are_the_default(chosen: str, momentum: float) -> None:
    section = parse_config(TEXT.replace("{kind: momentum, momentum: 0.5}", chosen)).encrypt.codeword
    assert section is not None
    assert section.server_optimizer() == AgreedLength(momentum)
    assert section.server_optimizer() is not section.server_optimizer()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("codeword_eps: 4.0", "codeword_eps: 0.0", r"codeword_eps.*\[1e-12, 100\]"),
        ("codeword_eps: 4.0", "codeword_rotations: 8", "codeword_eps"),
        ("eps: 4.0", "eps: 4.0\n    codeword_rotations: 4097", r"rotations.*\[1, 4096\]"),
        ("eps: 4.0", "eps: 4.0\n    codeword_favoured: 1.5", "favoured.*integer"),
        ("eps: 4.0", "eps: 4.0\n    codeword_blocks: 0", r"blocks.*\[1, 65536\]"),
        ("eps: 4.0", "eps: 4.0\n    codeword_seed: 1", "codeword_seed"),
        ("momentum, momentum: 0.5", "sgd", "momentum.*fixed_length.*agreed"),
        ("momentum: 0.5", "length: 1.0", "length"),
        ("codeword:\n", "dp_encrypt:\n", "codeword"),
    ],
)
def test_errors_name_the_field(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(TEXT.replace(old, new))


ANALYZED = (
    TEXT
    + """\
    codeword_analyzer:
      url: https://analyzer.example.org:9443
      key: ed25519:{digits}
      token: analyzer.token
""".format(digits=64 * "a")
)


def test_an_analyzer_is_the_strategys(tmp_path: Path) -> None:
    file = tmp_path / "codeword.yaml"
    file.write_text(ANALYZED, encoding="utf-8")
    run = from_config(file)
    url, key = "https://analyzer.example.org:9443", "ed25519:" + 64 * "a"
    section = run.config.encrypt.codeword
    assert section is not None
    assert section.codeword_analyzer is not None
    assert section.codeword_analyzer.build() == Analyzer(url, key, token="analyzer.token")
    strategy = run.strategy()
    assert isinstance(strategy, CodewordStrategy)
    assert f"by an analyzer: {url}, {key}" in " ".join(strategy._description())
    with pytest.raises(TypeError, match="analyzer"):
        run.strategy(analyzer=ReportAnalyzer(2))  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("https:", "http:", r"line 8: .*analyzer\.url must be https://HOST:PORT, got"),
        (":9443", ":9443/path", r"analyzer\.url must be"),
        ("ed25519:", "rsa:", r"analyzer\.key must be 'ed25519:'"),
        ("      token: analyzer.token\n", "", r"analyzer\.token is missing"),
        ("token:", "tokens:", r"analyzer\.tokens is not a known field"),
    ],
)
def test_errors_name_the_analyzers_field(old: str, new: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config(ANALYZED.replace(old, new))


def test_config_check_says_bits_and_efficiency() -> None:
    found = facts("config", "check", SAMPLE)
    plan = Codeword(8.0).plan(60_000)
    assert found["mechanism"] == "codeword"
    for name in ("bits", "favoured", "efficiency"):
        assert found["reports"]["60000"][name] == getattr(plan, name)
    assert (found["epsilon"]["unit"], found["epsilon"]["round"]) == ("client", 8.0)
    said = " ".join(flower_ldp("config", "check", SAMPLE).out.split())
    assert f"bits of a report {plan.bits} efficiency of a report 7.5" in said
    assert "8 per client, pure (codeword 8)" in said

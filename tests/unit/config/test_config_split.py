"""Configuration of split learning: read strictly, and what it means."""

from __future__ import annotations

import pytest

from flower_ldp.config import load_split_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import CodebookEmbedding, KaryResponse, UnaryEncoding
from flower_ldp.privacy import Unit
from tests.fixtures import CONFIGS, parse_split_config


def test_the_sample_is_what_its_comments_say() -> None:
    config = load_split_config(CONFIGS / "embedding_dp.yaml").embedding_dp
    assert config.mechanism() == UnaryEncoding(5.0, 128)
    assert config.mechanism().record_epsilon == 320.0
    assert config.label_response() is None
    assert (config.parties, config.epochs, config.classes) == (2, 10, 10)
    assert config == parse_split_config("embedding_dp: {eps: 5, width: 128}").embedding_dp


def test_codes_and_labels() -> None:
    text = "{eps: 8.0, width: 32, randomizer: codebook_embedding, label_eps: 4.0, classes: 7}"
    config = parse_split_config(f"embedding_dp: {text}").embedding_dp
    assert config.mechanism() == CodebookEmbedding(8.0, 32)
    assert config.label_response() == KaryResponse(4.0, 7, "label", Unit.LABEL)


CODEBOOK = "randomizer: codebook_embedding"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("width: 128", "eps is missing"),
        ("eps: 5.0", "width is missing"),
        ("eps: -1.0, width: 8", "eps must be a number in [0, inf)"),
        ("eps: .nan, width: 8", "eps must be a number in [0, inf)"),
        ("eps: 1.0, width: 0", "width must be an integer"),
        ("eps: 1.0, width: 8.0", "width must be an integer"),
        ("eps: 1.0, width: 8, epsilon: 2", "epsilon is not a known field"),
        ("eps: 1.0, width: 8, randomizer: laplace", "randomizer must be"),
        ("eps: 1.0, width: 8, one_hot: 1", "one_hot must be"),
        ("eps: 1.0, width: 8, label_eps: 0", "label_eps must be a number"),
        (f"eps: 0.0, width: 8, {CODEBOOK}", "eps must be in (0"),
        (f"eps: 1.0, width: 1, {CODEBOOK}", "width must be in [2"),
        (f"eps: 1.0, width: 8, one_hot: true, {CODEBOOK}", "one_hot is for unary_encoding only"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_split_config(f"embedding_dp: {{{text}}}", source="split.yaml")
    assert f"split.yaml, line 1: embedding_dp.{complaint}" in str(caught.value)

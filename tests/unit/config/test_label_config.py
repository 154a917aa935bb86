"""The label_dp section: the sample loads, and what is wrong is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.config.labels import load_label_config
from flower_ldp.errors import ConfigError
from flower_ldp.labels import LabelStages
from flower_ldp.mechanisms import KaryResponse, RRWithPrior, SubsetSelection
from flower_ldp.privacy import Unit
from tests.fixtures import parse_label_config

SAMPLE = Path(__file__).parents[3] / "configs" / "label_dp.yaml"
KARY = KaryResponse(1.0, 10, unit=Unit.LABEL)
PRIOR = RRWithPrior(1.0, 10, unit=Unit.LABEL)


def test_the_sample() -> None:
    config = load_label_config(SAMPLE)
    assert config.stages() == LabelStages((KARY, PRIOR), (3, 2))
    assert config.loss == "soft"
    assert config.local_prior is not None
    assert config.local_prior.clusters == 1000


def test_defaults() -> None:
    config = parse_label_config("label_dp: {eps: 1, categories: 10}")
    assert (config.response, config.loss, config.local_prior) == ("kary_response", "forward", None)
    assert config.stages() == LabelStages((KARY,), (1,))
    prior = parse_label_config("label_dp: {eps: 1, categories: 10, response: rr_with_prior}")
    assert prior.stages() == LabelStages((PRIOR,), (1,))


def test_sets_of_labels_have_the_best_size() -> None:
    sets = SubsetSelection(1.5, 62, unit=Unit.LABEL)
    config = parse_label_config("label_dp: {eps: 1.5, categories: 62, response: subset_selection}")
    assert config.stages() == LabelStages((sets,), (1,))
    assert sets.size == 17
    stages = parse_label_config(
        "label_dp: {eps: 1, categories: 10, response: lp_2st_subset, stage_shares: [3, 2]}"
    ).stages()
    assert stages == LabelStages((SubsetSelection(1.0, 10, 3, unit=Unit.LABEL), PRIOR), (3, 2))


@pytest.mark.parametrize(
    ("fields", "at", "text"),
    [
        ("categories: 10", "label_dp.eps", "missing"),
        ("eps: 0, categories: 10", "label_dp.eps", r"\(0, 100\]"),
        ("eps: 1, categories: 1", "label_dp.categories", r"\[2, 1048576\]"),
        ("eps: 1, categories: 2.0", "label_dp.categories", "an integer"),
        ("eps: 1, categories: 2, response: laplace", "label_dp.response", "kary_response"),
        ("eps: 1, categories: 2, epsilon: 3", "label_dp.epsilon", "not a known field"),
        ("eps: 1, categories: 2, stage_shares: [1, 1]", "label_dp.stage_shares", "only there"),
        ("eps: 1, categories: 2, response: lp_2st", "label_dp.stage_shares", "must be given"),
        (
            "eps: 1, categories: 2, response: lp_2st, stage_shares: [1, 1, 1]",
            "label_dp.stage_shares",
            "two numbers",
        ),
        (
            "eps: 1, categories: 63, response: subset_selection",
            "label_dp.categories",
            r"must be an integer in \[2, 62\]",
        ),
        (
            "eps: 1, categories: 63, response: lp_2st_subset, stage_shares: [1, 1]",
            "label_dp.categories",
            r"must be an integer in \[2, 62\]",
        ),
        (
            "eps: 1, categories: 9, response: subset_selection, loss: plain",
            "label_dp.loss",
            "must be forward or soft for response subset_selection",
        ),
        ("eps: 1, categories: 2, loss: soft", "label_dp.local_prior", "must be given"),
        ("eps: 1, categories: 2, local_prior: {}", "label_dp.local_prior", "left out"),
        (
            "eps: 1, categories: 2, loss: soft, local_prior: {steps: 0}",
            "label_dp.local_prior.steps",
            "an integer in",
        ),
    ],
)
def test_errors_name_their_field(fields: str, at: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_label_config(f"label_dp: {{{fields}}}", source="label_dp.yaml")
    assert "label_dp.yaml" in str(caught.value)
    assert at in str(caught.value)

"""The label_dp section: the sample loads, and what is wrong is named with its place."""

from __future__ import annotations

import pytest

from flower_ldp.config.labels import load_label_config
from flower_ldp.errors import ConfigError
from flower_ldp.labels import LabelStages
from flower_ldp.mechanisms import KaryResponse, RRWithPrior, SubsetSelection
from flower_ldp.privacy import Unit
from tests.fixtures import CONFIGS, parse_label_config

KARY = KaryResponse(1.0, 10, unit=Unit.LABEL)
PRIOR = RRWithPrior(1.0, 10, unit=Unit.LABEL)


SETS = SubsetSelection(1.0, 10, 3, unit=Unit.LABEL)


def test_the_sample() -> None:
    config = load_label_config(CONFIGS / "label_dp.yaml")
    assert config.stages() == LabelStages((KARY, PRIOR), (3, 2))
    assert config.loss == "soft"
    assert config.local_prior is not None
    assert config.local_prior.clusters == 1000


def test_defaults() -> None:
    config = parse_label_config("label_dp: {eps: 1, categories: 10}")
    assert (config.response, config.loss, config.local_prior) == ("kary_response", "forward", None)
    assert config.stages() == LabelStages((KARY,), (1,))


@pytest.mark.parametrize(
    ("response", "stages"),
    [
        ("rr_with_prior", LabelStages((PRIOR,), (1,))),
        ("subset_selection", LabelStages((SETS,), (1,))),
        ("lp_2st_subset, stage_shares: [3, 2]", LabelStages((SETS, PRIOR), (3, 2))),
        ("lp_mst, stage_shares: [1, 1]", LabelStages((KARY, PRIOR), (1, 1))),
        ("lp_mst, stage_shares: [3, 2, 1]", LabelStages((KARY, PRIOR, PRIOR), (3, 2, 1))),
        ("lp_mst_subset, stage_shares: [1, 1, 1]", LabelStages((SETS, PRIOR, PRIOR), (1, 1, 1))),
    ],
)
def test_other_responses(response: str, stages: LabelStages) -> None:
    config = parse_label_config(f"label_dp: {{eps: 1, categories: 10, response: {response}}}")
    assert config.stages() == stages


TWO = "eps: 1, categories: 2"


@pytest.mark.parametrize(
    ("fields", "at", "text"),
    [
        ("categories: 10", "eps", "missing"),
        ("eps: 0, categories: 10", "eps", r"\(0, 100\]"),
        ("eps: 1, categories: 1", "categories", r"\[2, 1048576\]"),
        ("eps: 1, categories: 2.0", "categories", "an integer"),
        (f"{TWO}, response: laplace", "response", "kary_response"),
        (f"{TWO}, epsilon: 3", "epsilon", "not a known field"),
        (f"{TWO}, stage_shares: [1, 1]", "stage_shares", "only there"),
        (f"{TWO}, response: lp_2st", "stage_shares", "must be given"),
        (f"{TWO}, response: lp_mst, stage_shares: [1]", "stage_shares", "at least two"),
        (f"{TWO}, histogram: {{eps: 0.1, groups: 2}}", "histogram", "left out"),
        (
            f"{TWO}, response: lp_2st, stage_shares: [1, 1, 1]",
            "stage_shares",
            "one number for each stage",
        ),
        ("eps: 1, categories: 63, response: subset_selection", "categories", r"in \[2, 62\]"),
        (
            "eps: 1, categories: 63, response: lp_2st_subset, stage_shares: [1, 1]",
            "categories",
            r"must be an integer in \[2, 62\]",
        ),
        (
            "eps: 1, categories: 9, response: subset_selection, loss: plain",
            "loss",
            "must be forward or soft for response subset_selection",
        ),
        (f"{TWO}, loss: soft", "local_prior", "must be given"),
        (f"{TWO}, local_prior: {{}}", "local_prior", "left out"),
        (f"{TWO}, loss: soft, local_prior: {{steps: 0}}", "local_prior.steps", "an integer in"),
    ],
)
def test_errors_name_their_field(fields: str, at: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"label_dp.yaml.*label_dp\.{at}\b.*{text}"):
        parse_label_config(f"label_dp: {{{fields}}}", source="label_dp.yaml")

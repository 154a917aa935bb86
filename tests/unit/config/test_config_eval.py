"""Configuration of protected evaluation: what loads, what it means, what is warned of."""

from __future__ import annotations

import warnings

import pytest

from flower_ldp.config import load_config
from flower_ldp.mechanisms import BoundedMean, Laplace, NoProtectionWarning
from flower_ldp.strategies import FixedStep, LaplaceEvalStrategy, SignDSStrategy
from tests.fixtures import CONFIGS, parse_config
from tests.unit.config.texts import refusal

MINDSPORE = """\
encrypt:
  encrypt_train_type: NOT_ENCRYPT
  privacy_eval_type: LAPLACE
  laplace_eval:
    laplace_eval_eps: 230260
unsupervised:
  cluster_client_num: 1000
  eval_type: CALINSKI_HARABASZ_SCORE
"""


def evaluation(*fields: str) -> str:
    """Return a file whose laplace_eval section holds ``fields``, the first in line 5."""
    head = "encrypt:\n  encrypt_train_type: SIGNDS\n  privacy_eval_type: LAPLACE\n"
    return head + "  laplace_eval:\n" + "".join(f"    {field}\n" for field in fields)


def test_the_published_file_loads_states_its_true_epsilon_and_is_warned_of() -> None:
    with pytest.warns(NoProtectionWarning) as caught:
        config = parse_config(MINDSPORE)
    assert "230,260 is a true epsilon of 460,520 per row and client" in str(caught[0].message)
    assert "protects nothing" in str(caught[0].message)
    assert config.encrypt.privacy_eval_type == "LAPLACE"
    assert config.encrypt.laplace_eval.epsilon == 460_520.0
    assert config.unsupervised.cluster_client_num == 1000
    assert config.unsupervised.eval_type == "CALINSKI_HARABASZ_SCORE"
    with pytest.warns(NoProtectionWarning):
        mechanism = config.encrypt.laplace_eval.mechanism(classes=10)
    assert mechanism.published_epsilon == 230_260.0
    assert mechanism.events()[0].epsilon == 460_520.0


def test_nothing_is_warned_of_where_evaluation_is_not_asked_for() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = parse_config(MINDSPORE.replace("LAPLACE", "NOT_ENCRYPT"))
        assert config.encrypt.privacy_eval_type == "NOT_ENCRYPT"
        bare = parse_config("encrypt:\n  encrypt_train_type: SIGNDS\n")
    assert bare.encrypt.privacy_eval_type is None
    assert bare.encrypt.laplace_eval.laplace_eval_eps == 230_260.0


def test_the_commented_sample_builds_a_strategy() -> None:
    config = load_config(CONFIGS / "laplace_eval.yaml")
    section = config.encrypt.laplace_eval
    assert section.mechanism(classes=10) == Laplace(8.0, 10)
    strategy = LaplaceEvalStrategy(
        SignDSStrategy(config.encrypt.signds.mechanism(), FixedStep(0.1)),
        section.mechanism(classes=10),
        score=config.unsupervised.eval_type,
        metrics=section.metric_mechanisms(),
        cluster_client_num=config.unsupervised.cluster_client_num,
    )
    assert strategy.metrics == {"loss": BoundedMean(1.0, 0.0, 2.3)}
    assert strategy.cluster_client_num == 1000


def test_rows_and_metrics() -> None:
    metrics = "metrics: {accuracy: {epsilon: 0.1, lower: 0, upper: 1}}"
    text = evaluation("laplace_eval_eps: 0.5", "rows: 3", metrics)
    section = parse_config(text).encrypt.laplace_eval
    assert section.mechanism(4) == Laplace(1.0, 4, rows=3)
    assert section.metric_mechanisms() == {"accuracy": BoundedMean(0.1, 0.0, 1.0)}


OUTSIDE = "line 5: encrypt.laplace_eval.laplace_eval_eps must be a"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("laplace_eval_eps: 0", OUTSIDE),
        ("laplace_eval_eps: 500001", OUTSIDE),
        ("laplace_eval_eps: '4'", "not text"),
        ("laplace_eval_eps: .nan", "laplace_eval_eps must be a number"),
        ("rows: 0", "line 5: encrypt.laplace_eval.rows must be an integer"),
        ("rows: 1.5", "rows must be an integer"),
        ("epsilon: 4", "encrypt.laplace_eval.epsilon is not a known field"),
        ("metrics: {loss: 1}", "metrics.loss must be a section of fields"),
        ("metrics: {loss: {epsilon: 1, lower: 0}}", "metrics.loss.upper is missing"),
        ("metrics: {loss: {epsilon: 1, lower: 2, upper: 2}}", "upper must be above lower"),
        ("metrics: {loss: {epsilon: 0, lower: 0, upper: 2}}", "loss.epsilon must be a number"),
        ("metrics: {loss: {epsilon: 1, lower: 0, upper: .inf}}", "loss.upper must be a"),
    ],
)
def test_errors_name_line_and_field(fields: str, expected: str) -> None:
    text = refusal(evaluation(fields))
    assert text.startswith("site.yaml, line")
    assert expected in text


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("LAPLACE", "GAUSS", "privacy_eval_type"),
        ("CALINSKI_HARABASZ_SCORE", "ACCURACY", "unsupervised.eval_type"),
        ("1000", "0", "unsupervised.cluster_client_num"),
    ],
)
def test_unknown_kinds_of_evaluation_are_refused(old: str, new: str, field: str) -> None:
    text = MINDSPORE.replace("230260", "4").replace(old, new)
    assert f"{field} must be" in refusal(text)

"""Histograms of a client's labels: charged once beside its labels, kept, and private per label."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import private_histograms, private_labels
from flower_ldp.errors import RefusalError
from flower_ldp.labels import CentralHistograms
from flower_ldp.privacy import Unit
from tests.fixtures import make_site, parse_label_config

POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
messages:
  train:
    central_histograms: {epsilon: 0.1, unit: label}
    rr_with_prior: {epsilon: 0.9, unit: label}
budgets: {label: {life: {epsilon: 1.0}}}
"""
CONFIG = parse_label_config(
    "label_dp: {eps: 0.9, categories: 3, response: rr_with_prior, histogram: {eps: 0.1, groups: 2}}"
)
LABELS = [0, 1, 2, 2, 1, 0]
GROUPS = [0, 0, 0, 1, 1, 1]


@pytest.fixture
def owner(tmp_path: Path) -> Context:
    return make_site(tmp_path, POLICY)


def histograms(owner: Context, labels: object = LABELS, **more: object) -> np.ndarray:
    mechanism = CONFIG.histograms()
    assert mechanism is not None
    given = {"labels": labels, "groups": GROUPS, "mechanism": mechanism, **more}
    return private_histograms(owner, **given)  # type: ignore[arg-type]


def spent(folder: Path) -> str:
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        ledger.verify()
        found = ledger.totals("ward").get(Unit.LABEL)
        return "0" if found is None else found.epsilon_text


def test_histograms_and_labels_are_one_account(owner: Context, tmp_path: Path) -> None:
    counts = histograms(owner)
    assert counts.shape == (2, 3)
    mechanism = CONFIG.histograms()
    assert mechanism is not None
    priors = mechanism.priors(counts)[GROUPS]
    private_labels(owner, LABELS, mechanism=CONFIG.stages(), prior=priors)
    assert spent(tmp_path) == "1"
    with pytest.raises(RefusalError):  # another name would cost anew
        histograms(owner, name="more")


def test_they_are_drawn_once(owner: Context, tmp_path: Path) -> None:
    first = histograms(owner)
    assert np.array_equal(histograms(owner), first)
    assert spent(tmp_path) == "0.1"
    with pytest.raises(RefusalError, match="repeat"):
        histograms(owner, mechanism=CentralHistograms(0.05, 2, 3))


def test_what_is_no_label_counts_nowhere(owner: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flower_ldp.mechanisms.integer_noise.DiscreteLaplace.sample",
        lambda self, size, rng: np.zeros(size, dtype=np.int64),
    )
    found = histograms(owner, [0, None, 3, float("nan"), 1, 0])
    assert found.tolist() == [[1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 2], [[0]], [0.5] * 6, [0, 1]])
def test_wrong_groups_cost_nothing(groups: list[object], owner: Context, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="groups"):
        histograms(owner, groups=groups)
    assert spent(tmp_path) == "0"


def test_labels_of_another_shape_count_nowhere(
    owner: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flower_ldp.mechanisms.integer_noise.DiscreteLaplace.sample",
        lambda self, size, rng: np.zeros(size, dtype=np.int64),
    )
    assert not histograms(owner, [[label] for label in LABELS]).any()


def test_other_groups_under_the_name_are_refused(owner: Context) -> None:
    histograms(owner)
    with pytest.raises(RefusalError, match="repeat"):
        histograms(owner, groups=[1, 0, 0, 1, 1, 1])


def test_counts_that_no_ledger_takes_cost_nothing(owner: Context, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a ledger takes"):
        histograms(owner, mechanism=CentralHistograms(0.1, 2**26, 3))
    assert spent(tmp_path) == "0"


@pytest.mark.parametrize("odd", [[2], [0, 1], {}, "", np.array([1, 2])])
def test_one_ragged_label_does_not_decide_about_the_others(
    odd: object, owner: Context, tmp_path: Path
) -> None:
    assert histograms(owner, [odd, *LABELS[1:]]).shape == (2, 3)
    assert spent(tmp_path) == "0.1"


def test_labels_that_are_all_lists_are_no_labels(owner: Context, tmp_path: Path) -> None:
    assert histograms(owner, [[label] for label in LABELS]).shape == (2, 3)
    prior = np.full(3, 1 / 3)
    private_labels(owner, [[0]], mechanism=CONFIG.stages(), prior=prior)  # type: ignore[list-item]
    assert spent(tmp_path) == "1"

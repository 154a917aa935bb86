"""The area under the ROC curve, from noisy counts of both classes in bins of the score."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flower_ldp.clients import AccuracyRelease, AUCRelease, LdpMod, Release
from flower_ldp.clients.auc import binned_auc
from flower_ldp.mechanisms import RandomSource
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import DPSGDStrategy
from flower_ldp.training import private_accuracy, private_auc
from tests.extras import extra
from tests.fixtures import record
from tests.unit.training.test_private_accuracy import LIKE, MODEL, Ward, of_patients, raises

BINS = 10


def drawn(rows: int, seed: int) -> list[Any]:
    """Return rows whose score is the sigmoid of their first feature, higher for positives."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, 2, rows)
    features = rng.normal(0, 1, (rows, 2)) + targets[:, None]
    return [
        (torch.tensor(x, dtype=torch.float32), int(y))
        for x, y in zip(features, targets, strict=True)
    ]


ROWS = drawn(60, 1)
TARGETS = np.array([y for _, y in ROWS])
SCORES = np.array([float(torch.sigmoid(x[0])) for x, _ in ROWS])
PLACES = np.floor(SCORES * BINS)


def probability(model: Any, row: Any) -> tuple[Any, Any]:
    return model(row[0]).softmax(dim=-1)[:, 1], row[1]


class Ranked(Ward):
    """A site whose model is ranked."""

    release: Release = AUCRelease(2.0, BINS)

    def __init__(self, folder: Path, data: Any = ROWS, **given: Any) -> None:
        super().__init__(folder, data, **given)
        policy = folder / "policy.yaml"
        policy.write_text(policy.read_text().replace("example_mean", "counts"))

    def evaluate(self, sent: Message, given: Context) -> Message:
        settings = {"like": LIKE, "score": probability, **self.arguments}
        return Message(private_auc(given, nn.Linear(2, 2), self.data, **settings), reply_to=sent)

    def app(self, task: Any = None) -> ClientApp:
        app = ClientApp(mods=[LdpMod(evaluate=self.release)])
        app.evaluate()(task or self.evaluate)
        return app

    def found(self, *given: Any) -> list[float]:
        reply = self.ask(*given)
        assert not reply.has_error(), reply.error
        (metrics,) = reply.content.metric_records.values()
        assert list(metrics) == ["auc", "auc-binning-error", "auc-noise", "num-examples"]
        assert metrics["num-examples"] == 5
        return [float(one) for one in metrics.values()][:3]  # type: ignore[arg-type]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, size, rng: np.zeros(size, np.int64))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("workers", [1, 2])
def test_the_area_is_that_of_the_binned_scores(tmp_path: Path, workers: int) -> None:
    roc_auc_score = extra("sklearn.metrics").roc_auc_score
    area, error, _ = Ranked(tmp_path, arguments={"workers": workers}).found()
    assert area == pytest.approx(roc_auc_score(TARGETS, PLACES), abs=1e-12)
    shares = [np.bincount(PLACES[y == TARGETS].astype(int), minlength=BINS) for y in (0, 1)]
    bound = shares[0] @ shares[1] / shares[0].sum() / shares[1].sum() / 2
    assert error == pytest.approx(bound, abs=1e-12)
    assert 0 < abs(area - roc_auc_score(TARGETS, SCORES)) <= error


@pytest.mark.parametrize("seed", range(20))
def test_binning_moves_the_area_by_no_more_than_its_error(seed: int) -> None:
    roc_auc_score = extra("sklearn.metrics").roc_auc_score
    rng = np.random.default_rng(seed)
    targets, scores = np.arange(30) % 2, rng.random(30)
    cells = np.bincount((targets * 3 + np.floor(scores * 3)).astype(int), minlength=6)
    found = binned_auc(cells, 0.0)
    assert abs(found["auc"] - roc_auc_score(targets, scores)) <= found["auc-binning-error"] + 1e-12
    # Met if all negatives of a bin are below its positives.
    ordered = (np.floor(scores * 3) + targets * 0.5) / 3
    away = roc_auc_score(targets, ordered) - found["auc"]
    assert away == pytest.approx(found["auc-binning-error"], abs=1e-12)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "row", [(torch.zeros(3), 0), (torch.ones(2), 2), (torch.full((2,), torch.nan), 1), None]
)
def test_a_row_that_fails_counts_nowhere(tmp_path: Path, row: Any) -> None:
    roc_auc_score = extra("sklearn.metrics").roc_auc_score
    area = Ranked(tmp_path, [row, *ROWS[1:]]).found()[0]
    assert area == pytest.approx(roc_auc_score(TARGETS[1:], PLACES[1:]), abs=1e-12)


@pytest.mark.usefixtures("silent")
def test_rows_of_a_patient_share_one_weight_over_both_classes(tmp_path: Path) -> None:
    roc_auc_score = extra("sklearn.metrics").roc_auc_score
    groups = [f"p{max(index, 3)}" for index in range(60)]  # the first four rows are of one
    given = of_patients(groups)
    given["arguments"]["max_rows"] = 4
    weights = np.array([0.25] * 4 + [1.0] * 56)
    assert len({TARGETS[0], TARGETS[1], TARGETS[2], TARGETS[3]}) == 2
    area = Ranked(tmp_path, **given).found()[0]
    wanted = roc_auc_score(TARGETS, PLACES, sample_weight=weights)
    assert area == pytest.approx(wanted, abs=1e-12)


@pytest.mark.usefixtures("silent")
def test_a_score_is_clipped_into_the_bins_of_its_own_class(tmp_path: Path) -> None:
    """Negatives at the top and positives at the bottom: the area is 0, and no other."""
    rows = [(torch.tensor([1e9 * (1 - 2 * (index % 2)), 0.0]), index % 2) for index in range(10)]
    settings = {"score": lambda model, row: (row[0][0, 0], row[1])}
    assert Ranked(tmp_path, rows, arguments=settings).found()[:2] == [0.0, 0.0]


@pytest.mark.usefixtures("silent")
def test_equal_scores_of_both_classes_are_a_tie(tmp_path: Path) -> None:
    """In double precision 0.29 times 100 is below 29, and with 100 added it is 129."""
    rows = [(torch.tensor([0.29, 0.0], dtype=torch.float64), index % 2) for index in range(4)]
    like = (torch.zeros(2, dtype=torch.float64), 0)
    settings = {"like": like, "score": lambda model, row: (row[0][0, 0], row[1])}
    ward = Ranked(tmp_path, rows, arguments=settings)
    ward.release = AUCRelease(2.0, 100)
    assert ward.found()[:2] == [0.5, 0.5]


@pytest.mark.usefixtures("silent")
def test_a_patients_few_rows_of_a_class_keep_their_weight(tmp_path: Path) -> None:
    """One of two negatives in a hundred rows is below the positives, and one above."""
    scores = [0.05, 0.55, *[0.35] * 98]
    rows = [(torch.tensor([one, 0.0]), int(index > 1)) for index, one in enumerate(scores)]
    given = of_patients(["ann"] * 100)
    given["arguments"] |= {"max_rows": 100, "score": lambda model, row: (row[0][0, 0], row[1])}
    assert Ranked(tmp_path, rows, **given).found()[:2] == pytest.approx([0.5, 0.0], abs=1e-3)


@pytest.mark.usefixtures("silent")
def test_a_diverged_model_ends_no_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outputs are NaN for the public row too: no row counts."""
    ward = Ranked(tmp_path)
    diverged = {**MODEL, "bias": np.full(2, np.inf, dtype=np.float32)}
    with monkeypatch.context() as patch:
        patch.setattr("tests.unit.training.test_private_accuracy.MODEL", diverged)
        assert ward.found() == [0.5] * 3
    assert not ward.ask("m-2").has_error()


def test_an_epsilon_may_be_a_fraction(tmp_path: Path) -> None:
    ward = Ranked(tmp_path)
    ward.release = AUCRelease(Fraction(1, 3), BINS)
    ward.found()
    assert ward.charged() == ["epsilon 0.333333333334"]


def test_replacing_one_example_moves_no_joint_probability_by_more_than_epsilon() -> None:
    """Of every example of up to three rows, in two bins of two classes or failing."""
    mechanism = AUCRelease(1.5, 2).mechanism
    examples = [
        (np.array(one, dtype=np.int64)[:, None], np.zeros(size, dtype=np.int64))
        for size in range(4)
        for one in itertools.combinations_with_replacement(range(4), size)
    ]
    weights = np.array([mechanism.total(one) for one in examples])
    moved = np.abs(weights[:, None] - weights).sum(axis=2)
    assert moved.max() == mechanism.sensitivity == 2 * mechanism.steps
    told = [mechanism.steps * np.array(one) for one in itertools.product((-1, 0, 2), repeat=4)]
    law = [[mechanism.log_prob(report, one) for report in told] for one in examples]
    assert np.ptp(law, axis=0).max() == pytest.approx(1.5, rel=1e-9)  # met and tight


def test_the_deviation_is_that_of_the_areas() -> None:
    mechanism = AUCRelease(1.0, 20).mechanism
    bins = np.exp(-(((np.arange(20) - np.array([[7.0], [12.0]])) / 4.2) ** 2) / 2)
    counts = np.round(mechanism.steps * 600 * bins / bins.sum(axis=1, keepdims=True)).ravel()
    deviation, rng = mechanism.noise.standard_deviation, RandomSource.seeded(5)
    noisy = counts.astype(np.int64) + mechanism.noise.sample(40 * 2_000, rng).reshape(-1, 40)
    found = [binned_auc(one, deviation) for one in noisy]
    areas = np.array([one["auc"] for one in found])
    stated, exact = binned_auc(counts.astype(np.int64), deviation), areas.std()
    assert exact == pytest.approx(stated["auc-noise"], rel=0.08)
    assert np.mean([one["auc-noise"] for one in found]) == pytest.approx(exact, rel=0.08)
    assert abs(areas.mean() - stated["auc"]) <= 5 * exact / len(areas) ** 0.5
    errors = np.array([one["auc-binning-error"] for one in found])
    assert abs(errors.mean() - stated["auc-binning-error"]) <= 5 * errors.std() / len(errors) ** 0.5


def page() -> str:
    text = (Path(__file__).parents[3] / "docs/dpsgd_release.md").read_text(encoding="utf-8")
    return " ".join(text.split())


def normal_scores(release: AUCRelease, *sizes: int) -> Any:
    """Return the counts of scores whose area is 0.8, in the bins of their sigmoid."""
    norm = extra("scipy.stats").norm
    edges = np.linspace(0.0, 1.0, release.bins + 1)[1:-1]
    logits = np.concatenate([[-np.inf], np.log(edges / (1 - edges)), [np.inf]])
    away = norm.ppf(0.8) / 2**0.5
    shares = [np.diff(norm.cdf(logits + one)) for one in (away, -away)]
    found = np.concatenate([size * one for size, one in zip(sizes, shares, strict=True)])
    return np.round(found * release.mechanism.steps).astype(np.int64)


@pytest.mark.parametrize(("epsilon", "noise"), [(1.0, "0.012"), (0.2, "0.058")])
def test_the_page_has_the_deviation_of_two_normal_scores(epsilon: float, noise: str) -> None:
    release = AUCRelease(epsilon, 20)
    deviation = release.mechanism.noise.standard_deviation
    found = binned_auc(normal_scores(release, 600, 600), deviation)
    assert found["auc"] == pytest.approx(0.8, abs=0.002)
    assert f"{found['auc-noise']:.3f}" == noise
    assert noise in page()
    assert f"the binning error is {found['auc-binning-error']:.3f}." in page()


def test_the_page_has_what_few_patients_of_a_class_do() -> None:
    release = AUCRelease(1.0, 20)
    law, counts = release.mechanism.noise, normal_scores(release, 600, 20)
    noise = law.sample(40 * 4_000, RandomSource.seeded(7)).reshape(-1, 40)
    found = [binned_auc(counts + one, law.standard_deviation) for one in noise]
    area, told = (float(np.mean([one[name] for one in found])) for name in ("auc", "auc-noise"))
    assert f"600 and 20, 0.8 becomes {area:.2f} at ε = 1 on average" in page()
    assert f"the deviation says {told:.1f}." in page()
    errors = np.array([one["auc-binning-error"] for one in found])
    exact = binned_auc(counts, 0.0)["auc-binning-error"]
    assert np.mean(errors < exact) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("counts", [[0, 0, 1, 1], [-3, 1, 1, 1], [5, 5, -1, 0]])
def test_counts_without_a_class_tell_nothing(counts: list[int]) -> None:
    assert set(binned_auc(np.array(counts), 1.0).values()) == {0.5}


@pytest.mark.usefixtures("silent")
def test_an_app_that_fails_as_a_whole_ends_the_evaluations_of_its_run(tmp_path: Path) -> None:
    ward = Ranked(tmp_path, life="50.0")
    before = ward.found()
    assert ward.found("m-2", raises)[0] == 0.5
    assert ward.ask("m-3").error.reason == "ldp:refused:budget"
    assert ward.found("m-1") == before  # at no charge
    assert ward.charged() == ["epsilon 2"] * 2


def test_another_mechanism_of_the_policy_does_not_pay_for_it(tmp_path: Path) -> None:
    ward = Ranked(tmp_path)
    policy = tmp_path / "policy.yaml"
    policy.write_text(policy.read_text().replace("counts", "example_mean"))
    assert ward.ask().error.reason == "ldp:refused:policy"
    assert ward.charged() == []


@pytest.mark.parametrize(
    ("release", "arguments", "text"),
    [
        (AccuracyRelease(2.0), {}, "or AUCRelease()"),
        (AUCRelease(2.0), {"score": lambda model, row: (torch.zeros(3), row[1])}, "public row"),
        (AUCRelease(2.0), {"score": lambda model, row: (0.5, 7)}, "class must be 0 or 1, got 7.0"),
        (AUCRelease(2.0), {"groups": range(60)}, "groups="),
        (AUCRelease(2.0), {"max_rows": 0}, "max_rows"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    release: Release,
    arguments: dict[str, Any],
    text: str,
) -> None:
    kind = Ward if isinstance(release, AccuracyRelease) else Ranked
    ward = kind(tmp_path, ROWS, arguments=arguments, mode="simulation")
    task = None if kind is Ranked else Ranked.evaluate.__get__(ward)
    assert ward.ask("m-1", task).error.reason == "ldp:failed"
    assert text in caplog.text


def test_a_count_of_right_predictions_is_no_ranking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ward = Ranked(tmp_path, mode="simulation")

    def count(sent: Message, given: Context) -> Message:
        return Message(private_accuracy(given, nn.Linear(2, 2), ROWS, like=LIKE), reply_to=sent)

    assert ward.ask("m-1", count).error.reason == "ldp:failed"
    assert "nothing was charged here for this" in caplog.text


@pytest.mark.parametrize(
    ("epsilon", "bins"), [(0.0, 20), (101.0, 20), (1.0, 1), (1.0, 1001), (1.0, 2.5)]
)
def test_numbers_outside_their_intervals_are_refused(epsilon: float, bins: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"epsilon|bins"):
        AUCRelease(epsilon, bins)


def test_the_server_gets_the_mean_area(tmp_path: Path) -> None:
    ward, server, found = Ranked(tmp_path, mode="simulation"), ServerApp(), list[Any]()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = DPSGDStrategy(FedAvg(fraction_train=0.0), accuracy_key="auc")
        found.append(strategy.start(grid, record(MODEL), num_rounds=1))

    node = {"ldp-policy": str(tmp_path / "policy.yaml")}
    run_in_process(server, ward.app(), 2, node_config=node)
    metrics = dict(found[0].evaluate_metrics_clientapp[1])
    assert 0 <= metrics["noised-auc"] <= 1
    assert metrics["accepted"] == 2

"""Linear estimators of scikit-learn, trained through the gate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("scipy")

from scipy.optimize import minimize
from sklearn import linear_model as linear

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import AccuracyRelease, LdpMod
from flower_ldp.mechanisms import ExampleMean
from flower_ldp.training import private_fit, private_score
from tests.fixtures import context, message, record
from tests.unit.training.gated import Site, arrays_of, without_noise

RNG = np.random.default_rng(3)
FEATURES = RNG.uniform(-1, 1, (40, 3))
NUMBERS = FEATURES @ [1.0, -0.5, 0.25] + 0.3 + RNG.normal(0, 0.1, 40)
TWO = np.where(NUMBERS + RNG.normal(0, 0.4, 40) > 0.3, "well", "ill")
THREE = np.digitize(NUMBERS + RNG.normal(0, 0.3, 40), [0.0, 0.6])
#: As long as no gradient is clipped, this is gradient descent.
PLAN = "{rounds: 1, steps: 4, rate: 1.0, noise: 10.0, clip: 1000.0}"


COUNTED = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
examples: 40
messages:
  evaluate:
    example_mean: {epsilon: 2.0, unit: example}
budgets:
  example:
    life: {epsilon: 5.0}
"""


@dataclass
class Fitted:
    """A site whose app fits an estimator."""

    folder: Path
    estimator: Any
    features: Any
    target: Any
    arguments: dict[str, Any]
    plan: str = PLAN
    mode: str = "deployment"
    start: tuple[Any, Any] | None = None

    def sent(self) -> dict[str, NDArray[np.float64]]:
        classes = self.arguments.get("classes")
        outputs = () if classes is None else (1 if len(classes) == 2 else len(classes),)
        start = self.start or (np.zeros((*outputs, 3)), np.zeros(outputs))
        found = dict(zip("01", map(np.asarray, start), strict=True))
        return found if self.estimator.fit_intercept else {"0": found["0"]}

    def site(self) -> Site:
        return Site(
            self.folder, examples=len(self.target), plan=self.plan, task=self.train, mode=self.mode
        )

    def train(self, sent: Message, given: Context) -> Message:
        arguments = {"rate": 0.5, **self.arguments}
        reply = private_fit(given, self.estimator, self.features, self.target, **arguments)
        return Message(reply, reply_to=sent)

    def fit(self) -> Any:
        found = arrays_of(self.site().ask(arrays=self.sent()))
        own = [self.estimator.coef_, self.estimator.intercept_]
        for one, array in zip(own, found.values(), strict=False):
            assert np.array_equal(one, array)
        return self.estimator


def huber(features: Any, target: Any, estimator: Any, scale: float) -> NDArray[np.float64]:
    """Return coefficients and intercept of Huber's regression at a fixed scale."""

    def objective(found: NDArray[np.float64]) -> float:
        away = np.abs(features @ found[:-1] + found[-1] - target) / scale
        width = estimator.epsilon
        each = np.where(away <= width, away**2, 2 * width * away - width**2)
        return float(scale * each.sum() + estimator.alpha * (found[:-1] ** 2).sum())

    return np.asarray(minimize(objective, np.zeros(4), tol=1e-12).x)


@pytest.mark.parametrize(
    ("estimator", "target", "classes"),
    [
        (linear.LogisticRegression(C=2.0, tol=1e-8), TWO, ["ill", "well"]),
        (linear.LogisticRegression(C=0.5, tol=1e-8, fit_intercept=False), TWO, ["ill", "well"]),
        (linear.LogisticRegression(tol=1e-8), THREE, [0, 1, 2]),
        (linear.Ridge(alpha=3.0), NUMBERS, None),
        (linear.Ridge(alpha=0.1, fit_intercept=False), NUMBERS, None),
    ],
)
def test_without_noise_a_fit_stays_where_scikit_learns_is_and_goes_there(
    estimator: Any, target: Any, classes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    arguments = {} if classes is None else {"classes": classes}
    wanted = type(estimator)(**estimator.get_params()).fit(FEATURES, target)
    start = (np.copy(wanted.coef_), np.copy(wanted.intercept_))
    found = []
    for place, first in (("there", start), ("away", None)):
        (tmp_path / place).mkdir()
        fitted = Fitted(tmp_path / place, estimator, FEATURES, target, arguments, start=first)
        found.append(np.append(fitted.fit().coef_.ravel(), np.copy(estimator.intercept_)))
        assert estimator.coef_.shape == wanted.coef_.shape
    best = np.append(start[0].ravel(), start[1])
    assert found[0] == pytest.approx(best, abs=1e-5)
    assert np.linalg.norm(found[1] - best) < 0.9 * np.linalg.norm(best)
    estimator.coef_, estimator.intercept_ = start
    assert estimator.predict(FEATURES).tolist() == wanted.predict(FEATURES).tolist()


def test_without_noise_hubers_regression_is_its_minimum_at_the_public_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    far = NUMBERS.copy()
    far[:4] += 30
    estimator = linear.HuberRegressor(epsilon=1.1, alpha=0.5)
    best = huber(FEATURES, far, estimator, 0.2)
    arguments = {"scale": 0.2}
    found = Fitted(tmp_path, estimator, FEATURES, far, arguments, start=(best[:-1], best[-1])).fit()
    assert [*found.coef_, found.intercept_] == pytest.approx(best.tolist(), abs=1e-5)
    assert found.predict(FEATURES) == pytest.approx(FEATURES @ best[:-1] + best[-1], abs=1e-3)


def test_rows_that_are_none_count_as_zero_and_the_others_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    few = PLAN
    rows: Any = FEATURES.astype(object)
    rows[2, 0], rows[3, 1] = "unknown", None
    target: Any = TWO.astype(object)
    target[7] = "neither"
    kept = np.delete(np.arange(40), [2, 3, 7])
    arguments = {"classes": ["ill", "well"]}
    for folder in ("odd", "none"):
        (tmp_path / folder).mkdir()
    odd = Fitted(tmp_path / "odd", linear.LogisticRegression(), rows, target, arguments, few)
    left = [*kept, *[0] * 3]  # rows of the second site that hold nothing, in their place
    none: Any = FEATURES[left].astype(object)
    none[37:] = "nothing"
    other = Fitted(tmp_path / "none", linear.LogisticRegression(), none, TWO[left], arguments, few)
    assert odd.fit().coef_ == pytest.approx(other.fit().coef_, rel=1e-12)


def test_an_odd_row_of_a_list_changes_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one array, a label of text makes all labels text, and a short row no array at all."""
    without_noise(monkeypatch)
    rows: list[Any] = FEATURES.tolist()
    labels: list[Any] = (TWO == "well").astype(int).tolist()
    found = []
    for folder, row, label in (("odd", rows[2][:1], "neither"), ("none", None, None)):
        (tmp_path / folder).mkdir()
        rows[2], labels[7] = row, label
        fitted = Fitted(
            tmp_path / folder, linear.LogisticRegression(), rows, labels, ZERO_ONE, PLAN
        )
        found.append(fitted.fit().coef_)
    assert np.array_equal(*found)
    assert found[0].all()  # the others count


ZERO_ONE = {"classes": [0, 1]}


@dataclass
class Frame:
    """Has ``to_numpy``, as data frames do."""

    table: Any

    def to_numpy(self) -> Any:
        return np.asarray(self.table)

    def __len__(self) -> int:
        return len(self.table)


@pytest.mark.parametrize(
    ("features", "target", "classes"),
    [
        (FEATURES.tolist(), (TWO == "well").tolist(), [False, True]),
        (FEATURES, (TWO == "well").astype(float), [0, 1]),
        (Frame(FEATURES), Frame(TWO), ["ill", "well"]),
        (list(FEATURES), tuple(TWO), ["ill", "well"]),
    ],
)
def test_two_classes_may_be_booleans_numbers_or_text(
    features: Any, target: Any, classes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    found = []
    for folder, one in (("given", (features, target, classes)), ("text", (FEATURES, TWO, None))):
        (tmp_path / folder).mkdir()
        given = {"classes": one[2] or ["ill", "well"]}
        estimator = linear.LogisticRegression()
        found.append(Fitted(tmp_path / folder, estimator, *one[:2], given, PLAN).fit().coef_)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    ("features", "target", "text"),
    [
        ([{"a": 1.0, "b": 0.0, "c": 0.5}] * 40, NUMBERS, "[row[name] for name in COLUMNS]"),
        (FEATURES, NUMBERS[:, None], "several outputs take private_training"),
        (FEATURES, np.stack([NUMBERS, NUMBERS], 1), "several outputs take private_training"),
    ],
)
def test_rows_that_an_estimator_cannot_take_are_told_what_can(
    features: Any, target: Any, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Fitted(tmp_path, linear.Ridge(), features, target, {}).fit()
    assert text in caplog.text


def test_a_target_is_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Fitted(tmp_path, linear.Ridge(), FEATURES, NUMBERS, {}, mode="simulation")
    found = site.site()
    site.target = None
    assert found.ask(arrays=site.sent()).has_error()
    assert "target must be given: rows without one take private_training" in caplog.text


@pytest.mark.parametrize("number", [0, 1])
def test_a_site_of_one_row_or_without_a_class_is_trained(number: int, tmp_path: Path) -> None:
    rows = np.flatnonzero(TWO == "ill")[: 1 if number else None]
    plan = "{rounds: 1, steps: 2, rate: 1.0, noise: 10.0}"
    estimator = linear.LogisticRegression()
    arguments = {"classes": ["ill", "well"]}
    found = Fitted(tmp_path, estimator, FEATURES[rows], TWO[rows], arguments, plan).fit()
    assert np.isfinite(found.coef_).all()
    assert set(found.predict(FEATURES)) <= {"ill", "well"}
    assert found.predict_proba(FEATURES).shape == (40, 2)


BOTH = {"classes": ["ill", "well"]}


@pytest.mark.parametrize(
    ("estimator", "arguments", "text"),
    [
        (linear.SGDClassifier(), {}, r"SGDClassifier .* take LogisticRegression\(\)"),
        (linear.Lasso(), {}, "Lasso .* take LogisticRegression, Ridge or HuberRegressor"),
        (linear.LogisticRegression(), {}, "classes must be two or more"),
        (linear.LogisticRegression(), {"classes": ["well", "ill"]}, "ascending"),
        (linear.LogisticRegression(l1_ratio=0.5), BOTH, "only L2"),
        (linear.LogisticRegression(class_weight="balanced"), BOTH, "only L2"),
        (linear.LogisticRegression(penalty="l1"), BOTH, "only L2"),
        (linear.LogisticRegression(penalty=None), BOTH, "C=numpy.inf has no penalty"),
        (linear.LogisticRegression(C=0), BOTH, r"C must be in \(0, inf\], got 0"),
        (linear.LogisticRegressionCV(), BOTH, "not trained by DP-SGD here"),
        (linear.Ridge(alpha=-1.0), {}, "alpha must be in"),
        (linear.Ridge(), BOTH, "classes belong to LogisticRegression"),
        (linear.Ridge(positive=True), {}, "positive must be False"),
        (linear.Ridge(), {"rate": 0.0}, "rate must be"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    estimator: Any, arguments: dict[str, Any], text: str, tmp_path: Path
) -> None:
    fitted = Fitted(tmp_path, estimator, FEATURES, NUMBERS, arguments, mode="simulation")
    said: list[str] = []

    def train(sent: Message, given: Context) -> Message:
        with pytest.raises((TypeError, ValueError), match=text) as caught:
            fitted.train(sent, given)
        said.append(str(caught.value))
        raise caught.value

    site = fitted.site()
    site.task = train
    assert site.ask(arrays={"0": np.zeros(3), "1": np.zeros(())}).has_error()
    assert said


def test_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    fitted = Fitted(tmp_path, linear.Ridge(), FEATURES, NUMBERS, {}, mode="simulation")
    fitted.sent = lambda: {"0": np.zeros((1, 3)), "1": np.zeros(1)}  # type: ignore[method-assign]
    assert fitted.site().ask(arrays=fitted.sent()).error.reason == "ldp:failed"


@pytest.mark.parametrize(
    ("estimator", "target", "classes"),
    [
        (linear.LogisticRegression(), TWO, ["ill", "well"]),
        (linear.LogisticRegression(), THREE, [0, 1, 2]),
        (linear.Ridge(), NUMBERS, None),
    ],
)
def test_the_score_of_what_was_sent_is_scikit_learns(
    estimator: Any, target: Any, classes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExampleMean, "noised", lambda self, total, rng: total)
    (tmp_path / "policy.yaml").write_text(COUNTED)
    Ledger.open(tmp_path / "ledger.sqlite", create=True).close()
    estimator.fit(FEATURES, target)
    more: dict[str, Any] = {"worst": 0.5} if classes is None else {"classes": classes}
    app = ClientApp(mods=[LdpMod(evaluate=AccuracyRelease(2.0))])

    @app.evaluate()
    def evaluate(sent: Message, given: Context) -> Message:
        fresh = type(estimator)()
        return Message(private_score(given, fresh, FEATURES, target, **more), reply_to=sent)

    sent = {"coef": estimator.coef_, "intercept": np.asarray(estimator.intercept_)}
    asked = message(RecordDict({"arrays": record(sent)}), kind="evaluate")
    own = context()
    own.node_config["ldp-policy"] = str(tmp_path / "policy.yaml")
    reply = app(asked, own)
    assert not reply.has_error(), reply.error
    share = float(reply.content.metric_records["metrics"]["accuracy"])  # type: ignore[arg-type]
    if classes is None:
        errors = np.minimum(np.abs(estimator.predict(FEATURES) - target), 0.5)
        assert 0.5 * (1 - share) == pytest.approx(errors.mean(), abs=1e-3)
    else:
        assert share == pytest.approx(estimator.score(FEATURES, target))

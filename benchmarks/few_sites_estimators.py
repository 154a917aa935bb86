"""Estimators of scikit-learn at five sites, by DP-SGD per patient, beside a fit without privacy.

``diabetes``  353 patients with a continuous target, five sites of about 70: Ridge and Huber
``cancer``    455 patients of two classes, five sites of 91: LogisticRegression
``wine``      142 bottles of three classes, five sites of about 28: LogisticRegression

A fifth of all rows is held out. Columns are centred and scaled by typical values from textbooks,
which are public; a scaler fitted on patients would be a release. ``private_fit`` trains through
gate, plan and ledger under Flower's FedAvg, at a delta of 1e-5 for one patient replaced. Beside it
stand scikit-learn's own fit of all training rows together, and a constant. Step sizes were chosen
on a tenth of the training rows of 60 other splits, by noisy steps in numpy alone.
``--evaluate-on validation`` does the same through the gate.

    python benchmarks/few_sites_estimators.py
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

import _options as options
import numpy as np
import typer
from _in_process import last_model, trained
from _runs import Run, Runs, groups, like
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import HuberRegressor, LogisticRegression, Ridge

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.privacy import Unit
from flower_ldp.strategies import DPSGDStrategy
from flower_ldp.training import private_fit

SITES, ROUNDS = 5, 10
POLICY = """\
data_id: ward
ledger: ledger.sqlite
mode: simulation
examples: {examples}
messages:
  train:
    dpsgd:
      epsilon: {epsilon!r}
      delta: 1.0e-5
      unit: example
      plan: {{rounds: 10, steps: 1, rate: 1.0, noise: {noise!r}}}
budgets: {{example: {{life: {{epsilon: {epsilon!r}, delta: 1.0e-5}}}}}}
"""
#: Centres and scales: age, sex, body mass, pressure, six of blood (mg/dl, ratios, logarithms).
BLOOD = ((50, 1.5, 27, 95, 190, 115, 50, 4, 4.6, 90), (15, 0.5, 5, 15, 35, 30, 13, 1.5, 0.5, 12))
#: A typical cell of ten measures: mean, error and worst of each.
CELL = (
    *(14, 19, 92, 655, 0.1, 0.1, 0.09, 0.05, 0.2, 0.06),
    *(0.4, 1.2, 2.9, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004),
    *(16, 26, 107, 881, 0.13, 0.25, 0.27, 0.11, 0.29, 0.08),
)
BOTTLE = (
    (13, 2.3, 2.4, 20, 100, 2.3, 2, 0.36, 1.6, 5, 0.96, 2.6, 750),
    (0.8, 1.1, 0.3, 3.3, 14, 0.6, 1, 0.12, 0.6, 2.3, 0.23, 0.7, 310),
)
#: Of Huber's residuals: about 50 on that score.
SCALE = 0.3
#: Bounds of the score that diabetes is measured by, which its authors state.
PROGRESSION = (25.0, 346.0)


@dataclass(frozen=True)
class Row:
    """A data set, an estimator, an epsilon, and the step's size."""

    data: str
    estimator: str
    epsilon: float
    rate: float


ROWS = [
    *(Row("diabetes", "Ridge", *pair) for pair in ((1.0, 0.1), (2.0, 0.2), (4.0, 0.3))),
    *(Row("diabetes", "HuberRegressor", *pair) for pair in ((2.0, 0.2), (4.0, 0.3))),
    *(Row("cancer", "LogisticRegression", *pair) for pair in ((1.0, 2.0), (2.0, 2.0), (4.0, 8.0))),
    *(Row("wine", "LogisticRegression", *pair) for pair in ((2.0, 0.5), (4.0, 1.0), (8.0, 2.0))),
]


def loaded(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features in about [-2, 2], and the target."""
    if name == "diabetes":
        features, target = load_diabetes(return_X_y=True, scaled=False)
        centre, scale, (low, high) = *map(np.array, BLOOD), PROGRESSION
        target = 2 * (np.clip(target, low, high) - low) / (high - low) - 1
    elif name == "cancer":
        features, target = load_breast_cancer(return_X_y=True)
        centre = np.array(CELL)
        scale = centre / 2
    else:
        features, target = load_wine(return_X_y=True)
        centre, scale = map(np.array, BOTTLE)
    return np.clip((features - centre) / scale, -2, 2), target


def new_estimator(row: Row) -> Any:
    """Return the estimator of a row."""
    if row.estimator == "HuberRegressor":
        return HuberRegressor(alpha=1.0)
    return {"Ridge": Ridge, "LogisticRegression": LogisticRegression}[row.estimator]()


def app_of(row: Row, shares: list[tuple[Any, Any]], classes: list[int] | None) -> ClientApp:
    """Return a site behind its gate."""
    app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        share = shares[int(context.node_config["partition-id"])]
        reply = private_fit(
            context, new_estimator(row), *share, rate=row.rate, classes=classes, scale=SCALE
        )
        return Message(reply, reply_to=message)

    return app


def measured(row: Row, seed: int, evaluate_on: str) -> Run:
    """Train once; return the scores: R2, or the share of right predictions."""
    features, target = loaded(row.data)
    order = np.random.default_rng(seed).permutation(len(target))
    held, rest = np.split(order, [len(order) // 5])
    if evaluate_on == "validation":
        held, rest = np.split(rest, [len(rest) // 10])
    shares = [(features[part], target[part]) for part in np.array_split(rest, SITES)]
    classes = None if row.data == "diabetes" else sorted(set(target.tolist()))
    outputs = () if classes is None else (1 if len(classes) == 2 else len(classes),)
    first = {"coef": np.zeros((*outputs, features.shape[1])), "intercept": np.zeros(outputs)}
    noise = noise_multiplier(row.epsilon, 1e-5, sample_rate=1.0, steps=ROUNDS)
    numbers = {"epsilon": row.epsilon, "noise": round(noise * 1.0001, 4)}
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=SITES, min_available_nodes=SITES)
    result, spent = trained(
        DPSGDStrategy(strategy),
        app_of(row, shares, classes),
        ArrayRecord({name: Array(array) for name, array in first.items()}),
        ROUNDS,
        SITES,
        policy=POLICY.format(**numbers, examples=min(len(share[1]) for share in shares)),
        unit=Unit.EXAMPLE,
    )
    found = new_estimator(row).fit(features[rest], target[rest])
    without = found.score(features[held], target[held])
    found.coef_, found.intercept_ = (array.numpy() for array in last_model(result).values())
    dummy = DummyRegressor() if classes is None else DummyClassifier()
    return {
        "score": found.score(features[held], target[held]),
        "without_privacy": without,
        "constant": dummy.fit(features[rest], target[rest]).score(features[held], target[held]),
        "epsilon_patient_most": max(one.epsilon for one in spent),
        "rows": len(rest),
    }


def summary(runs: list[Run], evaluate_on: str) -> list[Run]:
    """Return mean and spread of each row's runs."""
    found = []
    for same in groups(like(runs, evaluated_on=evaluate_on), lambda run: run["row"]):
        row: Run = {**same[0]["row"], "evaluated_on": evaluate_on, "seeds": len(same)}
        for name in ("score", "without_privacy", "constant"):
            values = np.array([run[name] for run in same])
            row[name] = round(float(values.mean()), 4)
            row[f"{name}_standard_deviation"] = round(float(values.std(ddof=1)), 4)
        found.append(row)
    return found


def main(
    seeds: options.Seeds = 5,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    output: options.Output = options.RESULTS / "few_sites_estimators.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    runs = Runs(output, lambda made: summary(made, evaluate_on))
    for seed, one in itertools.product(range(1, seeds + 1), ROWS):
        row = options.changed(one, changes)
        wanted: Run = {"row": vars(row), "seed": seed, "evaluated_on": evaluate_on}
        runs.make(wanted, partial(measured, row, seed, evaluate_on))
    runs.show()


if __name__ == "__main__":
    typer.run(main)

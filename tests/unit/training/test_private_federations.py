"""Sites of each kind of row and target, of one row and without a class, under DPSGDStrategy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("scipy")

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn import linear_model as linear

from flower_ldp.clients import AccuracyRelease, DPSGDRelease, LdpMod
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import DPSGDStrategy
from flower_ldp.training import private_fit, private_score, private_training
from tests.fixtures import record
from tests.unit.training.gated import Site, descent, state_of, without_noise
from tests.unit.training.test_estimators import FEATURES, NUMBERS, TWO
from tests.unit.training.test_row_losses import TARGETS

ROUNDS = 2
#: Rows of three sites; the last has one row, and lacks all classes but one.
SHARES: tuple[Callable[[Any], Any], ...] = (lambda r: r, lambda r: r[::3], lambda r: r[:1])
Task = Callable[[Message, Context], Message]


#: Without noise a model moves only if rows count.
_silent = pytest.fixture(autouse=True)(without_noise)


def run(
    folder: Path, arrays: Any, train: Task, evaluate: Task | None = None, **settings: Any
) -> Any:
    """Return the result of all rounds."""
    site = Site(folder, mode="simulation")
    if evaluate is not None:
        policy = folder / "policy.yaml"
        allowed = "messages:\n  evaluate: {example_mean: {epsilon: 8.0, unit: example}}"
        policy.write_text(policy.read_text().replace("messages:", allowed))
    server, found = ServerApp(), []
    app = ClientApp(mods=[LdpMod(train=DPSGDRelease(), evaluate=AccuracyRelease(epsilon=8.0))])
    app.train()(train)
    if evaluate is not None:
        app.evaluate()(evaluate)

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        inner = FedAvg(fraction_evaluate=0.0 if evaluate is None else 1.0)
        strategy = DPSGDStrategy(inner, **settings)
        found.append(strategy.start(grid, record(arrays), num_rounds=ROUNDS))

    run_in_process(
        server, app, len(SHARES), node_config={"ldp-policy": str(site.folder / "policy.yaml")}
    )
    for metrics in found[0].train_metrics_clientapp.values():
        assert (metrics["accepted"], metrics["rejected"]) == (3, 0)
    for name, array in found[0].arrays.items():
        assert np.isfinite(array.numpy()).all(), name
        assert (array.numpy() != arrays[name]).any(), name
    return found[0]


def own(rows: Any, context: Context) -> Any:
    return SHARES[int(context.node_config["partition-id"])](rows)


@pytest.mark.parametrize("name", [name for name, (*_, rows) in TARGETS.items() if rows])
def test_rows_and_targets_of_each_kind_train(name: str, tmp_path: Path) -> None:
    make, loss, like, rows = TARGETS[name]

    def train(sent: Message, context: Context) -> Message:
        mine = own(rows, context)
        reply = private_training(context, make(), mine, loss, optimizer=descent, like=like)
        return Message(reply, reply_to=sent)

    run(tmp_path, state_of(make()), train)


@pytest.mark.parametrize(
    ("estimator", "target", "more", "shape"),
    [
        (linear.LogisticRegression, TWO, {"classes": ["ill", "well"]}, (1,)),
        (linear.Ridge, NUMBERS, {}, ()),
        (linear.HuberRegressor, NUMBERS, {}, ()),
    ],
)
def test_estimators_train_and_are_scored(
    estimator: Any, target: Any, more: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    """A continuous target has a public bound of its error, in whose units the score is."""
    worst = {} if more else {"worst": 3.0}

    def train(sent: Message, context: Context) -> Message:
        given = own(FEATURES, context), own(target, context)
        return Message(private_fit(context, estimator(), *given, rate=0.1, **more), reply_to=sent)

    def evaluate(sent: Message, context: Context) -> Message:
        given = own(FEATURES, context), own(target, context)
        reply = private_score(context, estimator(), *given, **more, **worst)
        return Message(reply, reply_to=sent)

    arrays = {"coef": np.zeros((*shape, 3)), "intercept": np.zeros(shape)}
    result = run(tmp_path, arrays, train, evaluate, **worst, **({"best": 0.0} if worst else {}))
    for metrics in result.evaluate_metrics_clientapp.values():
        assert metrics["accepted"] == 3
        assert "noised-accuracy" in metrics

"""Kinds of app behind the gate: whatever holds its weights in arrays trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from flower_ldp.clients import legacy_client_mod
from flower_ldp.mechanisms import SignDS
from flower_ldp.simulation import load_folder, run_in_process
from flower_ldp.strategies import RunStopped, SignDSStrategy
from tests.unit.combines.world import (
    Arrays,
    app_of,
    first_error,
    gate,
    has_moved,
    one_step,
    run,
    told,
)

BASELINE = Path(__file__).resolve().parents[3] / "examples" / "signdsfl"

pytestmark = [
    pytest.mark.usefixtures("simulation_policy"),
    pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.signds.SmallTopSetWarning"),
]


def test_the_page_has_a_row_for_each_kind() -> None:
    assert told("Kinds of app") == {
        "torch": "works",
        "scikit-learn": "works",
        "JAX": "works",
        "NumPyClient": "works",
        "XGBoost": "not protected",
        "SplitStrategy": "works",
    }


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40, 10)).astype(np.float32)
    return rows, np.arange(40) % 6


def test_torch() -> None:
    torch = pytest.importorskip("torch")
    rows, labels = data()

    def train(model: Arrays, _: Message) -> Arrays:
        layer = torch.nn.Linear(10, 6)
        layer.load_state_dict({name: torch.tensor(array) for name, array in model.items()})
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)
        loss = torch.nn.functional.cross_entropy(layer(torch.tensor(rows)), torch.tensor(labels))
        loss.backward()
        optimizer.step()
        return {name: array.numpy() for name, array in layer.state_dict().items()}

    model = {"weight": np.zeros((6, 10), np.float32), "bias": np.zeros(6, np.float32)}
    assert has_moved(run(SignDSStrategy(SignDS(8.0)), app_of(train, [gate()]), model), model)


def test_scikit_learn() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rows, labels = data()

    rows = rows.astype(np.float64)  # the weights take the data's dtype, and must keep the model's

    def train(model: Arrays, _: Message) -> Arrays:
        found = linear.SGDClassifier(loss="log_loss", max_iter=1, tol=None)
        found.fit(rows, labels, coef_init=model["coef"], intercept_init=model["intercept"])
        return {"coef": found.coef_, "intercept": found.intercept_}

    model = {"coef": np.zeros((6, 10)), "intercept": np.zeros(6)}
    assert has_moved(run(SignDSStrategy(SignDS(8.0)), app_of(train, [gate()]), model), model)


def test_the_baseline_runs_by_each_of_its_rules(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    small = {"model": "logistic", "num-server-rounds": 1, "local-epochs": 1}
    for rule, magnitude in (("ours", 1.0), ("published", 1.0), ("published", 0.0)):
        settings = {**small, "rule": rule, "magnitude-epsilon": magnitude}
        app = load_folder(BASELINE, {**settings, "output-dir": str(tmp_path)})
        run_in_process(app.server, app.client, 2, run_config=app.run_config)
        history = json.loads((tmp_path / "history.json").read_text(encoding="utf-8"))
        assert history["config"]["rule"] == rule
        before, after = history["rounds"]
        assert (before["round"], after["round"], after["accepted"]) == (0, 1, 2)
        assert after["epsilon-total"] == 100.0 + magnitude
    app = load_folder(BASELINE, {**small, "rule": "mine", "output-dir": str(tmp_path)})
    with pytest.raises(ValueError, match="rule must be"):
        run_in_process(app.server, app.client, 2, run_config=app.run_config)


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    rows, labels = data()

    def loss(model: dict[str, Any]) -> Any:
        scores = jax.nn.log_softmax(rows @ model["w"] + model["b"])
        return -scores[np.arange(40), labels].mean()

    def train(model: Arrays, _: Message) -> Arrays:
        slopes = jax.grad(loss)(model)
        return {name: np.asarray(array - 0.5 * slopes[name]) for name, array in model.items()}

    assert has_moved(run(SignDSStrategy(SignDS(8.0)), app_of(train, [gate()])))


class Quickstart(NumPyClient):
    """A client as Flower's old quickstart wrote it."""

    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, Any]:
        return [array + np.float32(0.5) for array in parameters], 7, {"loss": 0.5}


def old_app(*behind: Any) -> ClientApp:
    return ClientApp(client_fn=lambda _: Quickstart().to_client(), mods=[gate(), *behind])


def test_numpy_client_with_the_mod_for_it() -> None:
    assert has_moved(run(SignDSStrategy(SignDS(8.0)), old_app(legacy_client_mod)))


def test_numpy_client_without_the_mod_is_told_in_words(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RunStopped, match="ldp:failed 3 times"):
        run(SignDSStrategy(SignDS(8.0)), old_app())
    assert "needs legacy_client_mod of flower_ldp.clients behind LdpMod" in first_error(caplog)


def trees() -> Arrays:
    """A model as Flower's XGBoost apps send it: the booster's bytes in one array."""
    try:
        import xgboost
    except ModuleNotFoundError:  # what is refused is the array, whatever its bytes
        return {"0": np.frombuffer(b"{}" * 30, np.uint8)}
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(*data()), num_boost_round=2)
    return {"0": np.frombuffer(booster.save_raw("json"), np.uint8)}


def test_trees_are_refused_by_the_strategy_before_anybody_is_asked() -> None:
    called: list[Message] = []
    with pytest.raises(ValueError, match=r"'0': 'uint8'.*trees \(XGBoost\) have none: train a"):
        run(SignDSStrategy(SignDS(8.0)), app_of(one_step, [gate()], called), trees())
    assert called == []

"""Flower's strategies: each is refused where reports are asked of nobody, and has its like here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.clients import RELEASES, LdpMod
from flower_ldp.mechanisms import Codeword, Gaussian, SignDS
from flower_ldp.refusals import NO_PROPOSAL
from flower_ldp.strategies import (
    Adagrad,
    Adam,
    CodewordStrategy,
    FixedStep,
    GaussianStrategy,
    Momentum,
    SignDSStrategy,
    Yogi,
)
from flower_ldp.strategies.training import TrainingStrategy
from tests.unit.combines.world import MODEL, app_of, gate, has_moved, one_step, run, told

pytestmark = [
    pytest.mark.usefixtures("simulation_policy"),
    pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.signds.SmallTopSetWarning"),
]

#: Of Flower's, what is needed to make each; the wrappers wrap a strategy.
MADE: dict[str, dict[str, Any]] = {
    "FedProx": {"proximal_mu": 0.1},
    "QFedAvg": {"client_learning_rate": 0.1},
    **{name: {"num_malicious_nodes": 0} for name in ("Krum", "MultiKrum", "Bulyan")},
}
FIXED = {"noise_multiplier": 1.0, "num_sampled_clients": 3}
WRAPPERS: dict[str, dict[str, float]] = {
    "DifferentialPrivacyServerSideFixedClipping": {**FIXED, "clipping_norm": 1.0},
    "DifferentialPrivacyClientSideFixedClipping": {**FIXED, "clipping_norm": 1.0},
    "DifferentialPrivacyServerSideAdaptiveClipping": {**FIXED, "clipped_count_stddev": 1.0},
    "DifferentialPrivacyClientSideAdaptiveClipping": {**FIXED, "clipped_count_stddev": 1.0},
}
ALL = sorted(set(flower.__all__) - {"Result", "Strategy"})
ROUND = {"min_train_nodes": 3, "min_available_nodes": 3}


def made(name: str, inner: Strategy | None = None) -> Strategy:
    if name in WRAPPERS:
        wrapped = FedAvg(fraction_evaluate=0.0, **ROUND) if inner is None else inner
        wrapper: Strategy = getattr(flower, name)(wrapped, **WRAPPERS[name])
        return wrapper
    given = {} if name == "FedXgbCyclic" else ROUND
    strategy: Strategy = getattr(flower, name)(fraction_evaluate=0.0, **given, **MADE.get(name, {}))
    return strategy


def test_the_page_has_a_row_for_each_of_flowers_strategies() -> None:
    assert sorted(told("Flower's strategies")) == ALL


@pytest.mark.parametrize("name", ALL)
def test_without_a_proposal_it_is_refused_and_the_server_is_told_what_to_run(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[Message] = []
    model = {"0": np.zeros(9, np.uint8)} if "Xgb" in name else MODEL
    caplog.set_level("INFO", logger="flwr")
    result = run(made(name), app_of(one_step, [gate()], called), model)
    assert not result.arrays
    assert called == []
    assert NO_PROPOSAL in caplog.text
    assert told("Flower's strategies")[name] == "refused"


#: What the page says to run in its place.
SIGNDS, GAUSSIAN = SignDS(8.0), Gaussian(8.0, 1e-6)
INSTEAD: dict[str, Callable[[], TrainingStrategy[Any]]] = {
    "FedAvg": lambda: GaussianStrategy(GAUSSIAN, **ROUND),
    "SignDSStrategy": lambda: SignDSStrategy(SIGNDS, **ROUND),
    "CodewordStrategy": lambda: CodewordStrategy(Codeword(8.0), **ROUND),
    "FedAvgM": lambda: SignDSStrategy(SIGNDS, FixedStep(0.1), server_optimizer=Momentum()),
    "FedAdam": lambda: SignDSStrategy(SIGNDS, FixedStep(0.1), server_optimizer=Adam()),
    "FedYogi": lambda: CodewordStrategy(Codeword(8.0), Yogi()),
    "FedAdagrad": lambda: GaussianStrategy(GAUSSIAN, server_optimizer=Adagrad()),
}


@pytest.mark.parametrize("name", INSTEAD)
def test_what_to_run_in_its_place_works(name: str) -> None:
    result = run(INSTEAD[name](), app_of(one_step, [LdpMod(train=RELEASES["train"])]))
    assert has_moved(result)
    assert result.train_metrics_clientapp[1]["accepted"] == 3


def test_the_proximal_term_of_fedprox_is_the_apps_and_reaches_it() -> None:
    seen: list[Message] = []
    result = run(
        SignDSStrategy(SignDS(8.0)), app_of(one_step, [gate()], seen), config={"proximal-mu": 0.1}
    )
    assert has_moved(result)
    assert [one.content["config"]["proximal-mu"] for one in seen] == [0.1] * 3  # type: ignore[index]


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["SignDSStrategy", "CodewordStrategy", "FedAvg"])
def test_a_central_wrapper_around_a_strategy_of_reports_is_refused(wrapper: str, name: str) -> None:
    called: list[Message] = []
    inner = INSTEAD[name]()
    with pytest.raises(TypeError, match=rf"{wrapper} around {type(inner).__name__} clips nothing"):
        run(made(wrapper, inner), app_of(one_step, [gate()], called))
    assert called == []

"""Wherever a run is called hopeless, the route that fits follows, with its two lines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

import flower_ldp
from flower_ldp.advice import UtilityForecast, advise
from flower_ldp.clients import CodewordRelease, DPSGDRelease, LdpMod
from flower_ldp.clients.dpsgd_charging import log_outlook
from flower_ldp.clients.permit import GrantedRound
from flower_ldp.mechanisms import Codeword, TrainingPlan
from flower_ldp.strategies import CodewordStrategy, DPSGDStrategy
from flower_ldp.strategies.forecast import SignalMonitor
from flower_ldp.wire.training_plan import plan_fields
from tests.cli import facts
from tests.fixtures import record
from tests.unit.cli import adopt_apps as apps
from tests.unit.strategies.rounds import FakeGrid, ask

pytestmark = pytest.mark.usefixtures("outside_a_run")

#: The two lines of each route.
PART, SITES, LAYER = (
    (
        "LdpMod(train=CodewordRelease(trainable='NAME.*'))",
        "CodewordStrategy(Codeword(8.0), trainable='NAME.*')",
    ),
    ("LdpMod(train=DPSGDRelease())", "DPSGDStrategy(FedAvg())"),
    ("model.requires_grad_(False)", "model.NAME.requires_grad_(True)"),
)
MODEL = {"w": np.zeros((10, 900), dtype=np.float32)}
PLAN = TrainingPlan(rounds=1, steps=1, rate=0.1, noise=50.0, epsilon=0.5, delta=1e-5)
Log = pytest.LogCaptureFixture


def advice(clients: int, _: Log) -> str:
    return str(advise(clients=clients, weights=62_006, total_epsilon=1.0))


def planned(words: str, _: Log) -> str:
    return str(facts("plan", *words.split())["outlook"]["judgement"])


def adopted(weights: int, _: Log) -> str:
    with TemporaryDirectory() as folder:
        app = apps.write(Path(folder) / "app")
        return str(facts("adopt", app, "--clients", 1000, "--params", weights)["reason"])


def first_round(nodes: int, log: Log) -> str:
    strategy = CodewordStrategy(Codeword(0.5), answers_per_client=1, fraction_train=0.5)
    strategy.expect(1, record(MODEL))
    ask(strategy, MODEL, nodes=nodes)
    return log.text


def summary(nodes: int, log: Log) -> str:
    strategy = CodewordStrategy(Codeword(0.5), answers_per_client=1, fraction_train=0.5)
    strategy.expect(1, record(MODEL))
    ask(strategy, MODEL, nodes=nodes)
    log.clear()
    strategy.summary()
    return log.text


def noise(epsilon: float, log: Log) -> str:
    """Return what is said of reports of which nothing but noise is seen."""
    mechanism, weights = Codeword(epsilon), 32_768
    forecast = UtilityForecast(mechanism.plan, weights, 10_000, 4, 2_500)
    watch = SignalMonitor(forecast)
    watch.add(np.zeros(weights), 2_500)
    return log.text


def of_sites(_: int, log: Log) -> str:
    strategy, grid = DPSGDStrategy(FedAvg(), examples=50), FakeGrid(2)
    strategy.expect(1, record(MODEL))
    fields: Any = plan_fields(PLAN)
    strategy.configure_train(1, record(MODEL), ConfigRecord(fields), grid)  # type: ignore[arg-type]
    return log.text


def of_one_site(_: int, log: Log) -> str:
    log_outlook(GrantedRound(PLAN, 50, "row"), 10)
    return log.text


SIGNDS = "signds --params 62006 --epsilon 1 --rounds 2 --clients"
DPSGD = "dpsgd --epsilon 0.5 --delta 1e-5 --rounds 1 --steps 1 --rate 0.1 --examples 50 --params 99"
#: By the file that judges: what makes it say so, and the route.
PLACES: dict[str, list[tuple[Callable[[Any, Log], str], object, tuple[str, str]]]] = {
    "advice.py": [(advice, 100, PART), (advice, 5, SITES)],
    "cli/adopt.py": [(adopted, 10**7, PART)],
    "cli/plan.py": [
        (planned, "advice --clients 100 --params 62006 --total-epsilon 1", PART),
        (planned, "advice --clients 5 --params 62006 --total-epsilon 1", SITES),
        (planned, f"{DPSGD} --classes 10", LAYER),
        (planned, f"{DPSGD} --agreement 0.001", LAYER),
    ],
    "cli/plan_updates.py": [(planned, f"{SIGNDS} 100", PART), (planned, f"{SIGNDS} 5", SITES)],
    "clients/dpsgd_charging.py": [(of_one_site, 0, LAYER)],
    "strategies/dpsgd.py": [(of_sites, 0, LAYER)],
    "strategies/forecast.py": [
        (first_round, 100, PART),
        (first_round, 6, SITES),
        (summary, 100, PART),
        (summary, 6, SITES),
        (noise, 0.5, PART),
        (noise, 12.0, PART),  # whose outlook was good
    ],
}
CASES = [
    pytest.param(*case, id=f"{file}-{case[0].__name__}-{case[1]}")
    for file, cases in PLACES.items()
    for case in cases
]


@pytest.mark.parametrize(("told", "what", "route"), CASES)
def test_the_route_that_fits_follows_with_its_two_lines(
    told: Callable[[Any, Log], str], what: object, route: tuple[str, str], caplog: Log
) -> None:
    text = " ".join(told(what, caplog).split())
    words = re.split(r"hopeless[^:]*: |the steps are noise: ", text)
    assert len(words) > 1, text
    for after in words[1:]:
        for line in route:
            assert line in after, text


def test_all_places_are_in_the_table() -> None:
    folder = Path(flower_ldp.__file__).parent
    judges = re.compile(r"\b(?:judgement\(|UtilityForecast\(|TrainingOutlook\(|SignalMonitor\()")
    found = {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*.py")
        if judges.search(file.read_text(encoding="utf-8"))
    }
    assert found - {"mechanisms/training_outlook.py"} == set(PLACES)


@pytest.mark.parametrize("line", [*PART, *SITES, *LAYER])
def test_the_lines_run(line: str) -> None:
    names: dict[str, Any] = {
        one.__name__: one
        for one in (Codeword, CodewordRelease, CodewordStrategy, DPSGDRelease, DPSGDStrategy)
    }
    model: Any = SimpleNamespace()
    if "model" in line:
        torch = pytest.importorskip("torch")
        model = torch.nn.Sequential()
        model.NAME = torch.nn.Linear(2, 2)
    exec(line, {**names, "LdpMod": LdpMod, "FedAvg": FedAvg, "model": model})  # noqa: S102

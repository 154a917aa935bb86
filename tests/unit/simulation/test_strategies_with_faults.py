"""Strategies where nodes are away, slow, or lose replies: rounds end, and counts are right."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from flower_ldp.accounting import Ledger
from flower_ldp.clients import GaussianRelease, LdpMod, OwnerAuthorizer, SignDSRelease
from flower_ldp.clients.permit import Authorizer
from flower_ldp.mechanisms import Gaussian, SignDS
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit
from flower_ldp.simulation import Fate, Faults, run_in_process
from flower_ldp.strategies import FixedStep, GaussianStrategy, SignDSStrategy
from tests.fixtures import UnrecordedPermit, record

MODEL = record({"w": np.zeros(1_000, dtype=np.float32)})
NODES = 10
ROUNDS = 3
EPSILON = 4.0


def client(*mods: LdpMod) -> ClientApp:
    """Move the model by a step of the partition's own."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        model = message.content.array_records["arrays"]["w"].numpy()
        step = np.cos(np.arange(model.size) * (part + 1)).astype(model.dtype)
        arrays, metrics = record({"w": model + step}), MetricRecord({"num-examples": part + 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def trained(
    strategy: Strategy, faults: Faults, app: ClientApp | None = None, **options: Any
) -> Result:
    """Run a few rounds of half a minute each."""
    found: list[Result] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        random.seed(5)  # Flower's strategies sample by it
        found.append(strategy.start(grid, MODEL, num_rounds=ROUNDS, timeout=30.0))

    run_in_process(server, app or client(), NODES, faults=faults, **options)
    return found[0]


class Unrecorded:
    """Lets every report leave, without a ledger."""

    def authorize(self, *_: object) -> UnrecordedPermit:
        """Charge nothing."""
        return UnrecordedPermit()

    acknowledge = authorize


def signds(
    faults: Faults, authorizer: Authorizer | None = None, **options: Any
) -> list[MetricRecord]:
    """Return what each round of SignDS counted."""
    strategy = SignDSStrategy(SignDS(epsilon=EPSILON, k=0.2), FixedStep(0.1))
    gate = LdpMod(train=SignDSRelease(), authorizer=authorizer or Unrecorded())
    result = trained(strategy, faults, client(gate), **options)
    return [result.train_metrics_clientapp[number] for number in range(1, ROUNDS + 1)]


def fedavg(faults: Faults, **options: Any) -> list[object]:
    """Return FedAvg's last model and what its rounds counted."""
    seen: list[object] = []

    class Listening(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            kept = list(replies)
            seen.append([(one.metadata.src_node_id, one.has_error()) for one in kept])
            return super().aggregate_train(server_round, kept)

    result = trained(Listening(fraction_evaluate=0.0), faults, **options)
    return [*seen, result.arrays["w"].numpy().tolist()]


@pytest.fixture(autouse=True)
def no_time_passes() -> Iterator[None]:
    """Hold every test to the promise that waiting costs nothing: each run waits 30 s at least."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < 10.0


def test_signds_counts_who_is_there() -> None:
    faults = Faults(seed=1, away=0.1)
    there = [NODES - len(faults.away_in(turn, NODES)) for turn in range(ROUNDS)]
    assert min(there) < NODES
    assert [one["accepted"] for one in signds(faults)] == there


def test_signds_goes_on_without_lost_replies_and_counts_what_was_asked_for(
    simulation_policy: Path,
) -> None:
    faults = Faults(seed=1, lost=0.2)
    arrived = [
        sum(not faults.fate(part, number).lost for part in range(NODES)) for number in range(ROUNDS)
    ]
    assert max(arrived) < NODES
    rounds = signds(faults, OwnerAuthorizer())
    assert [one["accepted"] for one in rounds] == arrived
    # A node whose reply is lost has paid for it, and the server says so.
    assert [one["epsilon-total"] for one in rounds] == [EPSILON, 2 * EPSILON, 3 * EPSILON]
    with Ledger.open(load_policy(simulation_policy).ledger, read_only=True) as ledger:
        paid = [ledger.totals(account)[Unit.CLIENT] for account in ledger.data_ids()]
    assert [one.spent(Unit.CLIENT).epsilon for one in paid] == [3 * EPSILON] * NODES


def test_signds_ends_its_rounds_without_slow_nodes_and_counts_no_late_reply() -> None:
    faults = Faults(seed=1, slow=0.3)
    fast = sum(faults.fate(part, 0).late == 0 for part in range(NODES))
    assert fast < NODES
    rounds = signds(faults)
    assert [(one["accepted"], one["rejected"]) for one in rounds] == [(fast, 0)] * ROUNDS


def test_the_gaussian_mechanism_averages_who_is_in_time() -> None:
    faults = Faults(seed=1, slow=0.3, away=0.1)
    fast = {part for part in range(NODES) if not faults.fate(part, 0).late}
    there = [len(fast - faults.away_in(turn, NODES)) for turn in range(ROUNDS)]
    assert len(set(there)) > 1
    strategy = GaussianStrategy(Gaussian(epsilon=8.0, delta=1e-5))
    gate = LdpMod(train=GaussianRelease(), authorizer=Unrecorded())
    found = trained(strategy, faults, client(gate)).train_metrics_clientapp
    assert [found[number]["accepted"] for number in range(1, ROUNDS + 1)] == there


def test_signds_counts_a_node_that_leaves_as_one_that_is_not_there() -> None:
    faults = Faults(plan=lambda part, number: Fate(leaves=(part, number) == (3, 1)))
    assert [one["accepted"] for one in signds(faults)] == [NODES, NODES - 1, NODES]


def test_fedavg_averages_who_answered_in_time() -> None:
    faults = Faults(plan=lambda part, _: Fate(late=60.0 * (part > 1), lost=part == 1))
    *rounds, model = fedavg(faults)
    assert rounds == [[(1_000_000, False)]] * ROUNDS
    assert model == pytest.approx(ROUNDS * np.cos(np.arange(1_000)), rel=1e-5)


def test_the_same_seed_gives_the_same_history_whatever_the_number_of_workers() -> None:
    def history(seed: int, workers: int = 1) -> list[object]:
        faults = Faults(seed=seed, away=0.2, slow=0.2, lost=0.2, leaving=0.1)
        return fedavg(faults, workers=workers)

    first = history(1)
    assert first == history(1) == history(1, workers=2)
    assert first[:ROUNDS] != history(2)[:ROUNDS]

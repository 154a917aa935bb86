"""Clients without a gate, and a training under any strategy: for ``_hospital_rivals.py``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from _sites import Plan, Sites
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from flower_ldp.simulation import run_in_process

Found = dict[str, Any]
Train = Callable[[int, torch.nn.Module, int], None]


@dataclass(frozen=True)
class Asked:
    """What all rivals are asked for.

    ``plan`` has epsilon, rounds, and how DP-SGD steps; a client without noise of its own takes
    ``steps`` steps of size ``rate`` a round, on so many ``rows`` at random, or on all.
    """

    plan: Plan
    steps: int
    rate: float
    rows: int | None = None


def whole(sites: Sites, site: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all features and targets of a site."""
    rows = sites.rows[site]
    columns, targets = zip(*(rows[row] for row in range(len(rows))), strict=True)
    return torch.stack(columns), torch.stack(targets)


def freely(sites: Sites, asked: Asked) -> Train:
    """Return ordinary training: of no privacy by itself."""
    all_of = cache(lambda site: whole(sites, site))

    def train(site: int, model: torch.nn.Module, taken: int) -> None:
        columns, targets = all_of(site)
        optimizer = sites.optimizer(list(model.parameters()), asked.rate, asked.steps * taken)
        for _ in range(asked.steps):
            rows = slice(None) if asked.rows is None else torch.randperm(len(columns))[: asked.rows]
            optimizer.zero_grad()
            sites.loss(model(columns[rows]), targets[rows]).backward()
            optimizer.step()

    return train


def client(sites: Sites, train: Train, mods: Sequence[Any]) -> ClientApp:
    """Return an app that trains, with these mods and no gate of its own."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        site = int(context.node_config["partition-id"])
        model = sites.model()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        train(site, model, int(str(message.content["config"]["server-round"])) - 1)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": len(sites.rows[site])}),
            }
        )
        return Message(content, reply_to=message)

    return app


def trained(
    sites: Sites, client: ClientApp, strategy: Strategy, rounds: int, policy: str = ""
) -> float:
    """Train with a strategy; return the accuracy of the last model."""
    server, accuracies = ServerApp(), list[float]()
    features, targets = sites.held

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = sites.model()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = sites.right(model(features), targets).to(torch.float64)
        accuracies.append(float(right.mean()))
        return MetricRecord({"accuracy": accuracies[-1]})

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        arrays = ArrayRecord(sites.model().state_dict())
        strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)

    with tempfile.TemporaryDirectory() as folder:
        node = {}
        if policy:
            path = Path(folder) / "policy.yaml"
            path.write_text(policy)
            node["ldp-policy"] = str(path)
        run_in_process(server, client, len(sites.rows), node_config=node)
    return accuracies[-1]


def averaging(sites: Sites) -> FedAvg:
    nodes = len(sites.rows)
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)

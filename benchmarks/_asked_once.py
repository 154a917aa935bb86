"""A linear layer that is trained by clients who are asked once, through gate, policy and ledger."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CodewordRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.privacy import Unit
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import CodewordStrategy, FixedLength, FixedStep, SignDSStrategy

CLASSES = 10
_POLICY = """\
data_id: images
ledger: ledger.sqlite
mode: simulation
messages: {{train: {{{mechanism}: {{epsilon: {epsilon}}}}}}}
budgets: {{client: {{life: {{epsilon: {epsilon}}}}}}}
releases: {{life: 1}}
"""
Floats = NDArray[np.float32]
Labels = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Training:
    """What the server asks for, and how clients train."""

    mechanism: str
    epsilon: float
    rounds: int
    length: float
    momentum: float
    final_fraction: float
    steps: int
    rate: float


@dataclass(frozen=True)
class Images:
    """Unit vectors (n, f) and labels (n,), with each client's part of the first of them."""

    features: Floats
    labels: Labels
    parts: list[NDArray[np.int64]]
    held_features: Floats
    held_labels: Labels


def shares(labels: Labels, clients: int, alpha: float | None, seed: int) -> list[NDArray[np.int64]]:
    """Return each client's images, equally many: at random, or by a Dirichlet law of classes."""
    rng = np.random.default_rng(seed)
    each = len(labels) // clients
    if alpha is None:
        return list(rng.permutation(len(labels))[: each * clients].reshape(clients, each))
    left = [rng.permutation(np.flatnonzero(labels == one)).tolist() for one in range(CLASSES)]
    found = []
    for law in rng.dirichlet([alpha] * CLASSES, clients):
        mine = []
        for one in rng.choice(CLASSES, each, p=law):
            if not left[one]:  # what a class no longer has comes from the one with most
                one = max(range(CLASSES), key=lambda k: len(left[k]))
            mine.append(left[one].pop())
        found.append(np.array(mine))
    return found


def trained(weights: Floats, features: Floats, labels: Labels, steps: int, rate: float) -> Floats:
    """Return a layer, shape (10, f), after steps of gradient descent on the cross-entropy."""
    weights, wanted = weights.copy(), np.eye(CLASSES, dtype=np.float32)[labels]
    for _ in range(steps):
        logits = features @ weights.T
        found = np.exp(logits - logits.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        weights -= np.float32(rate / len(labels)) * (found - wanted).T @ features
    return weights


def client_app(images: Images, training: Training) -> ClientApp:
    """Return clients behind their gate."""
    release = CodewordRelease() if training.mechanism == "codeword" else SignDSRelease()
    app = ClientApp(mods=[LdpMod(train=release)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mine = images.parts[int(context.node_config["partition-id"])]
        weights = trained(
            message.content.array_records["arrays"]["weight"].numpy(),
            images.features[mine],
            images.labels[mine],
            training.steps,
            training.rate,
        )
        content = RecordDict({"arrays": ArrayRecord({"weight": Array(weights)})})
        content["metrics"] = MetricRecord({"num-examples": len(mine)})
        return Message(content, reply_to=message)

    return app


def strategy_for(training: Training) -> CodewordStrategy | SignDSStrategy:
    """Return what asks each client once."""
    optimizer = FixedLength(
        training.length, training.rounds, training.momentum, training.final_fraction
    )
    share = min(1.0, (1 + 1e-9) / training.rounds)
    if training.mechanism == "codeword":
        mechanism = Codeword(training.epsilon, blocks=CLASSES)
        return CodewordStrategy(mechanism, optimizer, answers_per_client=1, fraction_train=share)
    return SignDSStrategy(
        SignDS(training.epsilon),
        FixedStep(1.0),
        server_optimizer=optimizer,
        answers_per_client=1,
        fraction_train=share,
    )


def run(images: Images, training: Training) -> dict[str, Any]:
    """Train once; return accuracy, totals of the clients' own ledger, and bytes."""
    strategy = strategy_for(training)
    first = np.zeros((CLASSES, images.features.shape[1]), dtype=np.float32)
    end, facts = run_once(
        strategy,
        client_app(images, training),
        ArrayRecord({"weight": Array(first)}),
        training.rounds,
        len(images.parts),
    )
    logits = images.held_features @ end["weight"].numpy().T
    accuracy = float((logits.argmax(axis=1) == images.held_labels).mean())
    return {"accuracy": accuracy, **facts}


def run_once(
    strategy: CodewordStrategy | SignDSStrategy,
    app: ClientApp,
    first: ArrayRecord,
    rounds: int,
    clients: int,
    *,
    strict: bool = True,
) -> tuple[ArrayRecord, dict[str, Any]]:
    """Run a training whose clients' policy allows each one report in its life.

    Returns
    -------
    model : ArrayRecord
        The last.
    facts : dict
        Totals of the clients' own ledger, and bytes.
    """
    seen = list[int]()
    aggregate = strategy.aggregate_train

    def watching(server_round: int, replies: Iterable[Message]) -> Any:
        held = list(replies)
        seen.extend(len(message_to_proto(one).SerializeToString()) for one in held[:1])
        return aggregate(server_round, held)

    strategy.aggregate_train = watching  # type: ignore[method-assign]
    server, end = ServerApp(), dict[str, Any]()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        result = strategy.start(grid, first, num_rounds=rounds)
        if result.arrays is None:
            raise RuntimeError("the run has no model")
        end["model"], end["rounds"] = result.arrays, result.train_metrics_clientapp

    mechanism = "codeword" if isinstance(strategy, CodewordStrategy) else "signds"
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.yaml")
        epsilon = float(strategy.mechanism.epsilon)
        policy.write_text(_POLICY.format(mechanism=mechanism, epsilon=epsilon), encoding="utf-8")
        os.environ["FLOWER_LDP_POLICY"] = str(policy)
        run_in_process(server, app, clients, strict=strict, contexts="drop", progress=False)
        with Ledger.open(Path(folder, "ledger.sqlite"), read_only=True) as ledger:
            totals = [ledger.totals(one)[Unit.CLIENT] for one in ledger.data_ids()]
    spent = {amount.spent(Unit.CLIENT).epsilon for amount in totals}
    return end["model"], {
        "clients_asked": len(totals),
        "epsilon_total_most": max(spent),
        "payload_bytes": end["rounds"][1]["bytes-up"],
        "message_bytes": max(seen),
    }

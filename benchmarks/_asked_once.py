"""A linear layer that is trained by clients who are asked once, through gate, policy and ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _in_process import last_model, trained
from _messages import reply_to
from flwr.app import Array, ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde import message_to_proto
from numpy.typing import NDArray

from flower_ldp.clients import CodewordRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import Codeword, SignDS
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


def descended(weights: Floats, features: Floats, labels: Labels, steps: int, rate: float) -> Floats:
    """Return layers, shape (..., 10, f), after steps of gradient descent on the cross-entropy.

    Parameters
    ----------
    weights : ndarray of float32, shape (10, f)
    features : ndarray of float32, shape (..., n, f)
    labels : ndarray of int, shape (..., n)
        Of one client, or of several that train at once.
    steps, rate
        How far.
    """
    wanted = np.eye(CLASSES, dtype=np.float32)[labels]
    found = np.broadcast_to(weights, (*labels.shape[:-1], *weights.shape)).copy()
    for _ in range(steps):
        logits = features @ found.swapaxes(-1, -2)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        found -= np.float32(rate / labels.shape[-1]) * (
            (shares - wanted).swapaxes(-1, -2) @ features
        )
    return found


def client_app(images: Images, training: Training) -> ClientApp:
    """Return clients behind their gate."""
    release = CodewordRelease() if training.mechanism == "codeword" else SignDSRelease()
    app = ClientApp(mods=[LdpMod(train=release)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        mine = images.parts[int(context.node_config["partition-id"])]
        weights = descended(
            message.content.array_records["arrays"]["weight"].numpy(),
            images.features[mine],
            images.labels[mine],
            training.steps,
            training.rate,
        )
        return reply_to(message, ArrayRecord({"weight": Array(weights)}), len(mine))

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


def run(
    images: Images,
    training: Training,
    strategy: CodewordStrategy | SignDSStrategy | None = None,
    analyzer: str = "",
) -> dict[str, Any]:
    """Train once; return accuracy, totals of the clients' own ledger, and bytes.

    ``strategy`` and ``analyzer``, of the clients' policy, are of shuffled reports.
    """
    first = np.zeros((CLASSES, images.features.shape[1]), dtype=np.float32)
    end, facts = run_once(
        strategy or strategy_for(training),
        client_app(images, training),
        ArrayRecord({"weight": Array(first)}),
        training.rounds,
        len(images.parts),
        analyzer=analyzer,
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
    analyzer: str = "",
) -> tuple[ArrayRecord, dict[str, Any]]:
    """Run a training whose clients' policy allows each one report in its life.

    ``analyzer`` is what the policy says of one, as YAML.

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
    mechanism = "codeword" if isinstance(strategy, CodewordStrategy) else "signds"
    policy = _POLICY.format(mechanism=mechanism, epsilon=float(strategy.mechanism.epsilon))
    policy += f"analyzer: {analyzer}\n" if analyzer else ""
    result, spent = trained(
        strategy, app, first, rounds, clients, policy=policy, strict=strict, contexts="drop"
    )
    return last_model(result), {
        "clients_asked": len(spent),
        "epsilon_total_most": max(total.epsilon for total in spent),
        "payload_bytes": result.train_metrics_clientapp[1]["bytes-up"],
        "message_bytes": max(seen),
    }

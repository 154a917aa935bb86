"""LeNet by SignDS at MindSpore Federated's published settings, beside FedAvg without protection.

The clients' images are MNIST's, dealt by Dirichlet shares: the published ones (62 classes by
writer) are not to be had. In one process, without Flower's messages, and seeded: each update goes
through the package's mechanism, and the server moves the model by its published rule.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from flower_ldp.mechanisms import RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "examples" / "signds"))

from signds_example import data, model  # noqa: E402

#: Of the curve: rounds between two evaluations.
EVERY = 10
KINDS = ("SIGNDS", "NOT_ENCRYPT")


@dataclass(frozen=True)
class Settings:
    """One published experiment; the last three fields are this comparison's own."""

    k: float
    rate: float
    rounds: int
    clients: int = 100
    epsilon: float = 100.0
    threshold_ratio: float = 0.6
    local_rate: float = 0.01
    batch_size: int = 32
    #: Published: 20. Twenty on all 600 images of a client would be days on two cores.
    epochs: int = 4
    #: Of a client, at random from its share; a published writer has some 200.
    images: int = 60
    alpha: float = 0.5


PUBLISHED = {
    "page": Settings(k=0.2, rate=4.0, rounds=600),
    "code": Settings(k=0.01, rate=4.0, rounds=200),
}


def updates(
    net: nn.Module, split: data.Split, shares: list[torch.Tensor], settings: Settings
) -> Iterator[NDArray[np.float32]]:
    """Train every client from the same weights; yield by how much its weights moved."""
    start = weights_of(net)
    for share in shares:
        put(start, net)
        optimizer = torch.optim.SGD(net.parameters(), lr=settings.local_rate)
        for _ in range(settings.epochs):
            for batch in share[torch.randperm(len(share))].split(settings.batch_size):
                optimizer.zero_grad()
                logits = net(split.images[batch])
                nn.functional.cross_entropy(logits, split.labels[batch]).backward()
                optimizer.step()
        yield (weights_of(net) - start).numpy()
    put(start, net)


def weights_of(net: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def put(weights: torch.Tensor, net: nn.Module) -> None:
    with torch.no_grad():
        parts = weights.split([p.numel() for p in net.parameters()])
        for p, values in zip(net.parameters(), parts, strict=True):
            p.copy_(values.view(p.shape))


def train(path: Path, kind: str, settings: Settings, seed: int, checkpoint: Path) -> dict[str, Any]:
    """Train for all rounds, going on from a checkpoint if there is one; return the curve."""
    images = data.load(str(path), "test", seed)
    parts = data.partitions(str(path), "test", seed, settings.clients, "dirichlet", settings.alpha)
    draw = np.random.default_rng(seed)
    shares = [torch.as_tensor(draw.permutation(part)[: settings.images]) for part in parts]
    net = model.build("lenet5", 28, seed)
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # faster
    mechanism = SignDS(settings.epsilon, settings.k, settings.threshold_ratio)
    done, curve, seconds = 0, [measured(net, images.held_out, 0)], 0.0
    if checkpoint.exists():
        with np.load(checkpoint, allow_pickle=False) as file:
            state = json.loads(str(file["state"]))
            put(torch.from_numpy(file["weights"]), net)
        done, curve, seconds = state["round"], state["curve"], state["processor-seconds"]
    for number in range(done + 1, settings.rounds + 1):
        # Seeded by the round, so that a run that goes on draws what one without a break would.
        torch.manual_seed(1_000_003 * seed + number)
        noise, began = RandomSource.seeded(1_000_003 * seed + number), time.process_time()
        moves = updates(net, images.train, shares, settings)
        size = sum(p.numel() for p in net.parameters())
        if kind == "SIGNDS":
            signs = sum_of_signs((mechanism.randomize(one, noise) for one in moves), size)
            step = settings.rate / settings.clients * signs
        else:
            sizes = np.array([len(share) for share in shares], dtype=np.float64)
            step = sum(n * one for n, one in zip(sizes / sizes.sum(), moves, strict=True))
        put(weights_of(net) + torch.as_tensor(step, dtype=torch.float32), net)
        seconds += time.process_time() - began
        if number % EVERY == 0 or number == settings.rounds:
            curve.append(measured(net, images.held_out, number))
            state = {"round": number, "curve": curve, "processor-seconds": seconds}
            np.savez(checkpoint, weights=weights_of(net).numpy(), state=json.dumps(state))
            print(f"{kind} seed {seed}, round {number}: {curve[-1]}", flush=True)
    plan = mechanism.plan(sum(p.numel() for p in net.parameters()), quiet=True)
    return {
        "kind": kind,
        "seed": seed,
        "settings": asdict(settings),
        "h": plan.dim_out if kind == "SIGNDS" else None,
        "last": curve[-1],
        "curve": curve,
        "processor-seconds": round(seconds),
    }


def measured(net: nn.Module, held: data.Split, number: int) -> dict[str, float]:
    """Return round, accuracy, loss and macro AUC on the test images."""
    accuracy, loss = model.accuracy_and_loss(net, held.images, held.labels)
    auc = model.macro_auc(net, held.images, held.labels)
    net.train()
    found = {"accuracy": accuracy, "loss": loss, "auc": auc}
    return {"round": number, **{name: round(value, 4) for name, value in found.items()}}

"""What else five hospitals could take, on the same sites and the same layer as ``_sites.py``."""

from __future__ import annotations

import math
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _sites import Sites
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.advice import advise
from flower_ldp.clients import CodewordRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import CodewordStrategy, SignDSStrategy

DELTA, CLIP = 1e-5, 1.0
#: Flower's mod adds noise of this deviation for a sensitivity and an epsilon of 1.
_ONE = math.sqrt(2 * math.log(1.25 / DELTA))
#: Of a client that trains without noise of its own: full batches.
LOCAL_STEPS, LOCAL_RATE = 50, 0.25
_POLICY = """\
data_id: ward
ledger: ledger.sqlite
mode: simulation
messages: {{}}
unlisted_messages: answer
budgets: {{client: {{life: {{epsilon: {epsilon!r}, delta: 1.0e-5}}}}}}
"""
Found = dict[str, Any]
Train = Callable[[int, torch.nn.Module, int], None]


@dataclass(frozen=True)
class Asked:
    """What all rivals are asked for."""

    epsilon: float
    rounds: int
    rate: float


def _whole(sites: Sites, site: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = sites.rows[site]
    columns, targets = zip(*(rows[row] for row in range(len(rows))), strict=True)
    return torch.stack(columns), torch.stack(targets)


def _freely(sites: Sites) -> Train:
    """Return ordinary training: of no privacy by itself."""

    def train(site: int, model: torch.nn.Module, taken: int) -> None:
        columns, targets = _whole(sites, site)
        optimizer = sites.optimizer(list(model.parameters()), LOCAL_RATE, LOCAL_STEPS * taken)
        for _ in range(LOCAL_STEPS):
            optimizer.zero_grad()
            sites.loss(model(columns), targets).backward()
            optimizer.step()

    return train


def _client(sites: Sites, train: Train, mods: Sequence[Any]) -> ClientApp:
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


def _run(
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


def _averaging(sites: Sites) -> FedAvg:
    nodes = len(sites.rows)
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)


def without_privacy(sites: Sites, asked: Asked) -> Found:
    """FedAvg."""
    client = _client(sites, _freely(sites), [])
    return {"unit": "none", "accuracy": _run(sites, client, _averaging(sites), asked.rounds)}


def _local(sites: Sites, asked: Asked, sensitivity: float, epsilon: float) -> Found:
    """Flower's own mod; what it is told, what it makes of that, and what that is in truth."""
    mod = LocalDpMod(CLIP, sensitivity, epsilon, DELTA)
    deviation = sensitivity * _ONE / epsilon
    account = SampledGaussian(deviation / CLIP, 1.0, asked.rounds)
    client = _client(sites, _freely(sites), [mod])
    return {
        "unit": "client",
        "told": {"sensitivity": sensitivity, "epsilon": epsilon, "delta": DELTA},
        "noise": deviation,
        "epsilon_true": account.epsilon(DELTA),
        "accuracy": _run(sites, client, _averaging(sites), asked.rounds),
    }


def local_mod_as_told(sites: Sites, asked: Asked) -> Found:
    """Flower's LocalDpMod, told its clipping length as sensitivity and the epsilon."""
    return _local(sites, asked, CLIP, asked.epsilon)


def local_mod(sites: Sites, asked: Asked) -> Found:
    """Flower's LocalDpMod, told what makes epsilon of all rounds together.

    A site that is replaced moves its clipped update by up to twice the length.
    """
    noise = CLIP * noise_multiplier(asked.epsilon, DELTA, sample_rate=1.0, steps=asked.rounds)
    return _local(sites, asked, 2 * CLIP, 2 * CLIP * _ONE / noise)


def central(sites: Sites, asked: Asked) -> Found:
    """Flower's strategy of central DP at client level: the server sees each site's update."""
    noise = noise_multiplier(asked.epsilon, DELTA, sample_rate=1.0, steps=asked.rounds)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        _averaging(sites), noise, CLIP, len(sites.rows)
    )
    client = _client(sites, _freely(sites), [])
    account = SampledGaussian(noise, 1.0, asked.rounds)
    return {
        "unit": "client, the server trusted",
        "noise": noise,
        "epsilon_true": account.epsilon(DELTA),
        "accuracy": _run(sites, client, strategy, asked.rounds),
    }


#: Of FL4Health's accountant (fl4health/privacy/moments_accountant.py).
_ORDERS = [1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 3.5, 4.0, 4.5, *range(5, 64), 128, 256, 512]


def fl4health_epsilon(noise: float, rate: float, steps: int) -> float:
    """Return FL4Health's instance-level epsilon: moments, for an example added or removed."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    account = RdpAccountant(_ORDERS)
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(noise))
    return float(account.compose(SelfComposedDpEvent(event, steps)).get_epsilon(DELTA))


def fl4health(sites: Sites, asked: Asked) -> Found:
    """FL4Health's instance-level recipe: Opacus at each site, and its formula for epsilon.

    A batch is a whole site, as in the plan that it is compared with: one step a round.
    """
    from opacus import PrivacyEngine

    low, high = 1.0, 1e3
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        enough = fl4health_epsilon(middle, 1.0, asked.rounds) <= asked.epsilon
        low, high = (low, middle) if enough else (middle, high)

    def train(site: int, model: torch.nn.Module, taken: int) -> None:
        rows = TensorDataset(*_whole(sites, site))
        optimizer = sites.optimizer(list(model.parameters()), asked.rate, taken)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its random numbers are torch's, and may be predicted
            private, noisy, batches = PrivacyEngine().make_private(
                module=model,
                optimizer=optimizer,
                data_loader=DataLoader(rows, batch_size=len(rows)),
                noise_multiplier=high,
                max_grad_norm=CLIP,
            )
            for columns, targets in batches:
                noisy.zero_grad()
                sites.loss(private(columns), targets).backward()
                noisy.step()
        private.remove_hooks()

    return {
        "unit": "row, added or removed",
        "noise": high,
        "epsilon_stated": fl4health_epsilon(high, 1.0, asked.rounds),
        "epsilon_true": SampledGaussian(high, 1.0, asked.rounds).epsilon(DELTA),
        "accuracy": _run(sites, _client(sites, train, []), _averaging(sites), asked.rounds),
    }


def _advised(sites: Sites, asked: Asked, kind: type[SignDS] | type[Codeword]) -> Found:
    """Do what the advisor says of a total at each of the sites, and keep what it says."""
    weights = sum(one.numel() for one in sites.model().parameters())
    nodes = len(sites.rows)
    advice = advise(clients=nodes, weights=weights, total_epsilon=asked.epsilon, mechanism=kind)
    common: dict[str, Any] = {
        "answers_per_client": advice.answers_per_client,
        "fraction_train": advice.outlook.clients_per_round / nodes,
        "min_train_nodes": advice.outlook.clients_per_round,
        "min_available_nodes": nodes,
    }
    release = SignDSRelease() if isinstance(advice.mechanism, SignDS) else CodewordRelease()
    strategy: Strategy
    if isinstance(advice.mechanism, SignDS):
        strategy = SignDSStrategy(advice.mechanism, **common)
    else:
        strategy = CodewordStrategy(advice.mechanism, **common)
    client = _client(sites, _freely(sites), [LdpMod(train=release)])
    policy = _POLICY.format(epsilon=float(asked.epsilon))
    remedies = advice.remedies
    return {
        "unit": "client",
        "rounds": advice.outlook.rounds,
        "verdict": advice.verdict.value,
        "expected_cosine": advice.outlook.run_cosine,
        "good_would_be": None if remedies is None else str(remedies),
        "epsilon_true": asked.epsilon,
        "accuracy": _run(sites, client, strategy, advice.outlook.rounds, policy),
    }


def signds(sites: Sites, asked: Asked) -> Found:
    """SignDS as the advisor plans it."""
    return _advised(sites, asked, SignDS)


def codewords(sites: Sites, asked: Asked) -> Found:
    """Codewords as the advisor plans them."""
    return _advised(sites, asked, Codeword)


RIVALS: dict[str, Callable[[Sites, Asked], Found]] = {
    "FedAvg": without_privacy,
    "LocalDpMod as told": local_mod_as_told,
    "LocalDpMod": local_mod,
    "central DP": central,
    "FL4Health": fl4health,
    "SignDS": signds,
    "codewords": codewords,
}

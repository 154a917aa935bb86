"""What else five hospitals could take, on the same sites and the same model as ``_sites.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from _messages import reply_to
from _opacus import made_private
from _sites import Plan, Sites
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, Strategy
from torch.utils.data import DataLoader, TensorDataset

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.advice import advise
from flower_ldp.clients import CodewordRelease, LdpMod, SignDSRelease
from flower_ldp.mechanisms import Codeword, SignDS
from flower_ldp.strategies import CodewordStrategy, SignDSStrategy

DELTA, CLIP = 1e-5, 1.0
#: Flower's mod adds noise of this deviation for a sensitivity and an epsilon of 1.
_ONE = math.sqrt(2 * math.log(1.25 / DELTA))
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
        return reply_to(message, ArrayRecord(model.state_dict()), len(sites.rows[site]))

    return app


def without_privacy(sites: Sites, asked: Asked) -> Found:
    """FedAvg."""
    app = client(sites, freely(sites, asked), [])
    return {"unit": "none", "accuracy": sites.train(app, asked.plan.rounds)[0]}


def _local(sites: Sites, asked: Asked, sensitivity: float, epsilon: float) -> Found:
    """Flower's own mod; what it is told, what it makes of that, and what that is in truth."""
    mod = LocalDpMod(CLIP, sensitivity, epsilon, DELTA)
    deviation = sensitivity * _ONE / epsilon
    account = SampledGaussian(deviation / CLIP, 1.0, asked.plan.rounds)
    app = client(sites, freely(sites, asked), [mod])
    return {
        "unit": "client",
        "told": {"sensitivity": sensitivity, "epsilon": epsilon, "delta": DELTA},
        "noise": deviation,
        "epsilon_true": account.epsilon(DELTA),
        "accuracy": sites.train(app, asked.plan.rounds)[0],
    }


def local_mod_as_told(sites: Sites, asked: Asked) -> Found:
    """Flower's LocalDpMod, told its clipping length as sensitivity and the epsilon."""
    return _local(sites, asked, CLIP, asked.plan.epsilon)


def local_mod(sites: Sites, asked: Asked) -> Found:
    """Flower's LocalDpMod, told what makes epsilon of all rounds together.

    A site that is replaced moves its clipped update by up to twice the length.
    """
    epsilon, rounds = asked.plan.epsilon, asked.plan.rounds
    noise = CLIP * noise_multiplier(epsilon, DELTA, sample_rate=1.0, steps=rounds)
    return _local(sites, asked, 2 * CLIP, 2 * CLIP * _ONE / noise)


def central(sites: Sites, asked: Asked) -> Found:
    """Flower's strategy of central DP at client level: the server sees each site's update."""
    noise = noise_multiplier(asked.plan.epsilon, DELTA, sample_rate=1.0, steps=asked.plan.rounds)
    strategy = DifferentialPrivacyServerSideFixedClipping(
        sites.average(), noise, CLIP, len(sites.rows)
    )
    app = client(sites, freely(sites, asked), [])
    account = SampledGaussian(noise, 1.0, asked.plan.rounds)
    return {
        "unit": "client, the server trusted",
        "noise": noise,
        "epsilon_true": account.epsilon(DELTA),
        "accuracy": sites.train(app, asked.plan.rounds, strategy)[0],
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

    As many steps a round, and rows in each, as the plan has that it is compared with.
    """
    plan = asked.plan
    steps = plan.rounds * plan.steps
    low, high = 0.3, 1e3
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        enough = fl4health_epsilon(middle, plan.rate, steps) <= plan.epsilon
        low, high = (low, middle) if enough else (middle, high)

    all_of = cache(lambda site: TensorDataset(*whole(sites, site)))

    def train(site: int, model: torch.nn.Module, taken: int) -> None:
        rows = all_of(site)
        parameters = list(model.parameters())
        optimizer = sites.optimizer(parameters, plan.learning_rate, plan.steps * taken)
        loader = DataLoader(rows, batch_size=round(plan.rate * len(rows)))
        with made_private(model, optimizer, loader, high, CLIP) as (private, noisy, batches):
            for columns, targets in islice(batches, plan.steps):
                noisy.zero_grad()
                sites.loss(private(columns), targets).backward()
                noisy.step()
        private.remove_hooks()

    return {
        "unit": "row, added or removed",
        "noise": high,
        "epsilon_stated": fl4health_epsilon(high, plan.rate, steps),
        "epsilon_true": SampledGaussian(high, plan.rate, steps).epsilon(DELTA),
        "accuracy": sites.train(client(sites, train, []), plan.rounds)[0],
    }


def advised(sites: Sites, asked: Asked, kind: type[SignDS] | type[Codeword]) -> Found:
    """Do what the advisor says of a total at each of the sites, and keep what it says."""
    weights = sum(one.numel() for one in sites.model().parameters())
    nodes = len(sites.rows)
    advice = advise(
        clients=nodes, weights=weights, total_epsilon=asked.plan.epsilon, mechanism=kind
    )
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
    app = client(sites, freely(sites, asked), [LdpMod(train=release)])
    policy = _POLICY.format(epsilon=float(asked.plan.epsilon))
    remedies = advice.remedies
    return {
        "unit": "client",
        "rounds": advice.outlook.rounds,
        "verdict": advice.verdict.value,
        "expected_cosine": advice.outlook.run_cosine,
        "good_would_be": None if remedies is None else str(remedies),
        "epsilon_true": asked.plan.epsilon,
        "accuracy": sites.train(app, advice.outlook.rounds, strategy, policy=policy)[0],
    }


RIVALS: dict[str, Callable[[Sites, Asked], Found]] = {
    "FedAvg": without_privacy,
    "LocalDpMod as told": local_mod_as_told,
    "LocalDpMod": local_mod,
    "central DP": central,
    "FL4Health": fl4health,
    "SignDS": partial(advised, kind=SignDS),
    "codewords": partial(advised, kind=Codeword),
}

"""Five hospitals that train by DP-SGD through gate, policy, plan and ledger, under FedAvg."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from _in_process import last_model, trained
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.privacy import PrivacySpent, Unit
from flower_ldp.training import private_training, supervised

_POLICY = """\
data_id: ward
ledger: ledger.sqlite
mode: simulation
example: patient
examples: {examples}
messages:
  train:
    dpsgd:
      epsilon: {epsilon!r}
      delta: 1.0e-5
      unit: example
      plan: {{rounds: {rounds}, steps: {steps}, rate: {rate!r}, noise: {noise!r}, clip: 1.0}}
budgets: {{example: {{life: {{epsilon: {epsilon!r}, delta: 1.0e-5}}}}}}
"""
#: Makes a model: one for each training, with the same first weights.
Model = Callable[[], nn.Module]


@dataclass(frozen=True)
class Plan:
    """What each site's policy allows, and how it steps."""

    epsilon: float
    rounds: int
    steps: int
    rate: float
    learning_rate: float


@dataclass(frozen=True)
class Sites:
    """Each site's rows, what is held out, and what is trained.

    ``optimizer`` takes parameters, step size, and how many steps were taken in earlier rounds. With
    ``public_base`` what learns is sent alone.
    """

    rows: list[Any]
    held: tuple[torch.Tensor, torch.Tensor]
    like: tuple[torch.Tensor, torch.Tensor]
    model: Model
    loss: Callable[..., torch.Tensor]
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[list[nn.Parameter], float, int], torch.optim.Optimizer]
    public_base: bool = False

    def average(self) -> FedAvg:
        """Return the strategy of all sites in each round."""
        nodes = len(self.rows)
        return FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)

    def train(
        self, app: ClientApp, rounds: int, strategy: Strategy | None = None, **how: Any
    ) -> tuple[float, list[PrivacySpent]]:
        """Train all sites, by default under FedAvg; return the accuracy, and what was spent."""
        model = self.model()
        state = model.state_dict()
        if self.public_base:
            state = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        first = ArrayRecord(state)
        nodes = len(self.rows)
        result, spent = trained(strategy or self.average(), app, first, rounds, nodes, **how)
        model.load_state_dict(last_model(result).to_torch_state_dict(), strict=not self.public_base)
        features, targets = self.held
        with torch.no_grad():
            right = self.right(model(features), targets)
        return float(right.to(torch.float64).mean()), spent


def client_app(sites: Sites, plan: Plan) -> ClientApp:
    """Return a hospital behind its gate."""
    app = ClientApp(mods=[LdpMod(train=DPSGDRelease())])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        rows = sites.rows[int(context.node_config["partition-id"])]
        taken = plan.steps * (int(str(message.content["config"]["server-round"])) - 1)
        reply = private_training(
            context,
            sites.model(),
            rows,
            supervised(sites.loss),
            optimizer=lambda p: sites.optimizer(p, plan.learning_rate, taken),
            like=sites.like,
            groups=range(len(rows)),
            public_base=sites.public_base,
        )
        return Message(reply, reply_to=message)

    return app


def run(sites: Sites, plan: Plan) -> dict[str, Any]:
    """Train once; return the accuracy, the plan's noise and what the sites' ledgers hold."""
    noise = noise_multiplier(
        plan.epsilon, 1e-5, sample_rate=plan.rate, steps=plan.rounds * plan.steps
    )
    noise = round(noise * (1 + 1e-4), 4)  # above it: a policy has few digits
    numbers = {**asdict(plan), "noise": noise, "examples": len(sites.rows[0])}
    accuracy, spent = sites.train(
        client_app(sites, plan), plan.rounds, policy=_POLICY.format(**numbers), unit=Unit.EXAMPLE
    )
    return {
        "accuracy": accuracy,
        "noise": noise,
        "epsilon_patient_most": max(one.epsilon for one in spent),
        "delta_patient_most": max(one.delta for one in spent),
        "patients": len(sites.rows[0]),
    }

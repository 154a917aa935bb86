"""Five hospitals that train by DP-SGD through gate, policy, plan and ledger, under FedAvg."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.privacy import Unit
from flower_ldp.simulation import run_in_process
from flower_ldp.training import private_training

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

    ``optimizer`` takes parameters, step size, and how many steps were taken in earlier rounds.
    """

    rows: list[Any]
    held: tuple[torch.Tensor, torch.Tensor]
    like: tuple[torch.Tensor, torch.Tensor]
    model: Model
    loss: Callable[..., torch.Tensor]
    right: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    optimizer: Callable[[list[nn.Parameter], float, int], torch.optim.Optimizer]


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
            sites.loss,
            rows,
            optimizer=lambda p: sites.optimizer(p, plan.learning_rate, taken),
            like=sites.like,
            groups=range(len(rows)),
        )
        return Message(reply, reply_to=message)

    return app


def run(sites: Sites, plan: Plan) -> dict[str, Any]:
    """Train once; return the accuracy, the plan's noise and what the sites' ledgers hold."""
    server, accuracies = ServerApp(), list[float]()
    features, targets = sites.held

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = sites.model()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            right = sites.right(model(features), targets)
        accuracies.append(float(right.to(torch.float64).mean()))
        return MetricRecord({"accuracy": accuracies[-1]})

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        nodes = len(sites.rows)
        FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes).start(
            grid,
            ArrayRecord(sites.model().state_dict()),
            num_rounds=plan.rounds,
            evaluate_fn=evaluate,
        )

    noise = noise_multiplier(
        plan.epsilon, 1e-5, sample_rate=plan.rate, steps=plan.rounds * plan.steps
    )
    noise = round(noise * (1 + 1e-4), 4)  # above it: a policy has few digits
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder) / "policy.yaml"
        numbers = {**asdict(plan), "noise": noise, "examples": len(sites.rows[0])}
        policy.write_text(_POLICY.format(**numbers))
        Ledger.open(policy.with_name("ledger.sqlite"), create=True).close()
        node = {"ldp-policy": str(policy)}
        run_in_process(server, client_app(sites, plan), len(sites.rows), node_config=node)
        with Ledger.open(policy.with_name("ledger.sqlite"), read_only=True) as ledger:
            spent = [
                ledger.totals(f"ward/{site}")[Unit.EXAMPLE].spent(Unit.EXAMPLE)
                for site in range(len(sites.rows))
            ]
    return {
        "accuracy": accuracies[-1],
        "noise": noise,
        "epsilon_patient_most": max(one.epsilon for one in spent),
        "delta_patient_most": max(one.delta for one in spent),
        "patients": len(sites.rows[0]),
    }

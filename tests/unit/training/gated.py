"""A site with a policy, a plan and a ledger, and an app that trains through the gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flower_ldp.accounting.ledger import Entry, Ledger
from flower_ldp.clients import DPSGDRelease, LdpMod
from flower_ldp.training import private, private_training, supervised
from flower_ldp.training.gradients import RowModel
from flower_ldp.training.rows import Rows
from tests.fixtures import context, message, record

#: Enough noise for (8, 1e-2) in 2 rounds of 3 steps at full rate.
NOISE = 2.1
POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: {mode}
example: {example}
examples: {examples}
messages:
  train:
    dpsgd:
      epsilon: 8.0
      delta: 1.0e-2
      unit: example
      plan: {plan}
budgets:
  example:
    life: {{epsilon: {life}, delta: 0.5}}
answer_after: {moment}
"""
PLAN = "{rounds: 2, steps: 3, rate: 1.0, noise: 2.1, clip: 1.0}"
Task = Callable[[Message, Context], Message]


def linear() -> nn.Module:
    return nn.Linear(2, 1)


def squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output - target) ** 2).mean()


def descent(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.1)


LIKE = (torch.zeros(2), torch.zeros(1))
ROWS = [(torch.tensor([float(i), 1.0]), torch.tensor([float(i % 3)])) for i in range(8)]
MODEL = {"weight": np.zeros((1, 2), dtype=np.float32), "bias": np.zeros(1, dtype=np.float32)}


@dataclass
class Site:
    """A data owner's folder, and the app that runs there."""

    folder: Path
    mode: str = "deployment"
    example: str = "row"
    examples: int = 8
    life: float = 100.0
    plan: str = PLAN
    moment: str = "{}"
    arguments: dict[str, Any] = field(default_factory=dict)
    task: Task | None = None

    def __post_init__(self) -> None:
        (self.folder / "policy.yaml").write_text(
            POLICY.format(**{name: getattr(self, name) for name in vars(self)})
        )
        if not (self.folder / "ledger.sqlite").exists():
            Ledger.open(self.folder / "ledger.sqlite", create=True).close()

    @property
    def context(self) -> Context:
        found = context()
        found.node_config["ldp-policy"] = str(self.folder / "policy.yaml")
        return found

    def train(self, sent: Message, given: Context) -> Message:
        settings = {"optimizer": descent, "like": LIKE, **self.arguments}
        model = settings.pop("model", linear)()
        loss, rows = supervised(settings.pop("loss", squares)), settings.pop("data", ROWS)
        loss = settings.pop("row_loss", loss)
        return Message(private_training(given, model, rows, loss, **settings), reply_to=sent)

    def app(self, release: DPSGDRelease | None = None) -> ClientApp:
        app = ClientApp(mods=[LdpMod(train=release or DPSGDRelease())])
        app.train()(self.train if self.task is None else self.task)
        return app

    def ask(
        self,
        message_id: str = "m-1",
        arrays: Mapping[str, Any] = MODEL,
        config: Mapping[str, Any] | None = None,
    ) -> Message:
        fields = ConfigRecord({"server-round": 1, **(config or {})})
        content = RecordDict({"arrays": record(arrays), "config": fields})
        return self.app()(message(content, message_id=message_id), self.context)

    def entries(self) -> list[Entry]:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return list(ledger.entries())

    def counts(self) -> dict[Any, int]:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            return ledger.counts("ward")


def row_model(
    model: nn.Module, loss: Any, data: Any, like: Any, *, fixed: Any = None, learns: bool = True
) -> RowModel:
    """Return a model that is computed row by row, of all its parameters' gradients."""
    learning = [name for name, p in model.named_parameters() if p.requires_grad and learns]
    return RowModel(model, supervised(loss), Rows(data, like), fixed or {}, learning)


def found_of(asked: RowModel, at: Any, *rows: int) -> list[torch.Tensor | None]:
    """Return what each of these rows gives, one after the other."""
    with asked.passes() as passes:
        found = (asked.row(passes, at, row) for row in rows)
        return [None if one is None else one.clone() for one in found]


def weights(reply: Message) -> np.ndarray[Any, Any]:
    """Return the weights of a reply, in one vector."""
    found = arrays_of(reply)
    return np.concatenate([found[name].ravel() for name in MODEL])


def expected(
    rows: list[Any], *, steps: int = 3, examples: int = 8, clip: float | None = 1.0, mu: float = 0.0
) -> np.ndarray[Any, Any]:
    """Return DP-SGD's model without noise, of examples that are lists of rows."""
    model = linear()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    for _ in range(steps):
        total = torch.zeros(3, dtype=torch.float64)
        for example in rows:
            own = torch.zeros(3, dtype=torch.float64)
            for x, y in example:
                found = torch.autograd.grad(squares(model(x[None]), y[None]), model.parameters())
                own += torch.cat([g.ravel() for g in found]).double()
            norm = max(float(own.norm()), 1e-300)
            total += own * (1.0 / (norm + 0.01) if clip is None else min(1.0, clip / norm))
        now = torch.cat([p.detach().ravel() for p in model.parameters()])
        moved = now - 0.1 * ((total / examples).float() + mu * now)
        with torch.no_grad():
            model.weight.copy_(moved[:2][None])
            model.bias.copy_(moved[2:])
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def arrays_of(reply: Message) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a reply."""
    assert not reply.has_error(), reply.error
    return {name: one.numpy() for name, one in reply.content.array_records["arrays"].items()}


def state_of(model: nn.Module) -> dict[str, Any]:
    """Return a model's state in arrays of its own."""
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def raiser(error: BaseException) -> Callable[..., Any]:
    """Return a function that raises."""

    def raises(*_: Any) -> Any:
        raise error

    return raises


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add no noise, so that what is computed can be compared."""
    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)


class Seen(nn.Linear):
    """Adds up in a buffer what it has seen, and says more the more that is."""

    def __init__(self, *, persistent: bool = True) -> None:
        super().__init__(2, 1)
        self.register_buffer("seen", torch.zeros(1), persistent=persistent)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.seen += x[:, 0].sum()
        return super().forward(x) + self.seen

"""What a step of private training costs, beside Opacus's hooks and its ghost clipping.

    python benchmarks/dpsgd_steps.py --output benchmarks/results/dpsgd_steps.json

A step is the sum of 24 examples' clipped gradients, the noise, and an SGD step. Compared on one
thread, in alternation within one process, each first in its turn:

* **own**: this package. Each row is a pass by itself and the sum is exact. Noise is exact and from
  a cryptographic source. A pass on the public row is included.
* **hooks**: Opacus's ``GradSampleModule`` and ``DPOptimizer``.
* **ghost**: Opacus's fast gradient clipping with ghost norms.
* **plain**: the batch, without privacy.

Opacus gets its batch stacked beforehand. Its sum is of floats and its noise is ``torch.normal``'s.
With ``max_rows`` 8 an example has 8 rows. Opacus then has 192 examples of one row each, which is
another claim: it clips each row and protects a row, not a patient.

Then each part of the own step by itself, and memory: in a fresh process, the highest resident
memory of two steps above model and rows, a weight. The weights that an optimizer moves are in it.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import _options as options
import torch
import typer
from _environment import report
from _runs import elsewhere, say
from _timing import alternated, clocked
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.version import __version__ as opacus_version
from torch import nn
from torch.nn import functional

from flower_ldp.clients.permit import GrantedRound
from flower_ldp.clients.session import TrainingSession
from flower_ldp.isolation import IsolatedPasses, Tensors
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.training import supervised
from flower_ldp.training.gradients import ClippedSum, RowModel, StepSum, length, noised_whole
from flower_ldp.training.private import _Training
from flower_ldp.training.rows import Rows

Found = dict[str, Any]

CLIP, NOISE, RATE = 1.0, 1.0, 0.1
#: Bytes a weight of a step, above the model, its optimizer's state and the rows.
MEMORY = 24.0


class Net(nn.Module):
    """The network of Flower's ``quickstart-pytorch``, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 6, 5), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ten outputs for an image of 3 x 32 x 32."""
        x = self.pool(functional.relu(self.conv1(x)))
        x = self.pool(functional.relu(self.conv2(x))).view(-1, 400)
        found: torch.Tensor = self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))
        return found


def perceptron(*widths: int) -> nn.Module:
    """Return a network of linear layers for 784 numbers and ten classes."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((784, *widths)):
        layers += nn.Linear(inputs, outputs), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


@dataclass(frozen=True)
class Case:
    """A model, and at most what its step may cost, in steps of Opacus's hooks."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (784,)
    goal: float | None = None
    classes: int = 10


CASES = {
    "linear": Case(lambda: nn.Linear(784, 10)),
    "quickstart-pytorch": Case(Net, (3, 32, 32), 1.5),
    "784-160-50-10": Case(lambda: perceptron(160, 50), goal=0.8),
    "784-1000-256-10": Case(lambda: perceptron(1_000, 256), goal=0.5),
}


def size(model: nn.Module) -> int:
    """Return the number of weights."""
    return sum(p.numel() for p in model.parameters())


def descent(weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.01)


class Own:
    """Steps of this package, by its own loop over a round."""

    def __init__(
        self,
        case: Case,
        examples: int,
        max_rows: int,
        steps: int = 1,
        before: Callable[[], object] = lambda: None,
    ) -> None:
        rows = examples * max_rows
        features, targets = batch(case, rows)
        self.examples = [list(range(i, rows, examples)) for i in range(examples)]
        model = case.make()
        plan = TrainingPlan(1, steps, RATE, NOISE, epsilon=1.0, delta=1e-5, clip=CLIP)
        sent = {name: one.numpy() for name, one in model.state_dict().items()}
        session = TrainingSession(GrantedRound(plan, round(examples / RATE), "patient"), sent)
        self.training = _Training(session, model, self._optimizer)
        self.rows = Rows(
            list(zip(features, targets, strict=True)),
            (torch.zeros(case.shape), torch.tensor(0)),
        )
        before()
        self.asked = RowModel(
            model,
            supervised(functional.cross_entropy),
            self.rows,
            self.training.fixed,
            self.training.learning,
        )
        self.asked.check(self.training.first())
        self.sum = StepSum(self.asked, CLIP, self.training.unit)
        self.rng = RandomSource.from_os()
        self.began: list[float] = []
        self.ended: list[float] = []

    def _optimizer(self, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
        made = descent(weights)
        made.register_step_post_hook(lambda *_: self.ended.append(time.process_time()))
        return made

    def _summed(self, weights: Tensors) -> torch.Tensor:
        self.began.append(time.process_time())
        return self.sum(weights, self.examples)

    def __call__(self) -> float:
        """Take a round's steps and return the seconds of the last: copies of a round are none's."""
        self.began, self.ended = [], []
        self.training.run(self._summed, self.rng)
        return self.ended[-1] - self.began[-1]


def batch(case: Case, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, *case.shape), torch.randint(case.classes, (rows,))


def other(way: str, case: Case, rows: int) -> Callable[[], float]:
    """Return what takes a step of Opacus's, or of none, and returns its seconds."""
    features, targets = batch(case, rows)
    model = case.make()
    optimizer: Any = descent(list(model.parameters()))
    measure: Any = functional.cross_entropy
    terms = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "expected_batch_size": rows}
    if way == "hooks":
        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, **terms)
    elif way == "ghost":
        model = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP)
        optimizer = DPOptimizerFastGradientClipping(optimizer, **terms)
        measure = DPLossFastGradientClipping(model, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        measure(model(features), targets).backward()
        optimizer.step()

    return timed(step)


WAYS = ("own", "hooks", "ghost", "plain")


def way_of(way: str, case: Case, examples: int, max_rows: int) -> Callable[[], float]:
    return Own(case, examples, max_rows) if way == "own" else other(way, case, examples * max_rows)


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Return the median and the least."""
    return {"median": 1e3 * statistics.median(values), "least": 1e3 * min(values)}


def in_turn(calls: dict[str, Callable[[], float]], repeats: int) -> dict[str, Found]:
    """Call all in turn and return milliseconds of each; two turns warm up."""
    found = alternated(calls, repeats, warm_up=2)
    return {name: milliseconds(values) for name, values in found.items()}


def steps(name: str, examples: int, max_rows: int, repeats: int) -> Found:
    """Time steps of all ways."""
    case = CASES[name]
    found = in_turn({w: way_of(w, case, examples, max_rows) for w in WAYS}, repeats)
    ratios = {
        f"own_over_{way}": {at: found["own"][at] / found[way][at] for at in ("median", "least")}
        for way in WAYS[1:]
    }
    return {
        "model": name,
        "weights": size(case.make()),
        "examples": examples,
        "max_rows": max_rows,
        "goal": case.goal,
        "milliseconds": found,
        **ratios,
    }


def parts(name: str, examples: int, repeats: int) -> Found:
    """Time what the own step is made of, for examples of one row."""
    own, model = Own(CASES[name], examples, 1), CASES[name].make()
    weights, count = own.training.first(), size(model)
    features, target = (one[None] for one in own.rows.read(0))
    clipped = ClippedSum(count, CLIP, own.training.unit)
    passes, bare = own.asked.passes(), IsolatedPasses(nn.Identity())
    optimizer = descent(list(model.parameters()))

    def alone() -> object:
        value = functional.cross_entropy(model(features), target)
        return torch.autograd.grad(value, list(model.parameters()))

    # The step's own passes may not be inside of others that hold the same model.
    total = own.sum(weights, own.examples)
    outside = in_turn(
        {
            "own": own,
            "public": timed(lambda: own.sum(weights, [])),
            "noise": timed(lambda: noised_whole(total, own.training.unit, own.rng)),
        },
        repeats,
    )
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with bare, passes:
        found = own.asked.row(passes, weights, 0)
        if found is None:
            raise RuntimeError("the row fails")
        gradient = found.clone()
        inside = in_turn(
            {
                "settings": timed(bare.begin),
                "begin": timed(lambda: passes.begin(weights)),
                "row": timed(lambda: own.asked.row(passes, weights, 0)),
                "alone": timed(alone),
                "length": timed(lambda: length(gradient)),
                "add": timed(lambda: clipped.add(gradient)),
                "optimizer": timed(optimizer.step),
            },
            10 * repeats,
        )
    taken = {key: one["least"] for key, one in (outside | inside).items()}
    made = {
        "settings and generators set": examples * taken["settings"],
        "copies of the weights": examples * (taken["begin"] - taken["settings"]),
        "forward and backward": examples * taken["alone"],
        "row read, one vector made": examples * (taken["row"] - taken["begin"] - taken["alone"]),
        "length": examples * taken["length"],
        "clipping, exact sum": examples * (taken["add"] - taken["length"]),
        "public row, settings put back": taken["public"],
        "noise": taken["noise"],
        "optimizer": taken["optimizer"],
    }
    whole = taken["own"]
    made["what is left"] = whole - sum(made.values())
    return {"model": name, "weights": count, "step": whole, "least_milliseconds": made}


def timed(call: Callable[[], object]) -> Callable[[], float]:
    return lambda: clocked(call)().cpu


def _resident(name: str) -> int:
    """Return a line of this process's memory, in bytes."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{name}:")[2].split()[0])


def memory(way: str, width: int, examples: int, max_rows: int) -> Found:
    """Return the memory of two steps, in a process of its own."""
    case = Case(lambda: perceptron(width, width))
    peak, weights = peak_of(way, case, examples, max_rows), size(case.make())
    return {
        "way": way,
        "weights": weights,
        "examples": examples,
        "max_rows": max_rows,
        "bytes": peak,
        "bytes_a_weight": peak / weights,
    }


def peak_of(way: str, case: Case, examples: int, max_rows: int) -> int:
    """Take two steps; return the highest memory meanwhile in bytes, above that before."""
    warnings.simplefilter("ignore")  # of Opacus's hooks
    torch.set_num_threads(1)
    way_of(way, CASES["linear"], 2, 1)()  # what libraries keep for themselves
    before: list[int] = []

    def mark() -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the highest begins anew
        before.append(_resident("VmRSS"))

    if way == "own":
        Own(case, examples, max_rows, steps=2, before=mark)()
    else:
        step = other(way, case, examples * max_rows)
        mark()
        step()
        step()
    return _resident("VmHWM") - before[0]


def missed(body: Found) -> list[str]:
    """Return the goals that were measured and not met."""
    ratio = [
        f"{one['model']}, max_rows {one['max_rows']}: {one['own_over_hooks']['median']:.2f} times "
        f"the hooks ({one['own_over_hooks']['least']:.2f} of the fastest), the goal is "
        f"{one['goal']}"
        for one in body["steps"]
        if one["goal"] is not None and one["own_over_hooks"]["median"] > one["goal"]
    ]
    much = [
        f"{one['examples']} examples, max_rows {one['max_rows']}: {one['bytes_a_weight']:.1f} "
        f"bytes a weight, the goal is {MEMORY:.0f}"
        for one in body["memory"]
        if one["way"] == "own" and one["bytes_a_weight"] > MEMORY
    ]
    return ratio + much


def show(body: Found) -> None:
    """Print what was measured."""
    for one in (*body["steps"], *body["parts"], *body["memory"]):
        say(one)
    for line in body["missed"]:
        print(f"MISSED {line}")


def main(
    model: Annotated[list[str] | None, typer.Option(help="Models, by name; repeatable.")] = None,
    max_rows: Annotated[list[int] | None, typer.Option(help="Repeatable; 1 and 8.")] = None,
    examples: Annotated[int, typer.Option(min=1, help="Of a step.")] = 24,
    repeats: Annotated[int, typer.Option(min=1, help="Steps of each way.")] = 40,
    width: Annotated[int, typer.Option(min=1, help="Of the model for memory.")] = 2_800,
    many: Annotated[int, typer.Option(min=1, help="Examples for memory, beside those.")] = 2_400,
    output: options.Report = None,
) -> None:
    """Measure steps, parts and memory; exit status 1 if a goal is missed."""
    warnings.simplefilter("ignore")  # of Opacus's hooks
    torch.set_num_threads(1)
    names = model or list(CASES)
    kept = [("own", examples, 1), ("own", many, 1), ("own", examples, 8)]
    kept += [(way, examples, 1) for way in WAYS[1:]]
    body: Found = {
        "torch": torch.__version__,
        "opacus": opacus_version,
        "threads": 1,
        "repeats": repeats,
        "steps": [
            steps(name, examples, rows, repeats) for name in names for rows in max_rows or [1, 8]
        ],
        "parts": [parts(name, examples, repeats) for name in names],
        "memory": [elsewhere(memory, way, width, *size) for way, *size in kept],
    }
    body["missed"] = missed(body)
    show(body)
    report(output, body)
    raise typer.Exit(int(bool(body["missed"])))


if __name__ == "__main__":
    typer.run(main)

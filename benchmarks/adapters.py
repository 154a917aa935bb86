"""Adapters of a vision transformer, trained privately by five sites on digits it has not seen.

A vision transformer of 5.4 million weights (``_vision_transformer.py``) learns MNIST's digits 0 to
4, which are public. Five sites hold the images of 5 to 9, one image a person. They train peft's
LoRA adapters of attention and a new head of five classes through gate, policy, plan and ledger,
under Flower's FedAvg (``_sites.py``). Messages and ledgers have the adapters alone. The ways:

``start``           the public model with a head of zeros
``head, plain``     a new head alone, without noise
``adapters, plain`` adapters and head, without noise
``head, 8``         the head alone, by DP-SGD at an epsilon of 8 and a delta of 1e-5 for a person
``adapters, 8``     adapters and head, by the same plan

Without noise means an epoch over the pooled images of all sites, AdamW and batches of 64. Its rate,
and the private learning rates, were chosen on a tenth of the training images. For the private ways
this was done in batches (``noisy``): a step of all sites together, with the noise that their mean
has. Sites, noise and sampling have seeds there; the gate's noise is the operating system's.

The gain is the accuracy above ``start``. The goal is 75 % of the gain of ``adapters, plain``.
**Costs** are of a step of 24 images, as in ``dpsgd_steps.py``: this package row by row, Opacus's
hooks and ghost clipping, and the batch without privacy, all with the same adapters and one thread.
Memory is above the model's, in a process of its own.

**Text** (``_text_adapters.py``) is arithmetic: passes of a model of GPT-2's shape with random
weights, and what five sites with WikiText-2's windows of 128 tokens would need.

Choices and runs that the results file has are not made again. ``--base`` keeps the public model.

    pip install -e '.[benchmarks,adapters]'
    python benchmarks/adapters.py mnist.npz --base vit.pt
"""

from __future__ import annotations

import logging
import statistics
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import torch
import typer
from _images import Split, read
from _large_models import pixels
from _networks import batches, descend, outputs
from _runs import Run, Runs, deviation, elsewhere, groups, like
from _sites import Plan, Sites, run
from _text_adapters import arithmetic
from _vision_transformer import CLASSES, VisionTransformer, adapted, public_model, size
from dpsgd_steps import WAYS, Case, in_turn, peak_of, way_of
from opacus.version import __version__ as opacus_version
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from flower_ldp.accounting.dpsgd import noise_multiplier

SITES, DELTA, GOAL = 5, 1e-5, 0.75
#: Of the private ways; the learning rate is chosen.
PLAN = Plan(epsilon=8.0, rounds=10, steps=1, rate=0.02, learning_rate=0.0)
RATES = {"adapters": (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), "head": (1.0, 2.0, 4.0, 8.0, 16.0)}
#: Rates without noise, of one epoch.
PLAIN = {"adapters": (1e-3, 3e-3, 1e-2), "head": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)}
_BATCH, _CHOICE = 64, 100
#: Of a step whose cost is measured, and how often.
EXAMPLES, REPEATS = 24, 20


class Task:
    """Images of the digits 5 to 9, and the public model of the others."""

    def __init__(self, mnist: Path, base: Path) -> None:
        self._raw, self._kept = read(mnist), base
        public, _ = self._digits(self._raw, unseen=False)
        self._state = public_model(*public, base).state_dict()

    @staticmethod
    def _digits(split: Split, *, unseen: bool) -> list[tuple[Tensor, Tensor]]:
        found = []
        for x, y in ((split.x, split.y), (split.held_x, split.held_y)):
            mine = (y >= 5) == unseen
            found.append((pixels(x[mine])[:, 0], torch.from_numpy(y[mine] - 5 * unseen)))
        return found

    def images(self, evaluate_on: str) -> list[tuple[Tensor, Tensor]]:
        """Return what is trained on and what is held out, as images and classes 0 to 4."""
        return self._digits(self._raw.evaluated_on(evaluate_on), unseen=True)

    def model(self, part: str) -> Any:
        """Return the public model with what learns of it."""
        model = VisionTransformer()
        model.load_state_dict(self._state)
        return adapted(model, head_alone=part == "head")

    def sites(self, part: str, seed: int) -> Sites:
        """Return five sites with equally many images, divided at random."""
        (x, y), held = self.images("test")
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(y)))
        parts = order[: len(y) // SITES * SITES].reshape(SITES, -1)
        return Sites(
            rows=[list(zip(x[mine], y[mine], strict=True)) for mine in parts],
            held=held,
            like=(torch.zeros(28, 28), torch.tensor(0)),
            model=lambda: self.model(part),
            loss=cross_entropy,
            right=lambda output, target: output.argmax(dim=1) == target,
            optimizer=lambda weights, rate, _: torch.optim.SGD(weights, lr=rate),
            public_base=True,
        )

    def plain(self, part: str, settings: Run, evaluate_on: str, seed: int) -> Run:
        """Train without noise."""
        rate = settings["rate"]
        (x, y), held = self.images(evaluate_on)
        model = self.model(part)
        torch.manual_seed(seed)
        learning = [p for p in model.parameters() if p.requires_grad]
        rows = list(batches(len(y), _BATCH, 1, whole=True))
        optimizer = torch.optim.AdamW(learning, lr=rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=len(rows))
        descend(optimizer, rows, lambda at: cross_entropy(model(x[at]), y[at]), schedule)
        return {"accuracy": accuracy(model, held)}

    def noisy(self, part: str, settings: Run, evaluate_on: str, seed: int) -> Run:
        """Take noisy steps of all sites together, in batches."""
        plan = replace(PLAN, **settings)
        (x, y), held = self.images(evaluate_on)
        model = self.model(part)
        weights = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

        def loss(now: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
            return cross_entropy(functional_call(model, now, (image[None],)), label[None])

        slopes, steps = vmap(grad(loss), in_dims=(None, 0, 0)), plan.rounds * plan.steps
        noise = noise_multiplier(plan.epsilon, DELTA, sample_rate=plan.rate, steps=steps)
        noise *= SITES**0.5
        chance, mean = torch.Generator().manual_seed(seed), plan.rate * len(y)
        for _ in range(steps):
            drawn = torch.rand(len(y), generator=chance) < plan.rate
            found = slopes(weights, x[drawn], y[drawn])
            norms = torch.cat([one.flatten(1) for one in found.values()], dim=1).norm(dim=1)
            factors = (1 / norms).clamp(max=1.0)
            for name, one in found.items():
                total = torch.einsum("n,n...->...", factors, one)
                total += noise * torch.randn(total.shape, generator=chance)
                weights[name] = weights[name] - plan.learning_rate / mean * total
        model.load_state_dict(weights, strict=False)
        return {"accuracy": accuracy(model, held)}

    def private(self, part: str, plan: Plan, seed: int) -> Run:
        """Train through the gate."""
        return run(self.sites(part, seed), plan)


def accuracy(model: nn.Module, held: tuple[Tensor, Tensor]) -> float:
    """Return the share of right classes."""
    return float((outputs(model, held[0]).argmax(dim=1) == held[1]).double().mean())


def chosen(
    runs: Runs, of: str, settings: list[Run], measure: Callable[[Run, str, int], Run]
) -> Run:
    """Return the settings with the best accuracy on held-out training images."""
    found = [
        runs.make({"choice": of, **one}, partial(measure, one, "validation", _CHOICE))
        for one in settings
    ]
    best = max(found, key=lambda one: float(one["accuracy"]))
    return {name: best[name] for name in settings[0]}


def case_of(base: Path) -> Case:
    """Return the adapted model for steps of random images."""

    def make() -> Any:
        model = VisionTransformer()
        model.load_state_dict(torch.load(base))
        return adapted(model)

    return Case(make, (28, 28), classes=CLASSES)


def peak(way: str, base: Path) -> int:
    """Return the memory of two steps in bytes, in a process of its own."""
    return peak_of(way, case_of(base), EXAMPLES, 1)


def cost(base: Path) -> Run:
    """Time steps of all ways in turn, and measure their memory."""
    warnings.simplefilter("ignore")  # of Opacus's hooks
    case = case_of(base)
    times = in_turn({way: way_of(way, case, EXAMPLES, 1) for way in WAYS}, REPEATS)
    memory = {way: elsewhere(peak, way, base) for way in WAYS}
    return {"milliseconds": times, "bytes": memory, "opacus": opacus_version}


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread of each way, and its share of the gain without noise."""
    found = []
    for same in groups([one for one in runs if "way" in one], lambda run: run["way"]):
        scores = [run["accuracy"] for run in same]
        row: Run = {"way": same[0]["way"], "accuracy": round(statistics.mean(scores), 4)}
        found.append(row | {"deviation": deviation(scores), "seeds": len(same)})
    (start,), plain = like(found, way="start"), like(found, way="adapters, plain")
    for row in found if plain else []:
        gain = plain[0]["accuracy"] - start["accuracy"]
        row["share_of_gain"] = round((row["accuracy"] - start["accuracy"]) / gain, 4)
        row["goal"] = GOAL if row["way"] == "adapters, 8" else None
    return found


def main(
    mnist: options.Mnist,
    base: Annotated[Path, typer.Option(help="Where the public model is kept.")],
    seeds: options.Seeds = 3,
    only: options.Only = None,
    output: options.Output = options.RESULTS / "adapters.json",
) -> None:
    """Choose settings, train each way with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    task = Task(mnist, base)
    model = task.model("adapters")
    runs = Runs(
        output,
        summary,
        weights=size(model),
        learning={part: size(task.model(part), learning=True) for part in RATES},
        plan={**asdict(PLAN), "learning_rate": "chosen"},
    )
    runs.make({"way": "start"}, lambda: {"accuracy": accuracy(model, task.images("test")[1])})
    for part, rates in RATES.items():
        if only and part not in only:
            continue
        plain = chosen(
            runs,
            f"{part}, plain",
            [{"rate": rate} for rate in PLAIN[part]],
            partial(task.plain, part),
        )
        for seed in range(1, seeds + 1):
            wanted = {"way": f"{part}, plain", "seed": seed, **plain}
            runs.make(wanted, partial(task.plain, part, plain, "test", seed))
        rate = chosen(
            runs,
            f"{part}, 8",
            [{"learning_rate": rate} for rate in rates],
            partial(task.noisy, part),
        )
        plan = replace(PLAN, **rate)
        for seed in range(1, seeds + 1):
            wanted = {"way": f"{part}, 8", "seed": seed, "plan": asdict(plan)}
            runs.make(wanted, partial(task.private, part, plan, seed))
    if not only or "cost" in only:
        runs.make({"cost_of": "a step", "examples": EXAMPLES}, partial(cost, base))
    if not only or "text" in only:
        runs.make({"cost_of": "a window of text"}, arithmetic)
    runs.show()


if __name__ == "__main__":
    typer.run(main)

"""Verdicts of the outlook on private trainings, beside what the trainings learned.

    python benchmarks/dpsgd_outlook.py mnist.npz cifar10-features.npz \
        --output benchmarks/results/dpsgd_outlook.json

Twelve models and settings, some of which can learn and some of which cannot. Each has public rows,
which scale the features and whose gradients' agreement is measured, and sites with private rows.
The sites train by ``private_training``, and their models are averaged each round. The learning rate
is chosen on a tenth of the private rows, by three seeds of its own. Then three further seeds draw
rows, weights and noise anew, and the model is tested on up to 2,000 other rows.

**Right verdicts.** A good run beats a constant predictor by ten points of accuracy, or halves its
squared error, in the mean over seeds. A hopeless run does not. The four cases that are ``held
out`` were trained only after the rule was fixed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import torch
import typer
from _environment import report
from flwr.app import Context, RecordDict
from sklearn import datasets
from torch import nn
from torch.nn import functional

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.clients.permit import GrantedRound
from flower_ldp.clients.session import TrainingSession, in_session
from flower_ldp.mechanisms import TrainingOutlook, TrainingPlan
from flower_ldp.privacy import rounded_up
from flower_ldp.training import private_training, public_agreement, supervised

DELTA, ROUNDS, STEPS, TEST = 1e-5, 4, 5, 2_000
RATES = (0.03, 0.1, 0.3, 1.0)
CHOICES = (101, 102, 103)
#: Public ranges that features are divided by. Others are standardized by the public rows.
RANGES = {"digits": np.float32(16), "mnist": np.float32(255), "cifar": np.float32(1)}
Data = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def linear(inputs: int, outputs: int) -> nn.Module:
    """Return a linear model of zeros."""
    model = nn.Linear(inputs, outputs)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def perceptron(inputs: int, outputs: int) -> nn.Module:
    """Return a network with 64 hidden units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs))


def convolutions(inputs: int, outputs: int) -> nn.Module:
    """Return a network of two convolutions and a linear layer, for images of 28 by 28."""
    first = nn.Unflatten(-1, (1, 28, 28)), nn.Conv2d(1, 8, 5, 2), nn.ReLU()
    return nn.Sequential(
        *first, nn.Conv2d(8, 16, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(256, outputs)
    )


@dataclass(frozen=True)
class Case:
    """A model, and the numbers of a plan."""

    data: str
    model: Callable[[int, int], nn.Module]
    examples: int
    epsilon: float
    rate: float
    sites: int = 1
    public: int = 100
    held_out: bool = False


CASES = {
    "digits, linear": Case("digits", linear, 1_300, 1.0, 0.1),
    "breast cancer, linear": Case("breast_cancer", linear, 200, 1.0, 0.2, sites=2),
    "tumour radius, linear": Case("radius", linear, 400, 0.5, 0.2),
    "CIFAR-10 features, linear": Case("cifar", linear, 1_000, 1.0, 0.1, sites=5),
    "MNIST, convolutions": Case("mnist", convolutions, 2_000, 2.0, 0.05, 5, held_out=True),
    "digits, few rows, linear": Case("digits", linear, 300, 1.0, 0.2),
    "breast cancer, few rows, 64 hidden": Case(
        "breast_cancer", perceptron, 100, 0.1, 0.3, held_out=True
    ),
    "digits, 64 hidden": Case("digits", perceptron, 100, 0.3, 0.3),
    "wine, linear": Case("wine", linear, 90, 0.03, 0.3, public=40),
    "diabetes, linear": Case("diabetes", linear, 300, 0.03, 0.2),
    "CIFAR-10 features, 64 hidden": Case("cifar", perceptron, 100, 0.5, 0.3, held_out=True),
    "MNIST, 64 hidden": Case("mnist", perceptron, 100, 0.5, 0.3, held_out=True),
}


def loaded(name: str, mnist: Path, cifar: Path) -> Data:
    """Return features and targets."""
    if name in ("mnist", "cifar"):
        with np.load(mnist if name == "mnist" else cifar) as found:
            x, y = found["x_train"], found["y_train"]
        return x.reshape(len(x), -1).astype(np.float32), y.astype(np.int64)
    source = "breast_cancer" if name == "radius" else name
    found = getattr(datasets, f"load_{source}")()
    x, y = found.data.astype(np.float32), found.target
    if name == "radius":  # the worst radius, without radii, perimeters and areas
        sizes = [i for i, one in enumerate(found.feature_names) if _is_size(one)]
        return np.delete(x, sizes, axis=1), x[:, 20]
    return x, y.astype(np.float32 if name == "diabetes" else np.int64)


def _is_size(name: str) -> bool:
    return any(word in name for word in ("radius", "perimeter", "area"))


class Run:
    """Rows of a seed, and trainings on them."""

    def __init__(self, case: Case, plan: TrainingPlan, data: Data, seed: int) -> None:
        torch.manual_seed(seed)
        x, y = data
        order = np.random.default_rng(seed).permutation(len(x))
        private = case.public + case.examples * case.sites
        x, y = x[order[: private + TEST]], y[order[: private + TEST]]
        known = slice(case.public)
        if case.data in RANGES:
            self.x = torch.from_numpy(x / RANGES[case.data])
        else:
            self.x = torch.from_numpy((x - x[known].mean(axis=0)) / x[known].std(axis=0))
        self.is_number = y.dtype == np.float32
        self.classes = 2 if self.is_number else len(np.unique(data[1]))
        if self.is_number:
            y = (y - y[known].mean()) / y[known].std()
        self.y = torch.from_numpy(y)
        self.case, self.plan, self._private = case, plan, private
        self.start = case.model(x.shape[1], 1 if self.is_number else self.classes)
        self.loss = supervised(self._squares if self.is_number else functional.cross_entropy)

    @staticmethod
    def _squares(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.mse_loss(output[:, 0], target)

    def rows(self, start: int, end: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return rows of features and a target."""
        return list(zip(self.x[start:end], self.y[start:end], strict=True))

    @property
    def agreement(self) -> float:
        """Of the public rows."""
        return public_agreement(self.start, self.rows(0, self.case.public), self.loss)

    def trained(self, rate: float, share: float = 1.0) -> nn.Module:
        """Return the model after all rounds, of a share of each site's rows."""
        case, size = self.case, self.case.examples
        model = case.model(self.x.shape[1], 1 if self.is_number else self.classes)
        state = {k: v.numpy().copy() for k, v in self.start.state_dict().items()}
        used = round(share * size)
        for _ in range(self.plan.rounds):
            found = []
            for begin in range(case.public, self._private, size):
                session = TrainingSession(GrantedRound(self.plan, used, "row"), state)
                with in_session(session):
                    private_training(
                        Context(1, 1, {}, RecordDict(), {}),
                        model,
                        self.rows(begin, begin + used),
                        self.loss,
                        optimizer=lambda weights: torch.optim.SGD(weights, lr=rate),
                        like=self.rows(0, 1)[0],
                    )
                found.append(session.trained or {})
            state = {k: np.mean([one[k] for one in found], axis=0, dtype=np.float32) for k in state}
        model.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
        return model

    def held_gain(self, rate: float) -> float:
        """Return the gain on a tenth of the private rows, of a training on the others."""
        size, first = self.case.examples, self.case.public
        held = [
            row
            for begin in range(first, self._private, size)
            for row in range(begin + round(0.9 * size), begin + size)
        ]
        return self.gain(self.trained(rate, 0.9), held)

    def gain(self, model: nn.Module, where: list[int] | slice) -> float:
        """Return points beyond a constant predictor, or its squared error's share that is gone.

        The constant is the private rows' most frequent class, or mean.
        """
        with torch.no_grad():
            output, target = model(self.x[where]), self.y[where]
        known = self.y[self.case.public : self._private]
        if self.is_number:
            errors = [((one - target) ** 2).mean() for one in (output[:, 0], known.mean())]
            return float(1.0 - errors[0] / errors[1])
        right = (output.argmax(dim=1) == target).float().mean()
        return 100.0 * float(right - (known.mode().values == target).float().mean())


def measured(case: Case, data: Data, seeds: int) -> dict[str, Any]:
    """Return verdicts, and what was learned."""
    taken = ROUNDS * STEPS
    noise = noise_multiplier(case.epsilon, DELTA, sample_rate=case.rate, steps=taken)
    noise = rounded_up(noise, 4)
    plan = TrainingPlan(ROUNDS, STEPS, case.rate, noise, case.epsilon, DELTA)
    choices = [Run(case, plan, data, seed) for seed in CHOICES]
    rate = max(RATES, key=lambda one: statistics.mean(run.held_gain(one) for run in choices))
    gains, ratios = [], []
    for seed in range(1, seeds + 1):
        run = Run(case, plan, data, seed)
        ratios.append(run.agreement)
        gains.append(run.gain(run.trained(rate), slice(run._private, None)))
    known = (plan, case.examples, case.sites, run.classes)
    alone, by_rows = TrainingOutlook(*known), [TrainingOutlook(*known, one) for one in ratios]
    middle = by_rows[0] if len(by_rows) == 1 else TrainingOutlook(*known, statistics.mean(ratios))
    mean = statistics.mean(gains)
    learned = mean >= (0.5 if run.is_number else 10.0)
    return {
        "weights": sum(p.numel() for p in run.start.parameters()),
        "examples": case.examples,
        "sites": case.sites,
        "epsilon": case.epsilon,
        "rate": case.rate,
        "noise": noise,
        "held_out": case.held_out,
        "learning_rate": rate,
        "agreement": ratios,
        "signal_to_noise": middle.ratios[0],
        "verdict": middle.verdict.value,
        "verdicts": [one.verdict.value for one in by_rows],
        "verdict_by_numbers": alone.verdict.value,
        "measure": "share of squared error gone" if run.is_number else "points above constant",
        "gains": gains,
        "gain": mean,
        "learned": learned,
        "wrong": middle.verdict.value == ("hopeless" if learned else "good"),
        "wrong_by_numbers": alone.verdict.value == ("hopeless" if learned else "good"),
    }


def main(
    mnist: options.Mnist,
    cifar: Annotated[Path, typer.Argument(exists=True, help="npz file of CIFAR-10's features.")],
    seeds: options.Seeds = 3,
    only: options.Only = None,
    output: options.Report = None,
) -> None:
    """Compare verdicts with runs."""
    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        row = found[name] = measured(case, loaded(case.data, mnist, cifar), seeds)
        print(
            f"{name:36} {row['verdict']:9} by numbers {row['verdict_by_numbers']:9} z "
            f"{row['signal_to_noise']:.2f} gain {row['gain']:.2f} {np.round(row['gains'], 2)} lr "
            f"{row['learning_rate']} {'WRONG' if row['wrong'] or row['wrong_by_numbers'] else ''} "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        report(output, {"seeds": seeds, "cases": found})
    verdicts = [row["verdict"] for row in found.values()]
    print(f"uncertain: {verdicts.count('uncertain')} of {len(found)}")


if __name__ == "__main__":
    typer.run(main)

"""Clipping of DP-SGD at small epsilon: automatic, of fixed length, and of a length that is learned.

``cancer``    455 rows of training, a linear layer over 30 features
``diabetes``  354 rows, a continuous target in [-1, 1], a linear layer over 10 features
``digits``    1,438 images, 32 hidden units
``mnist``     3,000 images at half their resolution, 32 hidden units
``cifar``     3,000 rows, a linear layer over 256 features of a public trunk

One site takes 100 noisy steps, each of a row with probability 0.1, at a delta of 1e-5 for one row
replaced. The ways to clip, of which each has its own learning rate:

* ``automatic``: g / (|g| + 0.01), the package's default;
* ``fixed``: to the best of five lengths;
* ``a tenth``, ``ten times``, ``hundred times``: to another length than that, by this factor;
* ``learned``: to a length that follows the median (Andrew, Thakkar, McMahan and Ramaswamy 2021).

**The learned length** starts at 1. A row adds (c(g)/C, (bit - 1/2)/s), where the bit says whether
its gradient is at most C long. Two such vectors differ by at most 2 sqrt(1 + 1/(4 s^2)), which
replaces the 2 of c(g)/C. After each step C is multiplied by exp(-0.2 (share - 1/2)), by the noisy
share of bits. s = 2, for which the noise of the gradient is 3.1 % larger.

Learning rate and length are chosen on a tenth of the training rows, for each data set, epsilon and
way, by ten seeds of their own, or five of images. The learning rates are multiples of 1 / C, so
that all ways try steps of the same length. Steps are taken in numpy, without gate and ledger. The
rule of clipping and the noise multiplier are the package's; the noise is a seeded generator's.
Settings and runs that are in the results file are not made again.

    python benchmarks/clipping.py mnist.npz cifar10-features.npz
"""

from __future__ import annotations

import itertools
import math
import statistics
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import _options as options
import numpy as np
import typer
from _runs import Run, Runs, deviation, groups, like
from few_sites_estimators import loaded
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.datasets import load_digits

from flower_ldp.accounting.dpsgd import noise_multiplier
from flower_ldp.training.gradients import clipping_factor

DELTA, RATE, STEPS = 1e-5, 0.1, 100
EPSILONS = (1.0, 2.0)
#: Lengths of a gradient, and of a step in units of clipped gradients.
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0)
LENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: Of the learned length: the bits' divisor s, and the speed.
DIVISOR, SPEED = 2.0, 0.2
WAYS = ("automatic", "fixed", "a tenth", "ten times", "hundred times", "learned")
#: Of the best length.
FACTORS = {"a tenth": 0.1, "ten times": 10.0, "hundred times": 100.0}
#: Hidden units; 0 of a linear layer.
HIDDEN = {"cancer": 0, "diabetes": 0, "digits": 32, "mnist": 32, "cifar": 0}
#: Rows of the images' data sets, which have five seeds to choose by; others have ten.
IMAGES = 3_000
CHOICES = {name: range(101, 106 if name in ("mnist", "cifar") else 111) for name in HIDDEN}
KEY = ("data", "epsilon", "way")
Floats = NDArray[np.float64]
#: Features, and targets of shape (rows, outputs): one-hot, or a number.
Rows = tuple[Floats, Floats]


class Clipping:
    """Factors of a step's gradients, and the noise of their sum.

    Parameters
    ----------
    clip : float or None
        Length; where it is learned, the first. None for automatic clipping.
    is_learned : bool
    noise : float
        Multiplier of the plan.
    """

    def __init__(self, clip: float | None, is_learned: bool, noise: float) -> None:
        self._clip, self._is_learned = clip, is_learned
        self._noise = noise * math.sqrt(1 + 1 / (4 * DIVISOR**2)) if is_learned else noise

    def step(self, norms: Floats, size: float, rng: np.random.Generator) -> tuple[Floats, float]:
        """Return factors of gradients of these lengths, and the deviation of their sum's noise.

        ``size`` is the mean number of rows in a step.
        """
        norms = np.maximum(norms, 1e-150)  # a zero gradient stays zero by any factor
        factors = np.array([clipping_factor(norm, self._clip) for norm in norms.tolist()])
        noise = self._noise * (1.0 if self._clip is None else self._clip)
        if self._clip is not None and self._is_learned:
            bits = float(np.sum((norms <= self._clip) - 0.5))
            share = 0.5 + (bits + DIVISOR * self._noise * rng.standard_normal()) / size
            self._clip *= math.exp(-SPEED * (share - 0.5))
        return factors, noise


class Network:
    """A linear layer of zeros, or one above hidden units (ReLU); a constant's weights are last."""

    def __init__(self, inputs: int, hidden: int, outputs: int, rng: np.random.Generator) -> None:
        shapes = [(inputs + 1, hidden), (hidden + 1, outputs)] if hidden else []
        self.layers = [rng.standard_normal(one) / math.sqrt(one[0]) for one in shapes]
        self.layers = self.layers or [np.zeros((inputs + 1, outputs))]

    def inputs(self, x: Floats) -> list[Floats]:
        """Return the inputs of each layer, with a constant."""
        found = [with_constant(x)]
        for layer in self.layers[:-1]:
            found.append(with_constant(np.maximum(found[-1] @ layer, 0)))
        return found

    def outputs(self, x: Floats) -> Floats:
        """Return what the last layer gives."""
        return np.asarray(self.inputs(x)[-1] @ self.layers[-1])

    def parts(self, x: Floats, y: Floats) -> tuple[list[Floats], list[Floats]]:
        """Return inputs and errors of each layer: a row's gradient is their outer product."""
        inputs = self.inputs(x)
        output = inputs[-1] @ self.layers[-1]
        errors = [2 * (output - y) if y.shape[1] == 1 else softmax(output, axis=1) - y]
        for layer, found in zip(self.layers[:0:-1], inputs[:0:-1], strict=True):
            errors.append(errors[-1] @ layer[:-1].T * (found[:, :-1] > 0))
        return inputs, errors[::-1]


def with_constant(x: Floats) -> Floats:
    """Return rows with a 1 at the end."""
    return np.pad(x, ((0, 0), (0, 1)), constant_values=1.0)


def trained(rows: Rows, hidden: int, clipping: Clipping, rate: float, seed: int) -> Network:
    """Return the network after all steps."""
    rng, (x, y) = np.random.default_rng(seed), rows
    network, size = Network(x.shape[1], hidden, y.shape[1], rng), RATE * len(x)
    for _ in range(STEPS):
        drawn = rng.random(len(x)) < RATE
        pairs = list(zip(*network.parts(x[drawn], y[drawn]), strict=True))
        squares = sum((a**2).sum(axis=1) * (e**2).sum(axis=1) for a, e in pairs)
        factors, noise = clipping.step(np.sqrt(squares), size, rng)
        for layer, (a, e) in zip(network.layers, pairs, strict=True):
            total = a.T @ (factors[:, None] * e) + noise * rng.standard_normal(layer.shape)
            layer -= rate / size * total
    return network


def score(network: Network, rows: Rows) -> float:
    """Return the share of right predictions, or R2."""
    output, y = network.outputs(rows[0]), rows[1]
    if y.shape[1] == 1:
        return float(1 - np.mean((output - y) ** 2) / y.var())
    return float(np.mean(output.argmax(axis=1) == y.argmax(axis=1)))


class Trials:
    """Data sets, which are read once, and trainings on them."""

    def __init__(self, mnist: Path, cifar: Path) -> None:
        self._paths = {"mnist": mnist, "cifar": cifar}
        self._read: dict[str, Rows] = {}

    def rows(self, data: str, seed: int, evaluate_on: str) -> tuple[Rows, Rows]:
        """Return rows of training and held-out rows: a fifth, or a tenth of those of training."""
        if data not in self._read:
            self._read[data] = self._all(data)
        x, y = self._read[data]
        order = np.random.default_rng(seed).permutation(len(y))[: IMAGES * 5 // 4]
        held, rest = np.split(order, [len(order) // 5])
        if evaluate_on == "validation":
            held, rest = np.split(rest, [len(rest) // 10])
        return (x[rest], y[rest]), (x[held], y[held])

    def _all(self, data: str) -> Rows:
        if data in ("cancer", "diabetes"):
            x, y = loaded(data)
        elif data == "digits":
            x, y = load_digits(return_X_y=True)
            x = x / 16
        else:
            with np.load(self._paths[data]) as found:
                x, y = found["x_train"].astype(np.float64), found["y_train"]
            if data == "mnist":
                x = x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196) / 255
        return x, y[:, None] if data == "diabetes" else np.eye(int(y.max()) + 1)[y]

    def run(
        self, data: str, epsilon: float, way: str, pair: Run, seed: int, evaluate_on: str
    ) -> Run:
        """Train once, with the length and learning rate of ``pair``."""
        rows, held = self.rows(data, seed, evaluate_on)
        clipping = Clipping(pair["clip"], way == "learned", multiplier(epsilon))
        network = trained(rows, HIDDEN[data], clipping, pair["rate"], seed)
        return {"score": score(network, held)}

    def choose(self, data: str, epsilon: float, way: str, clips: list[float | None]) -> Run:
        """Return the length and learning rate with the best mean score on held-out rows."""
        found: list[Run] = []
        for clip, length in itertools.product(clips, LENGTHS):
            pair = {"clip": clip, "rate": length / (clip or 1.0), "length_of_step": length}
            each = [
                self.run(data, epsilon, way, pair, seed, "validation")["score"]
                for seed in CHOICES[data]
            ]
            found.append(pair | {"held_score": statistics.mean(each)})
        return max(found, key=lambda one: one["held_score"])


@cache
def multiplier(epsilon: float) -> float:
    """Return the noise of the plan."""
    return noise_multiplier(epsilon, DELTA, sample_rate=RATE, steps=STEPS)


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread of each data set, epsilon and way, with the settings chosen."""
    found = []
    for same in groups(like(runs, evaluated_on="test"), lambda run: [run[k] for k in KEY]):
        wanted = {name: same[0][name] for name in KEY}
        (chosen,) = like(runs, evaluated_on="validation", **wanted)
        scores = [run["score"] for run in same]
        row = wanted | {name: chosen[name] for name in ("clip", "rate", "length_of_step")}
        row |= {"score": round(statistics.mean(scores), 4), "seeds": len(same)}
        found.append(row | {"score_standard_deviation": deviation(scores)})
    return found


def main(
    mnist: options.Mnist,
    cifar: Annotated[Path, typer.Argument(exists=True, help="npz file of CIFAR-10's features.")],
    seeds: options.Seeds = 10,
    only: options.Only = None,
    output: options.Output = options.RESULTS / "clipping.json",
) -> None:
    """Choose settings, train with each seed, and write means and spreads."""
    trials = Trials(mnist, cifar)
    runs = Runs(output, summary, noise={e: round(multiplier(e), 4) for e in EPSILONS})
    for data, epsilon in itertools.product(only or HIDDEN, EPSILONS):
        clips: dict[str, list[float | None]] = {"automatic": [None], "fixed": [*CLIPS]}
        for way in WAYS:
            wanted: Run = {"data": data, "epsilon": epsilon, "way": way}
            pair = runs.make(
                wanted | {"evaluated_on": "validation"},
                partial(trials.choose, data, epsilon, way, clips.get(way, [1.0])),
            )
            if way == "fixed":
                clips |= {name: [pair["clip"] * factor] for name, factor in FACTORS.items()}
            for seed in range(1, seeds + 1):
                runs.make(
                    wanted | {"evaluated_on": "test", "seed": seed},
                    partial(trials.run, data, epsilon, way, pair, seed, "test"),
                )
    runs.show()


if __name__ == "__main__":
    typer.run(main)

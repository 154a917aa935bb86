"""Gradient inversion: what a server learns from one client's update, raw or randomized.

A client takes one step on one image of MNIST. The server sees the update, or a randomizer's report
as the vector that it stands for. The server then attacks:

* ``_gradient_inversion.py`` rebuilds the image in two ways. SSIM and MSE tell how near it comes,
  for images in [0, 1].
* *named*: which of 100 images it was, if the server has all of them. The server takes the
  likeliest by the mechanism's law, and breaks ties at random.
* *digit*: the class of images whose mean update has the largest cosine with the vector. The means
  are those of 1,000 test images.

The weight of the total variation is chosen for each row on four other images. "Noise alone" is a
random vector in place of the report. The other floors are a random test image of another class,
and the mean of the 1,000 images.

    python benchmarks/inversion_of_updates.py /path/to/mnist.npz
"""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import _options as options
import numpy as np
import torch
import typer
from _environment import report
from _gradient_inversion import CLASSES, Victim, deep_leakage, lenet, with_prior
from _images import read
from _inversion import Images, nearness
from _pictures import draw
from _runs import Run, say
from _sent_updates import Channel, Floats, Scores, channels
from numpy.typing import NDArray
from torch import Tensor

from flower_ldp.mechanisms import RandomSource

RATE = 0.1
PUBLIC, CANDIDATES, OTHERS, TUNED_ON, SHOWN = 1_000, 100, 20, 4, 4
PRIORS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@dataclass(frozen=True)
class Examples:
    """Images (n, 28, 28) in [0, 1], their classes and their updates (n, d)."""

    images: Images
    labels: NDArray[np.int64]
    updates: Floats

    @property
    def targets(self) -> Tensor:
        """Classes as rows of zeros and a one, (n, 10)."""
        return one_hot(self.labels)

    def part(self, rows: slice) -> Examples:
        """Return some of them."""
        return Examples(self.images[rows], self.labels[rows], self.updates[rows])


def one_hot(labels: NDArray[np.int64]) -> Tensor:
    return torch.eye(CLASSES)[torch.from_numpy(labels)]


def examples_of(images: NDArray[np.uint8], labels: NDArray[np.int64], victim: Victim) -> Examples:
    """Return images with their updates."""
    pixels = images.astype(np.float32) / np.float32(255)
    inputs, targets = torch.from_numpy(pixels).unsqueeze(1), one_hot(labels)
    pairs = zip(inputs.split(100), targets.split(100), strict=True)
    return Examples(pixels, labels, torch.cat([victim.updates(*pair) for pair in pairs]).numpy())


def compared(images: Images, found: Images) -> Run:
    """Return mean and deviation of SSIM and MSE of pairs (n, 28, 28)."""
    near = [nearness(images[i : i + 1], found[i : i + 1]) for i in range(len(images))]
    row: Run = {}
    for name, values in (("ssim", [one.ssim for one in near]), ("mse", [one.mse for one in near])):
        row[name] = round(statistics.mean(values), 5)
        row[f"{name}-deviation"] = round(statistics.stdev(values), 5)
    return row


def floors(clients: Examples, public: Examples, seed: int) -> dict[str, Run]:
    """Return the nearness of images that have nothing to do with the update."""
    rng = np.random.default_rng(seed)
    pairs = [
        rng.choice(np.flatnonzero(public.labels != label), size=OTHERS, replace=False)
        for label in clients.labels
    ]
    others = public.images[np.concatenate(pairs)]
    mean = np.broadcast_to(public.images.mean(axis=0), clients.images.shape)
    return {
        "a random image of another class": compared(
            np.repeat(clients.images, OTHERS, axis=0), others
        ),
        "the mean image": compared(clients.images, mean),
    }


def cosines(vectors: Floats, others: Floats) -> Scores:
    """Return the cosine of every vector (n, d) with every other one (m, d)."""
    unit, other = (
        one / np.maximum(np.linalg.norm(one, axis=1, keepdims=True), 1e-30)
        for one in (vectors.astype(np.float64), others.astype(np.float64))
    )
    return np.asarray(unit @ other.T)


@dataclass(frozen=True)
class Attack:
    """All rows against the same images."""

    victim: Victim
    tuned_on: Examples
    attacked: Examples
    guessed: Examples
    public: Examples
    steps: int
    evaluations: int
    seed: int

    def run(self, channel: Channel) -> tuple[Run, Images, Images]:
        """Return a row of the table, and the images of both attacks."""
        rng = RandomSource.seeded(self.seed)
        began, tuned = time.process_time(), self._prior(channel, rng)
        seen = [channel.send(update, rng) for update in self.attacked.updates]
        vectors = np.stack([one.vector for one in seen])
        leaked = torch.stack(
            [
                deep_leakage(self.victim, channel.distance(one), number, self.evaluations)
                for number, one in enumerate(seen)
            ]
        ).numpy()
        prior = max(tuned, key=lambda weight: tuned[weight])
        smooth = self._smoothed(vectors, self.attacked, [prior] * len(seen))
        row: Run = {
            "sent": channel.name,
            "deep-leakage": compared(self.attacked.images, leaked),
            "with-prior": compared(self.attacked.images, smooth),
            "prior": prior,
            "ssim-of-priors": tuned,
            "cosine-with-the-true-update": _diagonal(vectors, self.attacked.updates),
            "cosine-with-the-update-found": self._cosine_found(vectors, smooth),
            **self._guesses(channel, rng),
            "processor-seconds": round(time.process_time() - began, 1),
        }
        return row, leaked, smooth

    def _prior(self, channel: Channel, rng: RandomSource) -> dict[float, float]:
        """Return the mean SSIM that each weight of the total variation has on other images."""
        own, times = self.tuned_on, len(PRIORS)
        vectors = np.stack([channel.send(update, rng).vector for update in own.updates])
        many = Examples(
            np.tile(own.images, (times, 1, 1)),
            np.tile(own.labels, times),
            np.tile(own.updates, (times, 1)),
        )
        weights = [weight for weight in PRIORS for _ in own.labels]
        found = self._smoothed(np.tile(vectors, (times, 1)), many, weights)
        parts = zip(PRIORS, np.split(found, times), strict=True)
        return {weight: compared(own.images, part)["ssim"] for weight, part in parts}

    def _smoothed(self, vectors: Floats, examples: Examples, weights: list[float]) -> Images:
        seen, priors = torch.from_numpy(vectors), torch.tensor(weights)
        found = with_prior(self.victim, seen, examples.targets, priors, self.seed, self.steps)
        return np.asarray(found.numpy())

    def _cosine_found(self, vectors: Floats, images: Images) -> float:
        inputs = torch.from_numpy(images).unsqueeze(1)
        return _diagonal(vectors, self.victim.updates(inputs, self.attacked.targets).numpy())

    def _guesses(self, channel: Channel, rng: RandomSource) -> Run:
        own, numbers = self.guessed, np.random.default_rng(self.seed)
        seen = [channel.send(update, rng) for update in own.updates]
        means = [self.public.updates[self.public.labels == n].mean(axis=0) for n in range(CLASSES)]
        along = cosines(np.stack([one.vector for one in seen]), np.stack(means))
        named = []
        for one, update in zip(seen, own.updates, strict=True):
            others = numbers.choice(PUBLIC, size=CANDIDATES - 1, replace=False)
            scores = channel.scores(
                one, np.concatenate([update[None], self.public.updates[others]])
            )
            best = scores == scores.max()
            named.append(float(best[0] / best.sum()))
        return {
            "named": round(statistics.mean(named), 4),
            "digit": round(float((along.argmax(axis=1) == own.labels).mean()), 4),
        }


def _diagonal(vectors: Floats, others: Floats) -> float:
    return round(float(np.diagonal(cosines(vectors, others)).mean()), 4)


def main(
    mnist: options.Mnist,
    images: Annotated[int, typer.Option(min=SHOWN, help="Images to rebuild.")] = 12,
    guesses: Annotated[int, typer.Option(min=1, help="Images to guess.")] = 100,
    steps: Annotated[int, typer.Option(min=8, help="Of Adam.")] = 600,
    evaluations: Annotated[int, typer.Option(min=1, help="Of L-BFGS, for an image.")] = 1_500,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    output: options.Output = options.RESULTS / "inversion_of_updates.json",
    pictures: Annotated[Path | None, typer.Option(help="Where to draw four images.")] = None,
) -> None:
    """Attack every row, print a line for each; write a results file."""
    torch.set_num_threads(1)
    victim, raw = Victim(lenet(seed), RATE), read(mnist)
    chosen = np.random.default_rng(seed).permutation(len(raw.x))[: TUNED_ON + images + guesses]
    clients = examples_of(raw.x[chosen], raw.y[chosen], victim)
    public = examples_of(raw.held_x[:PUBLIC], raw.held_y[:PUBLIC], victim)
    first, last = TUNED_ON, TUNED_ON + images
    cuts = slice(first), slice(first, last), slice(last, None)
    tuned_on, attacked, guessed = map(clients.part, cuts)
    attack = Attack(victim, tuned_on, attacked, guessed, public, steps, evaluations, seed)
    rows: list[Run] = []
    drawn: dict[str, list[NDArray[np.float32]]] = {}
    for channel in channels(RATE):
        row, leaked, smooth = attack.run(channel)
        say(row)
        rows.append(row)
        shown = zip(attacked.images[:SHOWN], leaked, smooth, strict=False)
        drawn[channel.name] = list(itertools.chain.from_iterable(shown))
    body = {
        "torch": torch.__version__,
        "weights": attacked.updates.shape[1],
        "length-of-updates": round(float(np.linalg.norm(attacked.updates, axis=1).mean()), 3),
        "rows": rows,
        "floors": floors(attacked, public, seed),
    }
    report(output, body)
    if pictures is not None:
        draw(drawn, pictures, 2.05, ("true", "DLG", "TV"))


if __name__ == "__main__":
    typer.run(main)

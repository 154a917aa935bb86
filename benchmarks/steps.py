"""How far a rule that nobody tunes falls behind the best tuned length of steps.

Eight small apps (``_step_apps.py``) are trained at a total epsilon of 8, 30 and 100 for each
client, with mechanism, answers and rounds as ``flower-ldp plan`` says. For each of these 24 cells
the length of ``FixedLength`` is chosen among powers of two on a tenth of the training examples,
which no client has. Then that length, ``AgreedLength`` as it is, and the length of 0.5 that sample
configurations had are run with other seeds and measured on the test examples. Of three apps all
lengths are measured on the test examples, and the best of them by hindsight is told too. All go
through the package's randomizers and optimizers; Flower's messages are left out, which change no
number.

The seed is that of the model's start and of the clients' shares; noise and sampling are the
operating system's. A run is written when it ends, and runs that are there are not repeated.

    python benchmarks/steps.py mnist.npz cifar10-features.npz
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import _options as options
import torch
import typer
from _environment import report
from _step_apps import APPS, load
from _step_runs import plan, run

from flower_ldp.strategies import AgreedLength, FixedLength

EPSILONS = (8, 30, 100)
LENGTHS = tuple(2.0**power for power in range(-5, 6))
SAMPLE = 0.5
#: Seeds to tune with, fewer of apps whose runs take seconds; and to test with.
LARGE = ("mnist_cnn", "cifar_head", "mnist_pixels", "cifar_mlp")
TUNING, TESTS = {False: 5, True: 2}, 20
#: Of these all lengths are measured on the test examples: a tenth is few examples to choose by.
CHEAP = ("asked_once", "existing_app", "cancer")


Accuracies = dict[str, dict[str, float]]


def key(part: str, app: str, epsilon: float, length: float | None) -> str:
    """Return the name of runs that differ in their seed alone; no length is no tuning."""
    rule = "agreed" if length is None else f"length {length:g}"
    return f"{app}, epsilon {epsilon:g}, {rule}, {part}"


class Bench:
    """The accuracies of runs by name and seed, in a file."""

    def __init__(self, mnist: Path, cifar: Path, output: Path) -> None:
        self.runs: Accuracies = json.loads(output.read_text())["runs"] if output.exists() else {}
        self._output = output
        self._data = lru_cache(maxsize=1)(lambda name: load(name, mnist, cifar))

    def make(self, part: str, app: str, epsilon: float, length: float | None, seed: int) -> None:
        """Make a run, unless it was."""
        made = self.runs.setdefault(key(part, app, epsilon, length), {})
        if str(seed) in made:
            return
        began, data, advice = time.process_time(), self._data(app), plan(APPS[app], epsilon)
        rule = AgreedLength() if length is None else FixedLength(length, advice.outlook.rounds)
        model = run(APPS[app], data, advice, rule, seed)
        found = APPS[app].accuracy(model, data.held if part == "validation" else data.test)
        made[str(seed)] = round(found, 4)
        seconds = time.process_time() - began
        print(f"{key(part, app, epsilon, length)}, {seed}: {found:.4f}, {seconds:.1f} s")
        self.write()

    def write(self) -> None:
        """Write the results file."""
        cells = itertools.product(APPS, EPSILONS)
        rows = [row for cell in cells if (row := summary(self.runs, *cell)) is not None]
        body = {"lengths": LENGTHS, "summary": rows, "runs": self.runs}
        report(self._output, body)


def best(
    runs: Accuracies, app: str, epsilon: float, part: str = "validation"
) -> tuple[float, float] | None:
    """Return the length with the best mean, on held-out examples, and that; None before runs."""
    tried = {length: runs.get(key(part, app, epsilon, length)) for length in LENGTHS}
    means = {length: statistics.mean(some.values()) for length, some in tried.items() if some}
    return max(means.items(), key=lambda item: item[1], default=None)


def summary(runs: Accuracies, app: str, epsilon: float) -> dict[str, Any] | None:
    """Return a cell's plan, and what tuned, untuned and sample steps reach on the test."""
    tuned = best(runs, app, epsilon)
    if tuned is None:
        return None
    chosen = {"tuned": tuned[0], "agreed": None, "sample": SAMPLE}
    found = {
        name: list(runs.get(key("test", app, epsilon, length), {}).values())
        for name, length in chosen.items()
    }
    if not all(found.values()):
        return None
    whole = all(key("test", app, epsilon, length) in runs for length in LENGTHS)
    hindsight = best(runs, app, epsilon, "test") if whole else None
    advice = plan(APPS[app], epsilon)
    mean = {name: statistics.mean(some) for name, some in found.items()}
    return {
        "app": app,
        "epsilon": epsilon,
        "weights": advice.plan.dimension,
        "clients": APPS[app].clients,
        "mechanism": type(advice.mechanism).__name__,
        "answers": advice.answers_per_client,
        "rounds": advice.outlook.rounds,
        "verdict": advice.verdict.value,
        "seeds": len(found["agreed"]),
        "tuned_length": tuned[0],
        "hindsight_length": None if hindsight is None else hindsight[0],
        "hindsight_mean": None if hindsight is None else round(hindsight[1], 4),
        **{f"{name}_mean": round(mean[name], 4) for name in found},
        **{f"{name}_deviation": round(statistics.pstdev(found[name]), 4) for name in found},
        "gap_points": round(100 * (mean["tuned"] - mean["agreed"]), 2),
        "gap_error_points": round(100 * _error(found["tuned"], found["agreed"]), 2),
    }


def _error(some: list[float], others: list[float]) -> float:
    """Return the standard error of the difference of two means."""
    several = (one for one in (some, others) if len(one) > 1)
    return math.sqrt(sum(statistics.variance(one) / len(one) for one in several))


def main(
    mnist: options.Mnist,
    cifar: Annotated[Path, typer.Argument(exists=True, help="npz file of CIFAR-10's features.")],
    apps: Annotated[list[str] | None, typer.Option("--app", help="One app; repeatable.")] = None,
    output: options.Output = options.RESULTS / "steps.json",
) -> None:
    """Tune a length, and compare it with the rule without one; write a results file."""
    torch.set_num_threads(1)
    bench = Bench(mnist, cifar, output)
    for name, epsilon in itertools.product(apps or APPS, EPSILONS):
        large = name in LARGE
        for seed, length in itertools.product(range(101, 101 + TUNING[large]), LENGTHS):
            bench.make("validation", name, epsilon, length, seed)
        tuned = best(bench.runs, name, epsilon)
        others = LENGTHS if name in CHEAP else ()
        compared: dict[float | None, None] = dict.fromkeys(
            (tuned and tuned[0], None, SAMPLE, *others)
        )
        for seed, tried in itertools.product(range(1, 1 + TESTS), compared):
            bench.make("test", name, epsilon, tried, seed)
    bench.write()


if __name__ == "__main__":
    typer.run(main)

"""Ridge regression on randomized labels of scikit-learn's diabetes data.

python benchmarks/regression_labels.py --output benchmarks/results/regression_labels.json

The labels of a tenth of the patients count as public: they give the prior and choose the penalty. A
fifth is for testing. The rest has private labels, each randomized once for a row of the table.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Annotated, Any

import _options as options
import numpy as np
import typer
from _environment import report
from _runs import like
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from flower_ldp.mechanisms import BoundedMean, RandomSource, RROnBins

#: The targets' range by scikit-learn's description of the data: public.
LOWER, UPPER = 25, 346
GRID = np.arange(LOWER, UPPER + 1.0)
PENALTIES = np.logspace(-3, 2, 16)
METHODS = ("rr_on_bins", "rr_on_bins_unbiased", "rr_on_bins_uniform", "laplace", "laplace_clipped")
#: Of those without private labels.
WITHOUT = ("no_privacy", "public_tenth", "public_mean")


def density(labels: np.ndarray) -> np.ndarray:
    """Return a smoothed histogram on the grid, by Silverman's width."""
    width = 1.06 * labels.std() * len(labels) ** -0.2
    return np.asarray(np.exp(-(((GRID[:, np.newaxis] - labels) / width) ** 2) / 2).sum(axis=1))


def randomized(
    method: str, epsilon: float, labels: np.ndarray, public: np.ndarray, rng: RandomSource
) -> np.ndarray:
    """Return what training takes in the place of private labels."""
    if method.startswith("laplace"):
        noise = BoundedMean(epsilon, LOWER, UPPER)
        reports = [noise.randomize(label, rng) for label in labels]
        found = LOWER + np.array(reports) * (UPPER - LOWER) / noise.steps
        return np.clip(found, LOWER, UPPER) if method == "laplace_clipped" else found
    prior = np.ones_like(GRID) if method == "rr_on_bins_uniform" else density(public)
    mechanism = RROnBins(epsilon, GRID.tolist(), prior.tolist())
    bins = mechanism.randomize_array(labels, rng)
    return mechanism.unbiased(bins) if method.endswith("d") else mechanism.decode(bins)


def error(model: Ridge, features: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean squared error."""
    return float(np.mean((model.predict(features) - labels) ** 2))


def errors(seed: int, epsilons: list[float]) -> Iterator[dict[str, Any]]:
    """Yield the test error of each method and epsilon on one split."""
    features, labels = load_diabetes(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    held, test, train = np.split(order, [len(order) // 10, len(order) * 3 // 10])
    rng = RandomSource.seeded(seed)

    def tested(method: str, epsilon: float | None, shown: np.ndarray, places: np.ndarray) -> Any:
        models = (Ridge(alpha=penalty).fit(features[places], shown) for penalty in PENALTIES)
        best = min(models, key=lambda model: error(model, features[held], labels[held]))
        found = error(best, features[test], labels[test])
        return {"method": method, "epsilon": epsilon, "seed": seed, "mse": found}

    yield tested("no_privacy", None, labels[train], train)
    # Its penalty is chosen on the labels that it is trained on.
    yield tested("public_tenth", None, labels[held], held)
    mean = np.full(len(held), labels[held].mean())
    yield tested("public_mean", None, mean, held)
    for epsilon in epsilons:
        for method in METHODS:
            shown = randomized(method, epsilon, labels[train], labels[held], rng)
            yield tested(method, epsilon, shown, train)


def main(
    epsilon: Annotated[list[float], typer.Option()] = [1.0, 2.0, 4.0, 8.0],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    output: options.Report = None,
) -> None:
    """Print mean and standard deviation over the seeds, and write them with every run."""
    runs = [run for seed in range(seeds) for run in errors(seed, epsilon)]
    summary = []
    for method in (*WITHOUT, *METHODS):
        for each in [None] if method in WITHOUT else epsilon:
            found = [run["mse"] for run in like(runs, method=method, epsilon=each)]
            mean, spread = statistics.mean(found), statistics.stdev(found)
            row = {"method": method, "epsilon": each, "seeds": seeds}
            summary.append({**row, "mse_mean": mean, "mse_standard_deviation": spread})
            print(f"{method:22} {each or '':4}  {mean:7.0f} ± {spread:.0f}")
    report(output, {"summary": summary, "runs": runs})


if __name__ == "__main__":
    typer.run(main)

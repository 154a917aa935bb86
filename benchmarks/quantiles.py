"""Quantiles of one column by tables of counts: of intervals alone, and with blocks of intervals.

    python benchmarks/quantiles.py

One site counts simulated rows at an epsilon of 1 a row. They are of three laws on [0, 1]: ``bell``
(normal, 0.5 and 0.12), ``skewed`` (log-normal, its median 0.05) and ``two`` (70 % near 0.3, 30 %
near 0.8). Each seed draws rows and noise anew. The error is the mean distance of seven quantiles
from the rows' own, in thousandths of the range: ``flat`` of intervals alone, ``blocks`` of a
question with ``quantiles=``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product

import numpy as np
import typer
from _environment import report
from _options import RESULTS, Output, Seeds
from _runs import Run, deviation, table
from numpy.typing import NDArray

from flower_ldp.mechanisms import RandomSource
from flower_ldp.strategies import CountsQuery
from flower_ldp.wire import counts

LAWS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "bell": lambda rng, rows: rng.normal(0.5, 0.12, rows),
    "skewed": lambda rng, rows: rng.lognormal(np.log(0.05), 0.8, rows),
    "two": lambda rng, rows: np.where(
        rng.random(rows) < 0.7, rng.normal(0.3, 0.03, rows), rng.normal(0.8, 0.05, rows)
    ),
}
INTERVALS = (16, 32, 64, 100, 256, 1_000)
EPSILON, ROWS = 1.0, (500, 2_000, 10_000)
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


def errors(law: str, intervals: int, rows: int, seed: int) -> list[float]:
    """Return the errors of one draw of rows, without blocks and with them."""
    values = np.clip(LAWS[law](np.random.default_rng(seed), rows), 0.0, 1.0)
    true = np.quantile(values, SHARES)
    edges: list[float] = np.linspace(0.0, 1.0, intervals + 1).tolist()
    found = []
    for quantiles in ([], ["x"]):
        query = CountsQuery({"x": edges}, epsilon=EPSILON, quantiles=quantiles)
        placed = query.proposal.places({"x": values}, rows), np.arange(rows)
        noisy = query.proposal.mechanism.randomize(placed, RandomSource.from_os())
        answer = query.tables(noisy, rows, 1)["x"]
        told = [answer.quantile("x", share).value for share in SHARES]
        found.append(1000 * float(np.abs(np.array(told) - true).mean()))
    return found


def main(seeds: Seeds = 40, output: Output = RESULTS / "quantiles.json") -> None:
    """Count each law's rows, once a seed."""
    counts.LEAST_IN_BLOCKS = 1  # also where the package has none
    told = []
    for law, rows, intervals in product(LAWS, ROWS, INTERVALS):
        found = [errors(law, intervals, rows, seed) for seed in range(1, seeds + 1)]
        row: Run = {"law": law, "rows": rows, "intervals": intervals}
        for name, own in zip(("flat", "blocks"), zip(*found, strict=True), strict=True):
            row |= {name: round(statistics.mean(own), 2), f"{name}_deviation": deviation(own, 2)}
        told.append(row)
    table(told)
    report(output, {"seeds": seeds, "rows": told})


if __name__ == "__main__":
    typer.run(main)

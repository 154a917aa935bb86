"""Randomizing labels at once against a Python loop over the same mechanism, one label a call.

python benchmarks/label_randomize.py --output benchmarks/results/label_randomize.json
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from _environment import write_report

from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median processor time of a call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times)


def main(
    labels: Annotated[int, typer.Option(min=1)] = 60_000,
    categories: Annotated[int, typer.Option(min=2)] = 10,
    output: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
) -> None:
    """Time both mechanisms; the loop is run three times, the array call thirty times."""
    draws, rng = np.random.default_rng(0), RandomSource.from_os()
    values = draws.integers(0, categories, labels)
    prior = draws.dirichlet(np.full(categories, 0.5), labels)
    kary, with_prior = KaryResponse(1.0, categories), RRWithPrior(1.0, categories)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "kary_response": (
            lambda: [kary.randomize(value, rng) for value in values],
            lambda: kary.randomize_array(values, rng),
        ),
        "rr_with_prior, a prior for each label": (
            lambda: [with_prior.randomize(v, rng, p) for v, p in zip(values, prior, strict=True)],
            lambda: with_prior.randomize_array(values, rng, prior),
        ),
    }
    body: dict[str, Any] = {"labels": labels, "categories": categories}
    for name, (loop, array) in cases.items():
        slow, fast = seconds(loop, 3), seconds(array, 30)
        body[name] = {"loop_s": slow, "array_s": fast, "ratio": round(slow / fast, 1)}
        print(f"{name}: loop {slow:.3f} s, array {fast:.4f} s, {slow / fast:.0f} times faster")
    if output is not None:
        write_report(output, "benchmarks/label_randomize.py", None, body)


if __name__ == "__main__":
    typer.run(main)

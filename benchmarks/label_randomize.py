"""Randomizing labels at once against a Python loop over the same mechanism, one label a call.

python benchmarks/label_randomize.py --output benchmarks/results/label_randomize.json
"""

from __future__ import annotations

from typing import Annotated, Any

import _options as options
import numpy as np
import typer
from _environment import report
from _timing import timed

from flower_ldp.mechanisms import KaryResponse, RandomSource, RRWithPrior


def main(
    labels: Annotated[int, typer.Option(min=1)] = 60_000,
    categories: Annotated[int, typer.Option(min=2)] = 10,
    output: options.Report = None,
) -> None:
    """Time both mechanisms; the loop is run three times, the array call thirty times."""
    draws, rng = np.random.default_rng(0), RandomSource.from_os()
    values = draws.integers(0, categories, labels)
    prior = draws.dirichlet(np.full(categories, 0.5), labels)
    kary, with_prior = KaryResponse(1.0, categories), RRWithPrior(1.0, categories)
    cases = {
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
        slow, fast = timed(loop, 3).cpu, timed(array, 30).cpu
        body[name] = {"loop_s": slow, "array_s": fast, "ratio": round(slow / fast, 1)}
        print(f"{name}: loop {slow:.3f} s, array {fast:.4f} s, {slow / fast:.0f} times faster")
    report(output, body)


if __name__ == "__main__":
    typer.run(main)

"""Speed of exact discrete Laplace noise against numpy's floating-point Laplace noise.

Both draw the same number of values in one process and on one thread, in alternation;
`numpy.random.Generator(PCG64).laplace` is neither private (Mironov 2012) nor from a
cryptographic source. Ours is exact and comes from AES in counter mode. The table has the noise
alone, by its scale in grid steps, and the whole mechanism (checks, rounding to the grid, noise)
on softmax rows of ten classes.

    python benchmarks/laplace.py --output benchmarks/results/laplace.json
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Any

import _options as options
import numpy as np
import typer
from _environment import report
from _runs import table
from _timing import times

from flower_ldp.mechanisms import Laplace, RandomSource
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace

SCALES = [1, 30, 1024, 2047, 1 << 15, 1 << 20, 1 << 30]
EPSILONS = [0.5, 4.0, 64.0]
CLASSES = 10
REQUIRED = 0.1
#: Ours and numpy's.
Pair = tuple[Callable[[], object], Callable[[], object]]


def noise(scale: int, size: int) -> Pair:
    """Return the noise alone."""
    law, rng, floats = DiscreteLaplace(Fraction(1, scale)), RandomSource(), np.random.default_rng(0)
    return lambda: law.sample(size, rng), lambda: floats.laplace(0.0, scale, size)


def mechanism(epsilon: float, size: int) -> Pair:
    """Return the mechanism, and adding numpy's noise without any check."""
    floats, rng = np.random.default_rng(0), RandomSource()
    logits = np.exp(2 * floats.normal(size=(size // CLASSES, CLASSES)))
    values = logits / logits.sum(axis=1, keepdims=True)
    own = Laplace(epsilon, CLASSES, rows=len(values))
    return (
        lambda: own.randomize(values, rng),
        lambda: values + floats.laplace(0.0, 2 / epsilon, values.shape),
    )


def measured(label: dict[str, Any], pair: Pair, size: int, repeats: int) -> dict[str, Any]:
    """Return rates in million values a second and their ratios, by median and by the fastest."""
    ours, theirs = times({"ours": pair[0], "numpy": pair[1]}, repeats).values()
    return {
        **label,
        "values": size,
        "million_per_second": size / ours.least / 1e6,
        "numpy_million_per_second": size / theirs.least / 1e6,
        "speed_over_numpy": theirs.median / ours.median,
        "speed_over_numpy_fastest": theirs.least / ours.least,
        "required": REQUIRED,
    }


def main(
    size: Annotated[int, typer.Option(min=CLASSES)] = 1_000_000,
    repeats: options.Repeats = 25,
    output: options.Report = None,
) -> None:
    """Time noise and mechanism; exit status 1 if the noise is below the required speed."""
    rows = [
        measured({"what": "noise", "scale": scale}, noise(scale, size), size, repeats)
        for scale in SCALES
    ]
    slow = any(row["speed_over_numpy"] < REQUIRED for row in rows)
    for epsilon in EPSILONS:
        label, whole = {"what": "mechanism", "epsilon": epsilon}, size // CLASSES * CLASSES
        rows.append(measured(label, mechanism(epsilon, size), whole, repeats))
    table(rows)
    report(output, {"rows": rows})
    raise typer.Exit(int(slow))


if __name__ == "__main__":
    typer.run(main)

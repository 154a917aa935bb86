"""Speed of exact discrete Laplace noise against numpy's floating-point Laplace noise.

Both draw the same number of values in one process and on one thread, in alternation;
`numpy.random.Generator(PCG64).laplace` is neither private (Mironov 2012) nor from a
cryptographic source. Ours is exact and comes from AES in counter mode. The table has the noise
alone, by its scale in grid steps, and the whole mechanism (checks, rounding to the grid, noise)
on softmax rows of ten classes.

    python benchmarks/laplace.py --output benchmarks/results/laplace.json
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from _environment import write_report

from flower_ldp.mechanisms import Laplace, RandomSource
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace

SCALES = [1, 30, 1024, 2047, 1 << 15, 1 << 20, 1 << 30]
EPSILONS = [0.5, 4.0, 64.0]
CLASSES = 10
REQUIRED = 0.1


def alternate(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> Any:
    """Return the seconds of both calls, each run in turn after one run that does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    ours(), theirs()
    for _ in range(repeats):
        for call, found in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
    return times


def row(label: dict[str, Any], times: tuple[list[float], list[float]], size: int) -> dict[str, Any]:
    """Return rates in million values a second and their ratios, by median and by the fastest."""
    ours, theirs = times
    return {
        **label,
        "values": size,
        "million_per_second": size / min(ours) / 1e6,
        "numpy_million_per_second": size / min(theirs) / 1e6,
        "speed_over_numpy": statistics.median(theirs) / statistics.median(ours),
        "speed_over_numpy_fastest": min(theirs) / min(ours),
        "required": REQUIRED,
    }


def measure_noise(scale: int, size: int, repeats: int) -> dict[str, Any]:
    """Return the speed of the noise alone."""
    law, rng, floats = DiscreteLaplace(Fraction(1, scale)), RandomSource(), np.random.default_rng(0)
    times = alternate(
        lambda: law.sample(size, rng), lambda: floats.laplace(0.0, scale, size), repeats
    )
    return row({"what": "noise", "scale": scale}, times, size)


def measure_rows(epsilon: float, size: int, repeats: int) -> dict[str, Any]:
    """Return the speed of the mechanism against adding numpy's noise without any check."""
    floats, rng = np.random.default_rng(0), RandomSource()
    logits = np.exp(2 * floats.normal(size=(size // CLASSES, CLASSES)))
    values = logits / logits.sum(axis=1, keepdims=True)
    mechanism = Laplace(epsilon, CLASSES, rows=len(values))
    times = alternate(
        lambda: mechanism.randomize(values, rng),
        lambda: values + floats.laplace(0.0, 2 / epsilon, values.shape),
        repeats,
    )
    return row({"what": "mechanism", "epsilon": epsilon}, times, values.size)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if options.size < CLASSES or options.repeats < 1:
        parser.error(f"--size must be at least {CLASSES} and --repeats at least 1")
    rows = [measure_noise(scale, options.size, options.repeats) for scale in SCALES]
    rows += [measure_rows(epsilon, options.size, options.repeats) for epsilon in EPSILONS]
    print(f"{'':>24} {'million/s':>10} {'numpy':>8} {'ratio':>7} {'fastest':>8}")
    for found in rows:
        setting = "scale" if found["what"] == "noise" else "epsilon"
        print(
            f"{found['what']:>10} {setting:>7} {found[setting]:<10g}"
            f"{found['million_per_second']:>6.1f} {found['numpy_million_per_second']:>8.1f} "
            f"{found['speed_over_numpy']:>6.2f}x {found['speed_over_numpy_fastest']:>7.2f}x"
        )
    if options.output is not None:
        write_report(options.output, "benchmarks/laplace.py", arguments, {"rows": rows})
    return int(any(r["speed_over_numpy"] < REQUIRED for r in rows if r["what"] == "noise"))


if __name__ == "__main__":
    raise SystemExit(main())

"""Exact Gaussian noise against numpy's, and one client's report at LeNet's size.

    python benchmarks/gaussian.py --output benchmarks/results/gaussian.json

In alternation within one process, in processor time: ``flower_ldp``'s exact normal noise in
fixed point (AES-256, integers), ``numpy``'s ``Generator.standard_normal`` (PCG64, doubles, not
for privacy), and the whole of ``Gaussian.randomize`` at d = 61,706: clipping, noise, rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import _options as options
import numpy as np
import typer
from _environment import report
from _runs import table
from _timing import times

from flower_ldp.mechanisms import Gaussian, RandomSource
from flower_ldp.mechanisms.integer_noise import normal

SIZES = (61_706, 1_000_000)


def main(repeats: options.Repeats = 15, output: options.Report = None) -> None:
    """Time noise and reports of each size."""
    rng, generator = RandomSource.from_os(), np.random.default_rng()
    mechanism = Gaussian(50.0, 0.01)
    rows = []
    for size in SIZES:
        update = generator.standard_normal(size, dtype=np.float32)
        calls: dict[str, Callable[[], object]] = {
            "noise": partial(normal, size, rng),
            "report": partial(mechanism.randomize, update, rng),
            "numpy": partial(generator.standard_normal, size),
        }
        cpu = {name: one.cpu for name, one in times(calls, repeats).items()}
        row = {
            "size": size,
            "million values a second": {n: round(size / t / 1e6, 1) for n, t in cpu.items()},
            "times numpy's time": {n: round(cpu[n] / cpu["numpy"], 2) for n in ("noise", "report")},
        }
        rows.append(row)
    table(rows)
    report(output, {"rows": rows})


if __name__ == "__main__":
    typer.run(main)

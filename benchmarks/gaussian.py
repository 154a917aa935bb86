"""Exact Gaussian noise against numpy's, and one client's report at LeNet's size.

    python benchmarks/gaussian.py --output benchmarks/results/gaussian.json

In alternation within one process, in processor time: ``flower_ldp``'s exact normal noise in
fixed point (AES-256, integers), ``numpy``'s ``Generator.standard_normal`` (PCG64, doubles, not
for privacy), and the whole of ``Gaussian.randomize`` at d = 61,706: clipping, noise, rounding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _environment import write_report

from flower_ldp.mechanisms import Gaussian, RandomSource
from flower_ldp.mechanisms.integer_noise import normal

SIZES = (61_706, 1_000_000)


def seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rng, generator = RandomSource.from_os(), np.random.default_rng()
    mechanism = Gaussian(50.0, 0.01)
    rows = []
    for size in SIZES:
        update = generator.standard_normal(size, dtype=np.float32)
        calls: dict[str, Callable[[], Any]] = {
            "noise": partial(normal, size, rng),
            "report": partial(mechanism.randomize, update, rng),
            "numpy": partial(generator.standard_normal, size),
        }
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        for _ in range(options.repeats):
            for name, call in calls.items():
                times[name].append(seconds(call))
        medians = {name: statistics.median(found) for name, found in times.items()}
        row = {
            "size": size,
            "million values a second": {n: round(size / t / 1e6, 1) for n, t in medians.items()},
            "times numpy's time": {
                n: round(medians[n] / medians["numpy"], 2) for n in ("noise", "report")
            },
        }
        rows.append(row)
        print(row)
    if options.output is not None:
        write_report(options.output, "benchmarks/gaussian.py", None, {"rows": rows})


if __name__ == "__main__":
    main()

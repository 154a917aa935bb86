"""Codewords against SignDS: processor time, and how far a sum of reports points.

    python benchmarks/codeword.py

In alternation within one process: ``Codeword.randomize`` against ``SignDS.randomize`` at epsilon
8, with the sizes that each chooses, and ``Codeword.total`` of 1,000 and 10,000 reports with 64
codes. Then, at 2,010 weights, the cosine of a sum of reports with the clients' common direction,
for one code, 64 and 4,096, and of SignDS: clients that agree, and clients of which each has the
common direction with a weight of 0.3 and one of its own besides.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import _options as options
import numpy as np
import typer
from _environment import report
from _runs import say
from _timing import timed, times
from numpy.typing import NDArray

from flower_ldp.mechanisms import Codeword, CodewordReport, RandomSource, SignDS
from flower_ldp.mechanisms.signds import sum_of_signs

SIZES = (2_010, 61_706, 1_000_000, 11_000_000)
WEIGHTS = 2_010
Floats = NDArray[np.float64]


def timed_at(size: int, repeats: int) -> dict[str, Any]:
    """Return the least processor time of a report beside SignDS's, and that of rounds' sums."""
    rng, codeword = RandomSource.from_os(), Codeword(8.0).sized(size)
    update = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    mechanisms = {"mine": codeword, "its": SignDS(8.0).sized(size)}
    calls = {name: partial(one.randomize, update, rng) for name, one in mechanisms.items()}
    mine, its = (one.least_cpu for one in times(calls, repeats).values())
    found: dict[str, Any] = {"size": size, "seconds": mine, "times SignDS": mine / its}
    if size <= 10**6:
        order, places = codeword.plan(size).order, np.random.default_rng(1)
        for count in (1_000, 10_000):
            rows = places.integers(order, size=count).tolist()
            reports = [CodewordReport(order, i % 64, row, 1) for i, row in enumerate(rows)]
            total = timed(partial(codeword.total, reports, size), min(repeats, 2))
            found[f"seconds, total of {count}"] = total.least_cpu
    return found


def sum_of_codewords(epsilon: float, codes: int, seed: int, updates: list[Floats]) -> Floats:
    mechanism = Codeword(epsilon, rotations=codes, seed=seed).sized(WEIGHTS)
    source = RandomSource.seeded(seed)
    return mechanism.total([mechanism.randomize(one, source) for one in updates], WEIGHTS)


def sum_of_signds(epsilon: float, seed: int, updates: list[Floats]) -> Floats:
    mechanism, source = SignDS(epsilon).sized(WEIGHTS), RandomSource.seeded(seed)
    reports = (mechanism.randomize(one.astype(np.float32), source) for one in updates)
    return sum_of_signs(reports, WEIGHTS).astype(np.float64)


def cosines(epsilon: float, share: float, clients: int, seeds: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=WEIGHTS)
        rest = np.sqrt(1.0 - share**2)
        updates = [share * common + rest * rng.normal(size=WEIGHTS) for _ in range(clients)]
        sums = {
            str(codes): sum_of_codewords(epsilon, codes, seed, updates) for codes in (1, 64, 4096)
        }
        sums["SignDS"] = sum_of_signds(epsilon, seed, updates)
        for name, total in sums.items():
            cosine = total @ common / np.linalg.norm(total) / np.linalg.norm(common)
            found.setdefault(name, []).append(float(cosine))
    cells = {name: f"{np.mean(one):.3f} ± {np.std(one):.3f}" for name, one in found.items()}
    said = Codeword(epsilon).plan(WEIGHTS).cosine_of_sum(clients)
    return {"epsilon": epsilon, "share": share, "clients": clients, **cells, "said": said}


def main(
    repeats: options.Repeats = 5, seeds: options.Seeds = 5, output: options.Report = None
) -> None:
    """Time reports and sums, then find the cosines."""
    cells = itertools.product((8.0, 4.0), (1.0, 0.3), (25, 1_000))
    measures = [partial(timed_at, size, repeats) for size in SIZES]
    measures += [partial(cosines, *cell, seeds) for cell in cells]
    rows: list[dict[str, Any]] = []
    for measure in measures:
        rows.append(measure())
        say(rows[-1])
    report(output, {"rows": rows})


if __name__ == "__main__":
    typer.run(main)

"""Time and memory of SignDS's selection against sorting the update.

Selection is ``top_set`` and ``sample`` of 238 dimensions, 143 of them among the K = d / 5
largest: the sizes at d = 66,404 and epsilon 100. It is compared in one process and on
one float32 vector with ``numpy.argsort`` and with a single summing pass ``u.sum()``, the
least that anything which looks at every entry can cost. The vector is like an update:
normal with heavy tails (Student's t, 3 degrees of freedom) and 10 % exact zeros. Times
are the best of several repeats; everything runs on one thread. Peak memory is what numpy
reports to ``tracemalloc``, beyond the vector.

    python benchmarks/selection.py --sizes 1e5 1e6 1e7 1e8 \
        --output benchmarks/results/selection.json
"""

from __future__ import annotations

import argparse
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _environment import report
from _runs import table
from _timing import timed
from numpy.typing import NDArray

from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.topk import top_set

DIM_OUT, INSIDE = 238, 143
# Required speed over argsort, by size.
TARGETS = {10**5: 8, 10**6: 15, 10**7: 50, 10**8: 80}
# From this size on argsort takes seconds and is timed once.
ARGSORT_ONCE = 5 * 10**7
MEMORY_LIMIT = 1.25


def make_update(size: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a heavy-tailed float32 vector with 10 % exact zeros, made in pieces."""
    rng = np.random.default_rng(seed)
    update = np.empty(size, dtype=np.float32)
    for start in range(0, size, 1 << 22):
        piece = update[start : start + (1 << 22)]
        piece[:] = rng.standard_t(3, len(piece))
        piece[rng.random(len(piece)) < 0.1] = 0.0
    return update


def peak_memory(call: Callable[[], object]) -> int:
    """Return the peak memory in bytes allocated during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(size: int, repeats: int) -> dict[str, Any]:
    """Return the times, ratios and peak memory for one size."""
    update = make_update(size)
    rng = RandomSource.from_os()
    members = size // 5

    def select() -> NDArray[np.int64]:
        return top_set(update, members, 1).sample(INSIDE, DIM_OUT - INSIDE, rng)

    top = top_set(update, members, 1)
    # Short calls are noisy and cheap to repeat.
    short = repeats * max(1, 10**7 // size)
    calls: dict[str, Callable[[], object]] = {
        "selection": select,
        "sum": update.sum,
        "top_mean": top.mean,
        "argsort": lambda: np.argsort(update),
    }
    asked = dict.fromkeys(calls, short) | {
        "argsort": 1 if size >= ARGSORT_ONCE else max(3, repeats)
    }
    seconds = {name: timed(call, asked[name]).least for name, call in calls.items()}
    peak = peak_memory(select)
    return {
        "d": size,
        "K": members,
        "seconds": seconds,
        "times_faster_than_argsort": seconds["argsort"] / seconds["selection"],
        "required": TARGETS.get(size),
        "summing_passes": seconds["selection"] / seconds["sum"],
        "peak_bytes": peak,
        "peak_over_vector": peak / update.nbytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=float, default=[1e5, 1e6, 1e7, 1e8])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.repeats < 1 or min(options.sizes) < 1000:
        parser.error("--repeats must be at least 1 and every size at least 1000")
    rows = []
    for size in options.sizes:
        rows.append(measure(int(size), options.repeats))
        print(f"measured d = {int(size):,}", file=sys.stderr)
    table(rows)
    body = {"dtype": "float32", "dim_out": DIM_OUT, "inside": INSIDE}
    report(options.output, {**body, "repeats": options.repeats, "rows": rows})
    missed = [
        row["d"]
        for row in rows
        if row["times_faster_than_argsort"] < (row["required"] or 0)
        or row["peak_over_vector"] >= MEMORY_LIMIT
    ]
    if missed:
        print(f"below the required speed or above the memory limit at d = {missed}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

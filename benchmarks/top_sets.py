"""Top sets of long vectors whose equal values lie where the selection looks, against a sort.

The vectors are those of ``tests/unit/mechanisms/topk_masses.py``: 131,073 to 2^20 entries in
float16, float32 and float64, made from integers that keep their order, with masses of equal values
at the positions that the sampled selection reads (all of them, one more, one fewer, twice as many,
two or three values whose borders lie at the ends of its bracket). K runs from 1 to three times
the number of these positions, over 1 to 25 % of the entries, and around the edges of the mass.
Each top set is compared in every position, by both rules that draws use, with a stable sort of
the integers. Tests do the same for a thousand of them.

    python benchmarks/top_sets.py --output benchmarks/results/top_sets.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _environment import write_report

from flower_ldp.mechanisms import topk as _rank
from flower_ldp.mechanisms.topk import top_set
from tests.unit.mechanisms.topk_masses import masses

#: Vectors of one seed: what a process does at a time.
PIECE = 500
#: Of the script's vectors one in this many is among the longest.
LONG_EVERY = 400


def counted(name: str, taken: Counter[str]) -> None:
    """Make a way of finding thresholds count its successes."""
    way = getattr(_rank, name)

    def spy(*arguments: Any) -> Any:
        found = way(*arguments)
        taken[name] += found is not None
        return found

    setattr(_rank, name, spy)


def check(task: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    """Check ``count`` vectors of a seed; return what was done, and what is wrong."""
    seed, count = task
    facts: Counter[str] = Counter()
    ways = {name: getattr(_rank, name) for name in ("_by_bracket", "_by_copy")}
    wrong = []
    try:
        taken: Counter[str] = Counter()
        for name in ways:
            counted(name, taken)
        for case in masses(count, seed, LONG_EVERY):
            facts["vectors"] += 1
            facts[f"vectors of {case.values.dtype.newbyteorder('=')}"] += 1
            facts["entries"] += len(case.values)
            for size, sign in case.asked:
                taken.clear()
                complaint = case.wrong(top_set(case.values, size, sign))
                facts["top sets"] += 1
                facts["found by bracket"] += taken["_by_bracket"]
                facts["found on a copy"] += taken["_by_copy"]
                facts["cuts refuted by the count"] += sum(taken.values()) - 1
                if complaint:
                    wrong.append(complaint)
    finally:
        for name, way in ways.items():
            setattr(_rank, name, way)
    return facts, wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    pieces = range(0, options.vectors, PIECE)
    tasks = [
        (options.seed + i, min(PIECE, options.vectors - start)) for i, start in enumerate(pieces)
    ]
    start = time.perf_counter()
    facts: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done, (found, complaints) in enumerate(pool.map(check, tasks), 1):
            facts += found
            wrong += complaints
            print(f"{done} of {len(tasks)}: {len(wrong)} wrong", file=sys.stderr, flush=True)
    body: dict[str, Any] = {
        **dict(sorted(facts.items())),
        "cuts refuted by the count": facts["cuts refuted by the count"],
        "wrong": len(wrong),
        "first of the wrong": wrong[:20],
        "seconds": time.perf_counter() - start,
    }
    for name, value in body.items():
        print(f"{name}: {value}")
    if options.output is not None:
        write_report(options.output, "benchmarks/top_sets.py", arguments, body)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

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

import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Annotated, Any
from unittest import mock

import _examples  # noqa: F401
import _options as options
import typer
from _environment import report

from flower_ldp.mechanisms import topk
from flower_ldp.mechanisms.topk import top_set
from tests.unit.mechanisms.topk_masses import masses

#: Vectors of one seed: what a process does at a time.
PIECE = 500
#: Of the script's vectors one in this many is among the longest.
LONG_EVERY = 400


def check(task: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    """Check ``count`` vectors of a seed; return what was done, and what is wrong."""
    seed, count = task
    facts, taken = Counter[str](), Counter[str]()
    wrong = []
    ways = {name: getattr(topk, name) for name in ("_by_bracket", "_by_copy")}

    def spied(name: str) -> Callable[..., Any]:
        def spy(*arguments: Any) -> Any:
            found = ways[name](*arguments)
            taken[name] += found is not None
            return found

        return spy

    spies: dict[str, Any] = {name: spied(name) for name in ways}
    with mock.patch.multiple(topk, **spies):
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
    return facts, wrong


def main(
    vectors: Annotated[int, typer.Option(min=1)] = 100_000,
    seed: Annotated[int, typer.Option(help="Of the first vectors.")] = 1_000,
    jobs: Annotated[int, typer.Option(min=1)] = 1,
    output: options.Report = None,
) -> None:
    """Check all vectors; exit status 1 if a top set is wrong."""
    tasks = [
        (seed + number, min(PIECE, vectors - start))
        for number, start in enumerate(range(0, vectors, PIECE))
    ]
    start = time.perf_counter()
    facts: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
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
    report(output, body)
    raise typer.Exit(int(bool(wrong)))


if __name__ == "__main__":
    typer.run(main)

"""What benchmarks share that are made of many runs and go on where they stopped."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from _environment import command, report
from _options import Mnist as Mnist
from _options import Output as Output
from _options import Seeds as Seeds

Run = dict[str, Any]
T = TypeVar("T")


def earlier(output: Path) -> list[Run]:
    """Return the runs that a results file has."""
    return list(json.loads(output.read_text())["runs"]) if output.exists() else []


def is_known(run: Run, runs: list[Run]) -> bool:
    """Say whether a run of these settings is among those that were made."""
    return bool(like(runs, **run))


def like(runs: Iterable[Run], /, **wanted: Any) -> list[Run]:
    """Return the runs of these settings."""
    return [run for run in runs if wanted.items() <= run.items()]


class Runs:
    """The runs in a results file, which is written after each.

    Parameters
    ----------
    output : Path
        The file; the runs that it has are not made again.
    summary : callable
        What the file says of all runs.
    head : Any
        What else it says.
    """

    def __init__(self, output: Path, summary: Callable[[list[Run]], Any], **head: Any) -> None:
        self.made = earlier(output)
        self._output, self._summary, self._head = output, summary, head

    def make(self, wanted: Run, measure: Callable[[], Run]) -> Run:
        """Return the run of these settings, which is made unless it was."""
        known = like(self.made, **wanted)
        if known:
            return known[0]
        began, used = time.perf_counter(), time.process_time()
        run = wanted | measure()
        run["seconds"] = round(time.perf_counter() - began, 1)
        run["processor_seconds"] = round(time.process_time() - used, 1)
        say({name: one for name, one in run.items() if not isinstance(one, dict)})
        run["command"] = command()
        self.made.append(run)
        self.write()
        return run

    def write(self) -> None:
        """Write all runs, and what they come to."""
        report(self._output, {**self._head, "summary": self._summary(self.made), "runs": self.made})

    def show(self) -> None:
        """Print the summary."""
        table(self._summary(self.made))


def elsewhere(measure: Callable[..., T], *arguments: Any) -> T:
    """Measure in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def say(run: Run) -> None:
    """Print the numbers and names of a result in one line."""
    print(", ".join(f"{name} {one}" for name, one in _flat(run)), flush=True)


def table(rows: list[Run]) -> None:
    """Print results below each other; what one of them lacks stays empty."""
    found = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in found for name in row))
    lines = [names, *([row.get(name, "") for name in names] for row in found)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print(f"| {' | '.join(map(str.rjust, line, widths))} |")


def _flat(run: Run) -> Iterator[tuple[str, str]]:
    for name, one in run.items():
        if isinstance(one, dict):
            yield from ((f"{name} {inner}", value) for inner, value in _flat(one))
        elif isinstance(one, bool | str) or one is None:
            yield name, str(one)
        elif isinstance(one, float | int):
            yield name, f"{one:,}" if isinstance(one, int) else f"{one:.4g}"


def groups(runs: list[Run], key: Callable[[Run], Any]) -> list[list[Run]]:
    """Return runs that have something in common, in the order in which each came first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(json.dumps(key(run), sort_keys=True), []).append(run)
    return list(found.values())


def deviation(values: Sequence[float], digits: int = 4) -> float | None:
    """Return the standard deviation of what a sample is of; None of a single value."""
    return round(statistics.stdev(values), digits) if len(values) > 1 else None


def spread(runs: list[Run], digits: int | None = 4, *, sample: bool = False) -> Run:
    """Return mean and deviation of the accuracy of runs, and how many there are."""
    found = [one["accuracy"] for one in runs]
    mean, around = statistics.mean(found), statistics.pstdev(found)
    if digits is not None:
        mean, around = round(mean, digits), round(around, digits)
    return {
        "accuracy_mean": mean,
        "accuracy_standard_deviation": deviation(found) if sample else around,
        "seeds": len(runs),
    }


def reached(mean: float, floor: float | None, goal: float | None) -> Run:
    """Return floor and goal in percent, and which of them a mean reached."""
    passed = [
        name
        for name, least in (("floor", floor), ("goal", goal))
        if least is not None and 100 * mean >= least
    ]
    return {"floor": floor, "goal": goal, "reached": passed[-1] if passed else "none"}

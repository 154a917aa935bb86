"""What benchmarks share that are made of many runs and go on where they stopped."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Run = dict[str, Any]
S = TypeVar("S")

Mnist = Annotated[Path, typer.Argument(exists=True, help="npz file in MNIST's layout.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 1, 2, ...")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as rounds=40; repeatable.")
]
Output = Annotated[Path, typer.Option(help="Results file, kept up to date.")]


def part(name: str) -> str:
    """Check what is evaluated on; an option's callback."""
    if name not in ("test", "validation"):
        raise typer.BadParameter("must be test or validation")
    return name


EvaluateOn = Annotated[str, typer.Option(callback=part, help="'test' or 'validation'.")]


def changed(settings: S, changes: list[str] | None) -> S:
    """Return settings with what ``--set`` says of them."""
    pairs = (item.split("=", 1) for item in changes or [])
    return replace(settings, **{name: json.loads(value) for name, value in pairs})  # type: ignore[type-var]


def arguments(evaluate_on: str, changes: list[str] | None, data: str = "mnist.npz") -> list[str]:
    """Return the command line's words that a result depends on; the data are named, not located."""
    return [data, "--evaluate-on", evaluate_on] + [f"--set {item}" for item in changes or []]


def earlier(output: Path) -> list[Run]:
    """Return the runs that a results file has."""
    return list(json.loads(output.read_text())["runs"]) if output.exists() else []


def spread(runs: list[Run], digits: int | None = 4) -> Run:
    """Return mean and deviation of the accuracy of runs, and how many there are."""
    found = [one["accuracy"] for one in runs]
    mean, deviation = statistics.mean(found), statistics.pstdev(found)
    return {
        "accuracy_mean": mean if digits is None else round(mean, digits),
        "accuracy_standard_deviation": deviation if digits is None else round(deviation, digits),
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


def told(line: Run) -> str:
    """Return a line of a summary as it is printed: mean and deviation in percent."""
    mean, deviation = (100 * line[f"accuracy_{of}"] for of in ("mean", "standard_deviation"))
    goals = f", {line['reached']} ({line['floor']}, {line['goal']})" if "reached" in line else ""
    return f"{line['row']:<28} {mean:.1f} ± {deviation:.1f} %{goals}"


def is_known(run: Run, runs: list[Run]) -> bool:
    """Say whether a run of these settings is among those that were made."""
    return any(run.items() <= known.items() for known in runs)

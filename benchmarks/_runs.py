"""What benchmarks share that are made of many runs and go on where they stopped."""

from __future__ import annotations

import json
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


def is_known(run: Run, runs: list[Run]) -> bool:
    """Say whether a run of these settings is among those that were made."""
    return any(run.items() <= known.items() for known in runs)

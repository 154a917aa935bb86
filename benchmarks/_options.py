"""Options of the benchmarks' commands, and what ``--set`` changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

S = TypeVar("S")

RESULTS = Path(__file__).resolve().parent / "results"

Mnist = Annotated[Path, typer.Argument(exists=True, help="npz file in MNIST's layout.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds 1, 2, ...")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, as rounds=40; repeatable.")
]
Only = Annotated[list[str] | None, typer.Option(help="Rows, by name; repeatable.")]
Cache = Annotated[Path | None, typer.Option(help="Where features of images are kept.")]
Output = Annotated[Path, typer.Option(help="Results file, kept up to date.")]
Report = Annotated[Path | None, typer.Option("--output", help="JSON file to write.")]
Repeats = Annotated[int, typer.Option(min=1, help="Calls of each kind.")]


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

"""Apps of Flower's repository learn under this package, or why they do not.

* ``fedavg``: each app as it is, on data of this disk in place of a hub's;
* ``private``: the same app with the diff that ``flower_apps/private`` has of it;
* ``page``: docs/flower_apps.md, of what the results file has.

    python benchmarks/flower_apps/prepare.py mnist.npz WIKITEXT data
    python benchmarks/flower_apps.py fedavg FLOWER data

Run it in an environment with what the apps need beside this package: the pyproject.toml of each
names it.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from _flower_app_list import APPS, COMMIT, OTHERS, App
from _flower_app_page import page as page_of
from _flower_apps import changed_lines, run
from _options import RESULTS, Output, Seeds
from _runs import Runs, deviation, like

command = typer.Typer(pretty_exceptions_enable=False)
Flower = Annotated[Path, typer.Argument(exists=True, help=f"Checkout of adap/flower at {COMMIT}.")]
Data = Annotated[Path, typer.Argument(exists=True, help="What flower_apps/prepare.py wrote.")]
Names = Annotated[list[str] | None, typer.Option("--app", help="By name; repeatable.")]
FILE = RESULTS / "flower_apps.json"
PAGE = RESULTS.parents[1] / "docs" / "flower_apps.md"


@command.command()
def fedavg(
    flower: Flower, data: Data, app: Names = None, seeds: Seeds = 3, output: Output = FILE
) -> None:
    """Run apps without privacy."""
    runs = Runs(output, _summary, flower_commit=COMMIT)
    for seed in range(1, seeds + 1):
        for one in _chosen(app):
            wanted = {"kind": "fedavg", "app": one.name, "seed": seed, "config": dict(one.config)}
            runs.make(wanted, lambda: run(flower, one, data, seed))  # noqa: B023
    runs.show()


@command.command()
def private(
    flower: Flower,
    data: Data,
    app: Names = None,
    part: Annotated[str, typer.Option(help="Evaluated on: test or tuning.")] = "test",
    seeds: Seeds = 3,
    output: Output = FILE,
) -> None:
    """Run apps with privacy."""
    runs = Runs(output, _summary, flower_commit=COMMIT)
    for seed in range(1, seeds + 1):
        for one in _chosen(app):
            if one.route is None:
                continue
            wanted = {"kind": "private", "app": one.name, "seed": seed, **_settings(one)}
            if part != "test":
                wanted["part"] = part
            lines = changed_lines(flower, one)
            runs.make(
                wanted | {"lines": lines},
                lambda: run(flower, one, data, seed, private=True, part=part),  # noqa: B023
            )
    runs.show()


@command.command()
def page(results: Output = FILE) -> None:
    """Write docs/flower_apps.md from the results files."""
    files = results, RESULTS / "flower_statistics.json"
    PAGE.write_text(page_of(*(json.loads(one.read_text()) for one in files)))


def _chosen(names: list[str] | None) -> list[App]:
    return [app for app in APPS if not names or app.name in names]


def _settings(app: App) -> dict[str, Any]:
    """Return what tells an app's private runs from those at earlier settings."""
    if app.route is None:
        return {}
    plan = {"plan": dict(app.route.policy)} if app.route.policy else {}
    return {"config": {**app.config, **app.route.config}, **plan}


def _summary(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_row(app, runs) for app in APPS] + [
        {"name": name, "route": None, "reason": reason} for name, reason in OTHERS.items()
    ]


def _row(app: App, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an app's line: its figures, whether the private one is near, lines and minutes."""
    plain = like(runs, app=app.name, kind="fedavg")
    hidden = like(runs, app=app.name, kind="private", **_settings(app))
    hidden = [one for one in hidden if "part" not in one]
    hidden = [one for one in hidden if one["lines"] == hidden[-1]["lines"]]  # of the last change
    tested = [one for one in like(runs, app=app.name, kind="private") if "part" not in one]
    found: dict[str, Any] = {
        "name": app.name,
        "data": app.data,
        "nodes": app.nodes,
        "metric": app.metric,
        "fedavg": _figures(plain),
        "constant": round(mean(one["constant"] for one in plain), 4) if plain else None,
        "route": app.route.name if app.route else None,
        "unit": app.route.unit if app.route else None,
        "epsilon": max((one["epsilon"] for one in hidden), default=None),
        "delta": max((one["delta"] for one in hidden), default=None),
        "private": _figures(hidden),
        "earlier": [one["figure"] for one in tested if one not in hidden],
        "seeds": [len(plain), len(hidden)],
        "near": None,
        "lines": hidden[-1]["lines"] if hidden else None,
        "minutes": round(mean(one["seconds"] for one in hidden) / 60, 1) if hidden else None,
        "reason": app.reason
        or ("" if hidden else "its private change runs; no figure is measured yet"),
    }
    if hidden and plain:
        found["near"] = app.near(found["private"][0], found["fedavg"][0], found["constant"])
    return found


def _figures(runs: list[dict[str, Any]]) -> list[float | None] | None:
    """Return mean and standard deviation."""
    figures = [one["figure"] for one in runs]
    return [round(mean(figures), 4), deviation(figures)] if figures else None


if __name__ == "__main__":
    command()

"""Flower's two apps for statistics, with diffs of ``flower_apps/private``: how far off they are.

    python benchmarks/flower_statistics.py FLOWER

``quickstart-pandas`` asks five sites for two histograms of scikit-learn's breast cancer, of the
mean radius and texture, at an epsilon of 2 for both. ``federated-kaplan-meier-fitter`` asks two
sites for the survival of lifelines' fruit flies, at 2. Each seed draws new noise; the data stay.
``without an app`` are the same histograms at an epsilon of 1, one alone and both together, and the
same curve with intervals of other lengths, with noise and without.
Needs pandas, lifelines, flwr-datasets and scikit-learn.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from _flower_app_list import COMMIT, App
from _flower_apps import changed_lines, copy_of
from _options import RESULTS, Output, Seeds
from _runs import Run, Runs, deviation, like
from numpy.typing import NDArray

from flower_ldp.mechanisms import RandomSource
from flower_ldp.strategies import CountsQuery, survival
from flower_ldp.strategies.counts import CountTables

#: Figures near the truth, by their unit.
LIMITS = {"points": 3.0, "share alive": 0.05}
BINS = np.linspace(2.0, 10.0, 10)
_POLICY = """\
data_id: site
ledger: ledger.sqlite
mode: simulation
examples: {examples}
messages: {{query: {{counts: {{epsilon: 2.0, unit: example}}}}}}
budgets: {{example: {{life: {{epsilon: 2.0}}}}}}
"""


def worst_bin(output: str) -> Run:
    """Return how far off the shares of two histograms are, in points."""
    found = ast.literal_eval(_told(output, "Aggregated histogram: "))
    return _farthest([np.array(rows["share"]) for rows in found])


def _columns() -> list[NDArray[np.float64]]:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer().data
    return [data[:, 0] / 3, data[:, 1] / 4]


def _farthest(shares: list[NDArray[np.float64]]) -> Run:
    each = []
    for column, found in zip(_columns(), shares, strict=False):
        truth = np.histogram(column, BINS)[0] / len(column)
        each.append(100 * np.abs(found - truth))
    return {"worst": float(np.max(each)), "mean": float(np.mean(each)), "unit": "points"}


def without_app(tables: int, sites: int = 5) -> Run:
    """Return the same of one or two histograms at an epsilon of 1 for all, by the mechanism."""
    columns = dict(zip("ab", _columns()[:tables], strict=False))
    query = CountsQuery(dict.fromkeys(columns, BINS.tolist()), epsilon=1.0)
    size = len(columns["a"])
    found = _asked(query, columns, [np.arange(i, size, sites) for i in range(sites)])
    return _farthest([one.counts[:-1] / one.counts[:-1].sum() for one in found.values()])


def _asked(
    query: CountsQuery, columns: dict[str, Any], parts: list[NDArray[Any]], *, noise: bool = True
) -> CountTables:
    """Return the tables of sites with some of the rows each."""
    proposal, rng, total = query.proposal, RandomSource.from_os(), np.array(0)
    size = sum(map(len, parts))
    places = proposal.places(columns, size)
    for part in parts:
        rows, mechanism = (places[part], np.arange(len(part))), proposal.mechanism
        total = total + (mechanism.randomize(rows, rng) if noise else mechanism.total(rows))
    return query.tables(total, size, len(parts))


def curve_without_app(days: int, *, noise: bool) -> Run:
    """Return how far off the curve of intervals of some days is, at an epsilon of 2."""
    from lifelines.datasets import load_waltons

    flies = load_waltons()
    levels: dict[str, Any] = {"T": range(0, 81, days), "E": ["0", "1"]}
    query = CountsQuery(levels, [("T", "E")], epsilon=2.0)
    rows = {"T": flies["T"].to_numpy(), "E": flies["E"].astype(str).to_numpy()}
    parts = [np.flatnonzero(flies["group"] == one) for one in ("control", "miR-137")]
    found = survival(_asked(query, rows, parts, noise=noise)["T", "E"], time="T", event="E")
    return _off(found.time.tolist(), found.survival.tolist())


def worst_end(output: str) -> Run:
    """Return how far off the curve is that an app prints."""
    return _off(*ast.literal_eval(_told(output, "Survival function: ").replace("] [", "], [")))


def _off(time: list[float], curve: list[float]) -> Run:
    """Return how far off a curve is: at the intervals' ends, and straight between them."""
    from lifelines import KaplanMeierFitter
    from lifelines.datasets import load_waltons

    flies = load_waltons()
    fitter = KaplanMeierFitter().fit(flies["T"], flies["E"])
    # Of an interval that its end is not in.
    ends = np.abs(curve - fitter.predict(np.array(time) - 1e-9).to_numpy())
    days = np.arange(1.0, time[-1])
    line = np.interp(days, [0.0, *time], [1.0, *curve])
    between = np.abs(line - fitter.predict(days - 1e-9).to_numpy())
    found = {"worst": float(ends.max()), "mean": float(ends.mean()), "unit": "share alive"}
    return {**found, "worst_between": float(between.max())}


def _told(output: str, before: str) -> str:
    (line,) = re.findall(re.escape(before) + r"(.*)", output)
    return str(line)


@dataclass(frozen=True)
class Asked:
    """An app that asks, and what is made of its output; ``examples`` are a site's."""

    app: App
    examples: int
    measure: Callable[[str], Run]


APPS = (
    Asked(
        App(
            "quickstart-pandas",
            "pandas_example",
            "breast cancer",
            config={"num-server-rounds": 1},
        ),
        114,
        worst_bin,
    ),
    Asked(
        App("federated-kaplan-meier-fitter", "examplefkm", "fruit flies", nodes=2), 82, worst_end
    ),
)


def run(flower: Path, asked: Asked) -> Run:
    """Ask once, with fresh noise."""
    with tempfile.TemporaryDirectory() as temporary:
        place = copy_of(flower, asked.app, Path(temporary), ["loaders", "private"])
        policy = place.parent / "policy.yaml"
        policy.write_text(_POLICY.format(examples=asked.examples))
        command = [sys.executable, "-m", "flower_ldp", "simulate", str(place)]
        command += ["--nodes", str(asked.app.nodes), "--policy", str(policy)]
        for name, value in asked.app.config.items():
            command += ["-c", f"{name}={value}"]
        done = subprocess.run(
            command,
            check=True,
            text=True,
            cwd=temporary,  # where the second app draws
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return asked.measure(done.stdout)


def summary(runs: list[Run]) -> list[dict[str, Any]]:
    """Return each app's mean figures over the draws of noise."""
    found = []
    for name in dict.fromkeys(one["app"] for one in runs):
        own = like(runs, app=name)
        row: dict[str, Any] = {"app": name, "lines": own[-1]["lines"], "runs": len(own)}
        for figure in ("worst", "mean", "worst_between"):
            values = [one[figure] for one in own if figure in one]
            if values:
                row[figure] = [round(statistics.mean(values), 4), deviation(values)]
        limit = LIMITS[own[-1]["unit"]]
        row |= {"within": sum(one["worst"] < limit for one in own), "unit": own[-1]["unit"]}
        for app in (one.app for one in APPS if one.app.name == name):
            means = [row[one][0] for one in ("worst", "worst_between") if one in row]
            row |= {"data": app.data, "nodes": app.nodes, "epsilon": 2, "near": max(means) < limit}
        found.append(row)
    return found


def main(
    flower: Annotated[Path, typer.Argument(help=f"Checkout of adap/flower at {COMMIT}.")],
    seeds: Seeds = 20,
    output: Output = RESULTS / "flower_statistics.json",
) -> None:
    """Run both apps, once a seed."""
    runs = Runs(output, summary, flower_commit=COMMIT)
    for asked in APPS:
        lines = changed_lines(flower, asked.app)
        for seed in range(1, seeds + 1):
            wanted = {"app": asked.app.name, "seed": seed, "lines": lines}
            runs.make(wanted, lambda: run(flower, asked))  # noqa: B023
    for tables in (1, 2):
        for seed in range(1, 2 * seeds + 1):
            wanted = {"app": f"without an app, {tables}", "seed": seed, "lines": 0}
            runs.make(wanted, lambda: without_app(tables))  # noqa: B023
    for days in (10, 5, 2, 1):
        for noise in (False, True):
            name = f"without an app, {days} days{'' if noise else ', no noise'}"
            for seed in range(1, 2 * seeds + 1 if noise else 2):
                wanted = {"app": name, "seed": seed, "lines": 0}
                runs.make(wanted, lambda: curve_without_app(days, noise=noise))  # noqa: B023
    runs.show()


if __name__ == "__main__":
    typer.run(main)

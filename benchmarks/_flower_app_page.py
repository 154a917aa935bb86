"""docs/flower_apps.md, from the results of :mod:`flower_apps` and :mod:`flower_statistics`."""

from __future__ import annotations

from textwrap import fill
from typing import Any

_HEAD = """\
# Flower's apps under DP

For readers who ask how much of an app of Flower's changes, and what it costs in accuracy. The page
is made by `python benchmarks/flower_apps.py page` from `flower_apps.json` and
`flower_statistics.json` in `benchmarks/results`.

Each app comes from Flower's repository at commit `{commit}`. Its loader reads local data
in place of a hub's, and `benchmarks/flower_apps/private` has the change that makes it private.
Data, split and FedAvg's figure of each were fixed before its first private run. FedAvg runs at the
app's own settings, unless `benchmarks/_flower_app_list.py` names others. Some of them learn
slowly: `opacus` has a learning rate of 0.001. Settings of private runs were chosen on a held-out
tenth of the training rows, in trials of the same training outside of Flower.
{earlier}
- **Figure**: accuracy, or mean squared error per pixel, on rows that nobody trained on.
  For the two apps that ask by `query` it is the farthest from the exact answer. Under FedAvg,
  `vertical-fl` has its own training.
- **Near**: accuracy at most 5 points below FedAvg's. A squared error is near if it lies at most a
  tenth of the way from FedAvg's to the best constant's. A histogram is near within 3 points in each
  bin, a survival curve within 0.05 on each day.
- **Epsilon**: total of one row, or of one client, in the whole run, at δ = 1e-5 (codewords,
  embeddings and statistics: δ = 0).
- **Lines**: added plus removed by `git diff --numstat` after `ruff format`, without imports and
  loader. Functions that the app no longer calls may stay, and are not counted.
- **Minutes** of one run on half a core of a busy machine.
- **Seeds** of the split and the first weights, of FedAvg and private if they differ; of statistics,
  draws of noise. Deviations are given from two seeds on.

"""
_TABLE = """\
| app | data, nodes | constant | FedAvg | private | seeds | ε | near | lines | minutes |
|---|---|---|---|---|---|---|---|---|---|
"""
_ROUTES = """
## Routes

"""
_REST = """
## Reasons and notes

"""


def page(found: dict[str, Any], asked: dict[str, Any]) -> str:
    """Return the page of the results files of trainings and of statistics."""
    apps = [one for one in found["summary"] if "nodes" in one]
    run = [one for one in apps if one["private"]]
    statistics = [one for one in asked["summary"] if "nodes" in one]
    near = sum(one["near"] for one in run + statistics)
    said = (
        f"**{near} of the 14 apps within reach are near**, of {len(run + statistics)} that were "
        "run in private.\n\n"
    )
    cells = [_cells(one) for one in run] + [_told(one) for one in statistics]
    rows = "".join(f"| {' | '.join(one)} |\n" for one in cells)
    routes = "".join(
        _wrapped(f"- **{one['name']}**: {one['route']}, per {one['unit']}.") for one in run
    )
    routes += "".join(
        f"- **{one['app']}**: [tables by query](statistics.md#flowers-apps), per row.\n"
        for one in statistics
    )
    left = [one for one in found["summary"] if one not in run or one["reason"]]
    reasons = "".join(_wrapped(f"- **{one['name']}**: {_reason(one)}.") for one in left)
    head = _HEAD.format(commit=found["flower_commit"][:12], earlier=_earlier(run))
    (silent,) = (one for one in asked["summary"] if one["app"].endswith(" 10 days, no noise"))
    curve = statistics[1]["worst"], statistics[1]["worst_between"], silent["worst_between"]
    reasons += _CURVE.format(*(mean for mean, _ in curve))
    return head + said + _TABLE + rows + _ROUTES + routes + _REST + reasons + _TAIL


_CURVE = """\
- **federated-kaplan-meier-fitter**: at the ends of intervals it is {:.3f} off. Lines between them
  are {:.3f} off, and without noise {:.3f} ([statistics](statistics.md#flowers-apps)).
"""
_TAIL = """
The other way round, by codewords: [eight of Flower's apps](eight_apps.md).

Next: [DP-SGD through the gate](dpsgd_release.md).
"""


def _earlier(run: list[dict[str, Any]]) -> str:
    """Return what says which private runs were evaluated on the test rows before those shown."""
    names = [
        f"`{one['name']}` ({', '.join(_figure(one['metric'], x, None) for x in one['earlier'])})"
        for one in run
        if one["earlier"]
    ]
    if not names:
        return ""
    text = (
        "Runs at other settings preceded those shown, on the same test rows, and are in the file: "
        f"{'; '.join(names)}."
    )
    return fill(text, 100, break_on_hyphens=False) + "\n"


def _cells(one: dict[str, Any]) -> list[str]:
    metric, (fedavg, spread) = one["metric"], one["fedavg"]
    seeds = one["seeds"]
    return [
        f"`{one['name']}`",
        f"{one['data']}, {one['nodes']}",
        _figure(metric, one["constant"], None),
        _figure(metric, fedavg, spread),
        _figure(metric, *one["private"]),
        f"{seeds[0]}" if seeds[0] == seeds[1] else f"{seeds[0]}, {seeds[1]}",
        f"{one['epsilon']:g}",
        "yes" if one["near"] else "no",
        str(one["lines"]),
        f"{one['minutes']:g}",
    ]


def _told(one: dict[str, Any]) -> list[str]:
    """Return the cells of an app that asks by query."""
    mean, spread = one.get("worst_between", one["worst"])
    off = f"{mean:.1f} ± {spread:.1f} points" if one["unit"] == "points" else None
    return [
        f"`{one['app']}`",
        f"{one['data']}, {one['nodes']}",
        "",
        "exact",
        f"{off or f'{mean:.3f} ± {spread:.3f}'} off",
        str(one["runs"]),
        f"{one['epsilon']:g}",
        "yes" if one["near"] else "no",
        str(one["lines"]),
        "",
    ]


def _figure(metric: str, value: float, spread: float | None) -> str:
    if metric == "accuracy":
        return f"{100 * value:.1f}{'' if spread is None else f' ± {100 * spread:.1f}'} %"
    return f"{value:.4f}{'' if spread is None else f' ± {spread:.4f}'}"


def _wrapped(text: str) -> str:
    return fill(text, 100, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def _reason(one: dict[str, Any]) -> str:
    if not one.get("fedavg"):
        return str(one["reason"])
    return f"{one['reason']} (FedAvg {_figure(one['metric'], *one['fedavg'])})"

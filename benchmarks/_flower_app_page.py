"""docs/flower_apps.md, from the results of :mod:`flower_apps`."""

from __future__ import annotations

from textwrap import fill
from typing import Any

_HEAD = """\
# Flower's apps under DP

For readers who ask how much of an app of Flower's changes, and what it costs in accuracy. The page
is made by `python benchmarks/flower_apps.py page` from `benchmarks/results/flower_apps.json`.

Each app comes from Flower's repository at commit `{commit}`. Its loader reads local data
in place of a hub's, and `benchmarks/flower_apps/private` has the change that makes it private.
Data, split and FedAvg's figure of each were fixed before its first private run. FedAvg runs at the
app's own settings, unless `benchmarks/_flower_app_list.py` names others. Some of them learn
slowly: `opacus` has a learning rate of 0.001. Settings of private runs were chosen on a held-out
tenth of the training rows, in trials of the same training outside of Flower. Where a setting was
taken over from another app, the list at the end says so.
{earlier}
- **Figure**: accuracy, or mean squared error per pixel, on rows that nobody trained on.
- **Near**: accuracy at most 5 points below FedAvg's. A squared error is near if it lies at most a
  tenth of the way from FedAvg's to the best constant's.
- **Epsilon**: total of one row, or of one client, in the whole run, at δ = 1e-5 (codewords: δ = 0).
- **Lines**: added plus removed by `git diff --numstat` after `ruff format`, without imports and
  loader.
- **Minutes** of one run on half a core of a busy machine.
- **Seeds** of the split and the first weights, of FedAvg and private if they differ. Deviations are
  given from two seeds on.

"""
_TABLE = """\
| app | data, nodes | constant | FedAvg | private | seeds | ε | near | lines | minutes |
|---|---|---|---|---|---|---|---|---|---|
"""
_ROUTES = """
## Routes

"""
_REST = """
## Not near, and not run

"""


def page(found: dict[str, Any]) -> str:
    """Return the page of a results file."""
    apps = [one for one in found["summary"] if "nodes" in one]
    run = [one for one in apps if one["private"]]
    near = sum(one["near"] for one in run)
    said = (
        f"**{near} of the 12 apps within reach are near FedAvg**, of {len(run)} that were run in "
        "private.\n\n"
    )
    rows = "".join(f"| {' | '.join(_cells(one))} |\n" for one in run)
    routes = "".join(f"- **{one['name']}**: {one['route']}, per {one['unit']}.\n" for one in run)
    left = [one for one in found["summary"] if one not in run or one["reason"]]
    reasons = "".join(
        fill(text, 100, subsequent_indent="  ", break_on_hyphens=False) + "\n"
        for text in (f"- **{one['name']}**: {_reason(one)}." for one in left)
    )
    head = _HEAD.format(commit=found["flower_commit"][:12], earlier=_earlier(run))
    return head + said + _TABLE + rows + _ROUTES + routes + _REST + reasons + _TAIL


_TAIL = """
The other way round, by codewords: [eight of Flower's apps](eight_apps.md). Two more ask for
[statistics by query](statistics.md#flowers-apps): 11 and 8 lines.

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


def _figure(metric: str, value: float, spread: float | None) -> str:
    if metric == "accuracy":
        return f"{100 * value:.1f}{'' if spread is None else f' ± {100 * spread:.1f}'} %"
    return f"{value:.4f}{'' if spread is None else f' ± {spread:.4f}'}"


def _reason(one: dict[str, Any]) -> str:
    if not one.get("fedavg"):
        return str(one["reason"])
    return f"{one['reason']} (FedAvg {_figure(one['metric'], *one['fedavg'])})"

"""What a comparison leaves behind: a table, a history file and a plot."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy
from flower_ldp.privacy import PrivacySpent, Unit, meaning


def publish(output: Path, methods: list[str], policies: dict[tuple[str, int], Path]) -> None:
    """Print the table; write ``history.json`` and ``history.png`` to ``output``.

    Parameters
    ----------
    output : Path
        Where to.
    methods : list of str
        In the order of the table.
    policies : dict of (str, int) to Path
        The clients' policy of each method and seed, with ``<method>.json`` and the ledger
        beside it.
    """
    runs = [
        {"method": name, "seed": seed, **_read(policy.parent / f"{name}.json")}
        for (name, seed), policy in policies.items()
    ]
    spent = max((_spent(policy) for policy in policies.values()), key=lambda total: total.epsilon)
    summary = [_summary(name, runs, spent) for name in methods]
    body = {"summary": summary, "runs": runs}
    (output / "history.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    _print_table(summary, spent)
    _plot(output / "history.png", methods, runs)
    print(f"wrote {output / 'history.json'} and {output / 'history.png'}", flush=True)


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _spent(policy: Path) -> PrivacySpent:
    """Return the most that a client has spent per label, by its own ledger."""
    path = load_policy(policy).ledger
    if not path.exists():
        return PrivacySpent(Unit.LABEL, 0.0)
    with Ledger.open(path, read_only=True) as ledger:
        totals = [ledger.totals(account) for account in ledger.data_ids()]
    found = [total[Unit.LABEL].spent(Unit.LABEL) for total in totals if Unit.LABEL in total]
    return max(found, key=lambda total: total.epsilon, default=PrivacySpent(Unit.LABEL, 0.0))


def _summary(method: str, runs: list[dict[str, Any]], spent: PrivacySpent) -> dict[str, Any]:
    last = [run["rounds"][-1]["accuracy"] for run in runs if run["method"] == method]
    return {
        "method": method,
        "seeds": len(last),
        "accuracy_mean": round(statistics.mean(last), 4),
        "accuracy_standard_deviation": (
            round(statistics.stdev(last), 4) if len(last) > 1 else None
        ),
        "epsilon_per_label": None if method == "no-privacy" else spent.epsilon,
    }


def _print_table(summary: list[dict[str, Any]], spent: PrivacySpent) -> None:
    table = Table(title="Training on private labels, simulation")
    for name in ("method", "accuracy", "spread over seeds", "seeds", "epsilon per label"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in summary:
        spread = row["accuracy_standard_deviation"]
        table.add_row(
            row["method"],
            format(row["accuracy_mean"], ".4f"),
            "-" if spread is None else format(spread, ".4f"),
            str(row["seeds"]),
            "none" if row["epsilon_per_label"] is None else format(row["epsilon_per_label"], "g"),
        )
    console = Console(width=100)
    console.print(table)
    console.print(f"By the clients' ledgers a label has cost {spent}. {meaning(spent)}")


def _plot(target: Path, methods: list[str], runs: list[dict[str, Any]]) -> None:
    """Draw the mean accuracy over rounds, and every seed thinly."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, name in enumerate(methods):
        curves = [
            [row["accuracy"] for row in run["rounds"]] for run in runs if run["method"] == name
        ]
        rounds = range(len(curves[0]))
        for curve in curves:
            axes.plot(rounds, curve, color=f"C{number}", alpha=0.25, linewidth=0.8)
        mean = [statistics.mean(values) for values in zip(*curves, strict=True)]
        style = "--" if name == "no-privacy" else "-"
        axes.plot(rounds, mean, style, color=f"C{number}", label=name)
    axes.set(xlabel="round", ylabel="accuracy on held-out images", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(target, dpi=140)
    plt.close(figure)

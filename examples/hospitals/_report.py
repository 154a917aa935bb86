"""What all runs leave behind: the owners' ledgers, a table and a plot. Not part of the app."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit, meaning

TITLES = {
    "fedavg": "FedAvg, without privacy",
    "alone": "each site alone, without privacy",
    "dpsgd": "DP-SGD at five sites, FedAvg on the server",
    "dpsgd-alone": "DP-SGD at each site alone",
}


def print_ledgers(paths: list[Path]) -> None:
    """Say what the hospitals' own ledgers hold: the truth about what was spent."""
    spent = None
    for path in paths:
        with Ledger.open(path, read_only=True) as ledger:
            for account in ledger.data_ids():
                spent = ledger.totals(account)[Unit.EXAMPLE].spent(Unit.EXAMPLE)
                print(f"ledger of {account}: epsilon {spent.epsilon:g}, delta {spent.delta:g}")
    if spent is not None:
        print(f"That is per patient, for all rounds together. {meaning(spent)}")


def publish(folder: Path) -> None:
    """Print a table of all runs, and draw accuracy over rounds to ``history.png``."""
    found = {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name in TITLES
        if (path := folder / f"{name}-history.json").exists()
    }
    table = Table(title="114 held-out patients")
    for heading in ("run", "epsilon per patient", "accuracy", "of the sites"):
        table.add_column(heading)
    for name, history in found.items():
        last = history["last"]
        sites = "" if len(last) == 1 else f"{100 * min(last):.1f} to {100 * max(last):.1f}"
        price = "1" if name.startswith("dpsgd") else "none"
        table.add_row(TITLES[name], price, f"{100 * history['accuracy'][-1]:.1f} %", sites)
    Console(width=100).print(table)
    _plot(found, folder / "history.png")


def _plot(found: dict[str, dict[str, list[float]]], target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, history in found.items():
        line = "-" if name.startswith("dpsgd") else "--"
        rounds = range(len(history["accuracy"]))
        axes.plot(rounds, history["accuracy"], line, label=TITLES[name])
    axes.set(xlabel="round", ylabel="accuracy on held-out patients", ylim=(0.3, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(target, dpi=140, format="png")
    plt.close(figure)
    print(f"wrote {target}", flush=True)

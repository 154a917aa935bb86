"""What a run leaves behind: a table, a history file and a plot.

Two examples have this very file, as an app is installed alone; a test holds the copies together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Result
from rich.console import Console
from rich.table import Table

from flower_ldp.privacy import PrivacySpent, Unit, meaning
from flower_ldp.safe_files import replacing

_MAX_ROWS = 20
_TITLES = {
    "codeword": "Codewords, simulation",
    "signds": "SignDS, simulation",
    "dp-encrypt": "DP_ENCRYPT, simulation",
    "fedavg": "FedAvg, without protection",
}
# Heading and format of what a round may have; a table has those that its rounds have.
_COLUMNS = {
    "round": ("round", "d"),
    "accuracy": ("accuracy", ".4f"),
    "epsilon-total": ("total epsilon", "g"),
    "delta-total": ("total delta", ".3g"),
    "epsilon-round": ("epsilon this round", "g"),
    "bytes-up": ("bytes up per client", ",.0f"),
    "r-est": ("r_est", ".3g"),
    "noise-deviation": ("noise", ".3g"),
}


def publish(result: Result, config: Mapping[str, Any], folder: Path) -> None:
    """Print the table; write ``<strategy>-history.json`` and ``history.png`` to ``folder``.

    Parameters
    ----------
    result : Result
        What ``strategy.start`` returned.
    config : mapping
        The run's configuration, kept with the history.
    folder : Path
        Made if it does not exist. The plot shows every history in it.
    """
    numbers = {*result.evaluate_metrics_serverapp, *result.train_metrics_clientapp}
    rounds = [_row(result, number) for number in sorted(numbers)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{config['strategy']}-history.json"
    history = json.dumps({"config": dict(config), "rounds": rounds}, indent=1) + "\n"
    with replacing(path) as file:
        file.write(history.encode())
    _print_table(str(config["strategy"]), rounds)
    plot(folder)
    print(f"wrote {path.resolve()} and {(folder / 'history.png').resolve()}", flush=True)


def _row(result: Result, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"round": number}
    row |= result.evaluate_metrics_serverapp.get(number, {})
    train = result.train_metrics_clientapp.get(number)
    if train is not None:
        row |= {name: value for name, value in train.items() if name != "loss"}
    if result.arrays is not None and train is not None and "bytes-up" not in row:
        row["bytes-up"] = sum(array.numpy().nbytes for array in result.arrays.values())
    return row


def _print_table(strategy: str, rounds: list[dict[str, Any]]) -> None:
    table = Table(title=_TITLES[strategy])
    last = rounds[-1]
    columns = {name: form for name, form in _COLUMNS.items() if last.get(name)}
    for heading, _ in columns.values():
        table.add_column(heading, justify="right")
    stride = max(1, -(-len(rounds) // _MAX_ROWS))
    for row in rounds:
        if row["round"] % stride and row is not last:
            continue
        table.add_row(*(_cell(row, name, form) for name, (_, form) in columns.items()))
    console = Console(width=100)
    console.print(table)
    if "epsilon-total" in last:
        spent = PrivacySpent(Unit.CLIENT, last["epsilon-total"], last.get("delta-total", 0.0))
        console.print(f"Each client has spent {spent}. {meaning(spent)}")


def _cell(row: dict[str, Any], name: str, form: str) -> str:
    return format(row[name], form) if name in row else "-"


def plot(folder: Path) -> Path:
    """Draw accuracy over rounds of every history in ``folder`` to ``history.png``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for path in sorted(folder.glob("*-history.json")):
        history = json.loads(path.read_text(encoding="utf-8"))
        rounds = history["rounds"]
        size = next((row["bytes-up"] for row in rounds if "bytes-up" in row), 0)
        evaluated = [row for row in rounds if "accuracy" in row]
        private = "epsilon-round" in rounds[-1]
        label = _TITLES[history["config"]["strategy"]].removesuffix(", simulation")
        if private:
            label += f", total epsilon {rounds[-1]['epsilon-total']:g} a client"
        axes.plot(
            [row["round"] for row in evaluated],
            [row["accuracy"] for row in evaluated],
            label=f"{label}: {size:,.0f} bytes up",
            linestyle="-" if private else "--",
        )
    axes.set(xlabel="round", ylabel="accuracy on held-out images", ylim=(0, 1))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    target = folder / "history.png"
    with replacing(target) as file:
        figure.savefig(file, dpi=140, format="png")
    plt.close(figure)
    return target

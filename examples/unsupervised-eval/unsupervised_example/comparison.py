"""The protected curves beside the true ones, which no server of a real federation has.

The true score of a round is that of the rows of **all** clients under the model of that round,
without a mechanism; the true loss is the mean of all clients' mean losses. A protected value is of
the few who were asked in that round, so that it has the error of a sample and that of the noise.
The truth is computed here, after the app has ended and outside of it, from the models that the
server saved and from the images of the simulated clients. That is possible because this is a
simulation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from flower_ldp.safe_files import replacing
from flower_ldp.strategies import ClusterScore
from unsupervised_example import data, model, report

_TITLES = {"laplace": "Laplace", "codebook": "Codebook"}
_MAX_ROWS = 13
_LEAST_ROUNDS = 3


def true_rows_and_loss(
    images: data.Images,
    places: NDArray[np.int64],
    net: model.ClusteringAutoencoder,
) -> tuple[NDArray[np.float32], float]:
    """Return all clients' rows and mean loss, without protection.

    ``places``, shape (clients, images of each), says which images a client holds; the first is
    the one whose row it sends.
    """
    rows, losses = model.predictions_and_losses(net, images.clients)
    return rows[places[:, 0]], float(losses[places].mean())


def compare(folder: Path, clients: int, score: str) -> dict[str, Any]:
    """Add the true score and loss to each evaluated round of a run.

    Parameters
    ----------
    folder : Path
        Of the run: the server's history and the models.
    clients : int
        How many there were.
    score : str
        As in :class:`~flower_ldp.strategies.ClusterScore`.

    Returns
    -------
    dict
        The server's history with ``true-score`` and ``true-loss`` in its rounds, and of each
        protected curve against the true one ``spearman``, the rank correlation over rounds, and
        ``error``, the mean absolute difference.
    """
    (path,) = folder.glob("*.json")
    history: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    images = data.of_run(history["config"])
    net = model.ClusteringAutoencoder(images.side, float(history["config"]["sharpness"]))
    places = np.stack([images.places(number) for number in range(clients)])
    for row in history["rounds"]:
        model.restore(net, folder / "models" / f"{row['round']}.npz")
        rows, loss = true_rows_and_loss(images, places, net)
        value = ClusterScore(score).of_rows(rows)
        row["true-loss"] = loss
        # NaN is no JSON: a score that is not defined (a single cluster) is left out.
        row |= {"true-score": value} if np.isfinite(value) else {}
    both = {name: _both(history["rounds"], name) for name in ("score", "loss")}
    history["spearman"] = {name: rank_correlation(pairs) for name, pairs in both.items()}
    history["error"] = {
        name: float(np.mean([abs(found - true) for found, true in pairs])) if pairs else None
        for name, pairs in both.items()
    }
    return history


def _both(rounds: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    """Return the protected and the true value of each round that has both."""
    return [(row[name], row[f"true-{name}"]) for row in rounds if {name, f"true-{name}"} <= {*row}]


def rank_correlation(both: list[tuple[float, float]]) -> float | None:
    """Return Spearman's correlation of a protected curve with the true one; None if undefined."""
    if len(both) < _LEAST_ROUNDS or min(len({*column}) for column in zip(*both, strict=True)) < 2:
        return None
    return float(spearmanr(*zip(*both, strict=True)).statistic)


def publish(histories: list[dict[str, Any]], folder: Path) -> None:
    """Print the tables; write ``history.json`` and ``unsupervised_eval.png``."""
    console = Console(width=100)
    for history in histories:
        console.print(_table(history))
        console.print(_summary(history))
    path = folder / "history.json"
    report.write_whole(path, json.dumps({"runs": histories}, indent=1) + "\n")
    print(f"wrote {path} and {plot(histories, folder)}", flush=True)


def _title(history: dict[str, Any]) -> str:
    return _TITLES[history["config"]["protection"]]


def _total(history: dict[str, Any]) -> str:
    """Return what a client has spent in the whole run, before anything else is said of it."""
    return f"{_title(history)}: epsilon {history['epsilon-total']:g} of each client in all"


def _correlation(history: dict[str, Any], name: str) -> str:
    value = history["spearman"][name]
    return "undefined" if value is None else f"{value:.2f}"


def _summary(history: dict[str, Any]) -> str:
    return (
        f"{_total(history)}; rank correlation (Spearman) with the truth over rounds: "
        f"score {_correlation(history, 'score')}, loss {_correlation(history, 'loss')}"
    )


def _table(history: dict[str, Any]) -> Table:
    table = Table(title=f"{_total(history)} (simulation)")
    columns = {
        "round": "round",
        "true score": "true-score",
        "protected score": "score",
        "true loss": "true-loss",
        "protected loss": "loss",
        "clustering accuracy": "clustering-accuracy",
    }
    for name in columns:
        table.add_column(name, justify="right")
    rounds = history["rounds"]
    stride = max(1, -(-len(rounds) // _MAX_ROWS))
    for row in rounds:
        if row["round"] % stride == 0 or row is rounds[-1]:
            table.add_row(*(_cell(row, key) for key in columns.values()))
    return table


def _cell(row: dict[str, Any], name: str) -> str:
    if name not in row:
        return "-"
    return format(row[name], "g" if name == "round" else ".3f")


def plot(histories: list[dict[str, Any]], folder: Path) -> Path:
    """Draw score and loss over rounds, with and without protection, a panel for each run."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(histories), figsize=(5.6 * len(histories), 4.4), layout="constrained", squeeze=False
    )
    for panel, history in zip(panels[0], histories, strict=True):
        _draw(panel, history)
    target = folder / "unsupervised_eval.png"
    with replacing(target) as file:
        figure.savefig(file, dpi=110, format="png")
    plt.close(figure)
    return target


def _draw(panel: Any, history: dict[str, Any]) -> None:
    losses = panel.twinx()
    drawn = []
    for axes, name, colour in ((panel, "score", "tab:blue"), (losses, "loss", "tab:orange")):
        for key, style, label in (
            (f"true-{name}", "-", f"{name}, without protection"),
            (name, "--", f"{name}, protected: Spearman {_correlation(history, name)}"),
        ):
            points = [(row["round"], row[key]) for row in history["rounds"] if key in row]
            if points:
                drawn += axes.plot(*zip(*points, strict=True), style, color=colour, label=label)
    panel.set(
        title=_total(history),
        xlabel="round",
        ylabel="score of the clients' predictions",
    )
    losses.set_ylabel("mean loss of the clients")
    panel.grid(alpha=0.3)
    panel.legend(
        drawn,
        [line.get_label() for line in drawn],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.13),
        ncols=2,
        fontsize="small",
        frameon=False,
    )

"""The picture of accuracies against total epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_STYLES = {
    "codeword": "o-",
    "privunit": "s-",
    "projunit": "D--",
    "signds": "^-",
    "gaussian": "v-",
    "central": "P:",
}


def plot(lines: list[dict[str, Any]], labels: dict[str, str], path: Path) -> None:
    """Draw each randomizer in its best settings; without privacy there is no epsilon, but a line.

    Parameters
    ----------
    lines : list of dict
        The results' summary.
    labels : dict of str
        Of each randomizer, and what it trusts.
    path : Path
        PNG to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, label in labels.items():
        mine = [line for line in lines if line["randomizer"] == name and line["kind"] == "free"]
        means = [100 * line["accuracy_mean"] for line in mine]
        if name not in _STYLES:
            axes.axhline(max(means), color="black", linewidth=1, label=label)
            continue
        axes.errorbar(
            [line["epsilon_total"] for line in mine],
            means,
            [100 * line["accuracy_standard_deviation"] for line in mine],
            fmt=_STYLES[name],
            linewidth=1.4,
            markersize=5,
            capsize=3,
            label=label,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_xlabel("total ε of a client, which is asked once")
    axes.set_ylabel("test accuracy, %")
    axes.set_title("MNIST, a linear layer, 1,000 clients (who is trusted)", fontsize=11)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    figure.savefig(path)

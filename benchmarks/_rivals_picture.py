"""The picture of accuracies against total epsilon."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

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
    from PIL import Image

    figure = Figure(figsize=(7.0, 5.2), dpi=100, layout="constrained")
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
    # By the logarithm of errors: 94 and 96 % are as far apart as 40 and 60 %.
    axes.set_yscale("function", functions=(_height, lambda height: 100 - np.exp(-height)))
    axes.set_ylim(20, 99.2)
    ticks = [20, 40, 60, 70, 80, 85, 90, 93, 95, 96, 97, 98, 99]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylabel("test accuracy, %, by the logarithm of errors")
    axes.set_title("MNIST, a linear layer, 1,000 clients (who is trusted)", fontsize=11)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)


def _height(percent: Any) -> Any:
    return -np.log(np.maximum(100 - percent, 1e-3))

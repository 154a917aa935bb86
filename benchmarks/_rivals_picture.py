"""Pictures of accuracies against total epsilon."""

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
    figure, axes = _figure("MNIST, a linear layer, 1,000 clients (who is trusted)")
    for name, label in labels.items():
        mine = [line for line in lines if line["randomizer"] == name and line["kind"] == "free"]
        if name in _STYLES:
            _line(axes, mine, _STYLES[name], label)
        else:
            best = max(line["accuracy_mean"] for line in mine)
            axes.axhline(100 * best, color="black", linewidth=1, label=label)
    _save(figure, path)


def plot_headline(
    totals: list[dict[str, Any]],
    lines: list[dict[str, Any]],
    shuffled: list[dict[str, Any]],
    path: Path,
) -> None:
    """Draw codewords with 1,000 and 10,000 clients, FedAvg and LocalDpMod's noise.

    Parameters
    ----------
    totals : list of dict
        Summary of ``totals.py``.
    lines : list of dict
        Summary of ``rivals.py``.
    shuffled : list of dict
        Summary of ``shuffled.py``, drawn at its central epsilons.
    path : Path
        PNG to write.
    """
    figure, axes = _figure("MNIST, a linear layer on fixed features, each client asked once")
    free = [line for line in lines if line["kind"] == "free"]
    plain = max(line["accuracy_mean"] for line in free if line["randomizer"] == "none")
    axes.axhline(100 * plain, color="black", linewidth=1, label="FedAvg, no privacy")
    for clients, style in ((10_000, "s-"), (1_000, "o-")):
        mine = [line for line in totals if line["row"].startswith(f"{clients:,} clients, ")]
        mine = [line for line in mine if "Dirichlet" not in line["row"]]
        _line(axes, mine, style, f"flower-ldp's codewords, {clients:,} clients")
        mixed = [line for line in shuffled if line["row"].startswith(f"{clients:,} clients, ")]
        mixed = [line for line in mixed if line["kind"] == "shuffled"]
        mixed = [{**line, "epsilon_total": line["central_epsilon"]} for line in mixed]
        label = f"shuffled, central ε (δ = 1e-6), {clients:,} clients"
        _line(axes, mixed, {"s-": "C0P", "o-": "C1X"}[style], label)
    noised = [line for line in free if line["randomizer"] == "gaussian"]
    _line(axes, noised, "v--", "Gaussian noise as in LocalDpMod (δ = 1e-5), 1,000 clients")
    _save(figure, path)


def _figure(title: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 5.2), dpi=100, layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    axes.set_xlabel("total ε of a client, which is asked once")
    # By the logarithm of errors: 94 and 96 % are as far apart as 40 and 60 %.
    axes.set_yscale("function", functions=(_height, lambda height: 100 - np.exp(-height)))
    axes.set_ylim(20, 99.2)
    ticks = [20, 40, 60, 70, 80, 85, 90, 93, 95, 96, 97, 98, 99]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylabel("test accuracy, %, by the logarithm of errors")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.3)
    return figure, axes


def _height(percent: Any) -> Any:
    return -np.log(np.maximum(100 - percent, 1e-3))


def _line(axes: Any, rows: list[dict[str, Any]], style: str, label: str) -> None:
    axes.errorbar(
        [row["epsilon_total"] for row in rows],
        [100 * row["accuracy_mean"] for row in rows],
        [100 * row["accuracy_standard_deviation"] for row in rows],
        fmt=style,
        linewidth=1.4,
        markersize=5,
        capsize=3,
        label=label,
    )


def _save(figure: Any, path: Path) -> None:
    from PIL import Image

    figure.legend(fontsize=8, loc="outside lower center", ncols=2)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)

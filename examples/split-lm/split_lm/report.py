"""What a comparison leaves behind: a table, a JSON file and a plot."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

_CLAIMS = {
    "conditional": "conditional on the bottom model",
    "float": "nothing is protected",
    "quantized": "nothing is protected",
    "random bits": "nothing is told",
}


def save(output: Path, runs: list[dict[str, Any]], head: dict[str, Any]) -> list[dict[str, Any]]:
    """Write ``result.json`` and ``loss.png`` to the folder; return a row for each kind of run.

    Parameters
    ----------
    output : Path
        Where to.
    runs : list of dict
        One for each run and seed: ``run``, ``seed``, ``held-out``, ``losses``, and what was
        told and charged where it was released.
    head : dict
        What all runs have in common: ``unigram``, ``command`` and the configuration.
    """
    names = list(dict.fromkeys(run["run"] for run in runs))
    summary = [_summary(name, [run for run in runs if run["run"] == name]) for name in names]
    short = [{**run, "losses": [round(loss, 3) for loss in run["losses"]]} for run in runs]
    head = {**head, "summary": summary}
    lines = ",\n".join(json.dumps(run) for run in short)  # a line for each run
    text = json.dumps(head, indent=1).removesuffix("\n}") + f',\n "runs": [\n{lines}\n]}}\n'
    (output / "result.json").write_text(text, encoding="utf-8")
    _plot(output / "loss.png", names, runs, float(head["unigram"]))
    return summary


def publish(output: Path, summary: list[dict[str, Any]], head: dict[str, Any]) -> None:
    """Print the table, and where everything is."""
    _print(summary, head)
    print(f"wrote {output / 'result.json'} and {output / 'loss.png'}", flush=True)


def _summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    found = [run["held-out"] for run in runs]
    first = runs[0]
    return {
        "run": name,
        "seeds": len(found),
        "held-out": statistics.mean(found),
        "standard-deviation": statistics.stdev(found) if len(found) > 1 else None,
        "label-epsilon": first.get("label-epsilon"),
        "epsilon-train-record": first.get("ledger", {}).get("train"),
        "epsilon-test-record": first.get("ledger", {}).get("test"),
        "claim": _CLAIMS[first.get("claim", name)],
    }


def _print(summary: list[dict[str, Any]], head: dict[str, Any]) -> None:
    config, unigram = head["config"], head["unigram"]
    bits = config["context"] * config["width"]
    table = Table(title="Held-out text, nats per token (a byte)")
    for title in ("run", "loss", "perplexity", "below unigram"):
        table.add_column(title, justify="left" if title == "run" else "right")
    table.add_column("label\nepsilon", justify="right")
    table.add_column("epsilon of\na window, in all", justify="right")
    table.add_column("what it covers")
    table.add_row("unigram entropy", f"{unigram:.3f}", f"{math.exp(unigram):.2f}")
    for row in summary:
        loss, spread = row["held-out"], row["standard-deviation"]
        text = f"{loss:.3f}" + ("" if spread is None else f" ± {spread:.3f}")
        gain, paid = f"{unigram - loss:+.3f}", row["epsilon-train-record"]
        label = "0" if row["run"] == "random bits" else _number(row["label-epsilon"])
        told = "0" if row["run"] == "random bits" else _number(paid)
        table.add_row(row["run"], text, f"{math.exp(loss):.2f}", gain, label, told, row["claim"])
    console = Console(width=120)
    console.print(table)
    console.print(
        f"A record is a window of {config['context']} tokens, {bits} bits. The label is the "
        f"epsilon of a one-hot record; {bits} free bits cost {bits} times half of it, at every "
        "release. A total of hundreds is no protection that a theorem gives.",
        highlight=False,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,g}" if value < 1e6 else f"{value:g}"


def _plot(target: Path, names: list[str], runs: list[dict[str, Any]], unigram: float) -> None:
    """Draw the loss of each run over steps, the mean of seeds, and the unigram line."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, name in enumerate(names):
        found = np.array([run["losses"] for run in runs if run["run"] == name]).mean(axis=0)
        smooth = max(1, len(found) // 40)
        mean = np.convolve(found, np.ones(smooth) / smooth, "valid")
        axes.plot(np.arange(len(mean)) + smooth, mean, color=f"C{number}", label=name)
    axes.axhline(unigram, color="black", linestyle="--", linewidth=1, label="unigram entropy")
    axes.set(xlabel="step", ylabel="training loss, nats per token", ylim=(None, unigram + 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right")
    figure.savefig(target, dpi=140)
    plt.close(figure)

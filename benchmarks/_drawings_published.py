"""Drawings of the published experiments' curves, from their result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _drawings_canvas import BLUE, ORANGE, Sheet

RESULTS = Path(__file__).resolve().parent / "results"
Curve = list[tuple[float, float]]
#: Without protection, and with it.
STYLES = {"NOT_ENCRYPT": (ORANGE, (0, (5, 2))), "SIGNDS": (BLUE, "-"), "LAPLACE": (BLUE, "-")}


def runs(name: str) -> list[dict[str, Any]]:
    return list(json.loads((RESULTS / f"{name}.json").read_text())["runs"])


def curves(title: str, panels: dict[str, dict[str, Curve]]) -> Sheet:
    """Draw panels one above the other, each with a curve of either kind over rounds."""
    sheet = Sheet(48 + 196 * len(panels), title)
    for number, kind in enumerate(next(iter(panels.values()))):
        sheet.key(66 + 160 * number, 14, kind, STYLES[kind][0], line=STYLES[kind][1])
    for number, (name, lines) in enumerate(panels.items()):
        axes = sheet.plot(66, 36 + 196 * number, 362, 148)
        for kind, curve in lines.items():
            colour, dashes = STYLES[kind]
            axes.plot(*zip(*curve, strict=True), color=colour, linestyle=dashes, linewidth=1.5)
        last = number == len(panels) - 1
        axes.set(ylabel=name, xlabel="round" if last else None, xlim=(0, None))
    return sheet


def published_signds() -> Sheet:
    """Draw loss and AUC of LeNet over rounds, by SignDS and without protection."""
    found = {run["kind"]: run["curve"] for run in runs("published-signds")}
    panels = {
        name: {
            kind: [(row["round"], row[name]) for row in found[kind]]
            for kind in ("NOT_ENCRYPT", "SIGNDS")
        }
        for name in ("loss", "auc")
    }
    panels["AUC"] = panels.pop("auc")
    return curves("Loss and AUC over rounds, SignDS beside no protection", panels)


def published_evaluation() -> Sheet:
    """Draw loss and silhouette over rounds, with Laplace noise and without protection."""
    first = runs("published-evaluation")[0]
    every = first["settings"]["every"]
    plain, noisy = first["not_encrypt"], first["by_epsilon"][0]["laplace"]
    shown = {
        "loss": {"NOT_ENCRYPT": plain["loss"], "LAPLACE": first["laplace"]["loss"]},
        "silhouette": {"NOT_ENCRYPT": plain["score"], "LAPLACE": noisy["score"]},
    }
    panels = {
        name: {kind: [(every * n, y) for n, y in enumerate(ys)] for kind, ys in lines.items()}
        for name, lines in shown.items()
    }
    return curves("Loss and silhouette over rounds, with Laplace noise and without", panels)

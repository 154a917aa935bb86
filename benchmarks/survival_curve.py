"""A survival curve of two sites with sampling and noise in its band, drawn by lifelines.

    python benchmarks/survival_curve.py

The fruit flies of lifelines are two sites, each asked once at an epsilon of 2 a fly. The noise is
that of a seeded source. Needs the extra ``plots``, pandas and lifelines.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import typer
from lifelines import KaplanMeierFitter
from lifelines.datasets import load_waltons

from flower_ldp.mechanisms import RandomSource
from flower_ldp.strategies import CountsQuery, SurvivalCurve, survival

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
EPSILON = 2.0


def asked(seed: int) -> SurvivalCurve:
    """Return the curve of both sites' noisy tables."""
    query = CountsQuery({"T": range(0, 81, 10), "E": ["0", "1"]}, [("T", "E")], epsilon=EPSILON)
    mechanism, rng = query.proposal.mechanism, RandomSource.seeded(seed)
    flies = load_waltons()
    total = np.zeros(sum(mechanism.cells), dtype=np.int64)
    for _, site in flies.groupby("group"):
        places = query.proposal.places({"T": site["T"].to_numpy(), "E": site["E"]}, len(site))
        total += mechanism.randomize((places, np.arange(len(site))), rng)
    return survival(query.tables(total, len(flies), 2)["T", "E"], time="T", event="E")


def main(output: Annotated[Path, typer.Argument()] = IMAGES / "survival_curve.png") -> None:
    """Draw it beside the exact curve, whose band has sampling alone."""
    flies, curve = load_waltons(), asked(2)
    figure, axes = plt.subplots(figsize=(6.4, 3.6), dpi=100, layout="constrained")
    exact = KaplanMeierFitter(label="exact, with sampling").fit(flies["T"], flies["E"])
    exact.plot_survival_function(ax=axes, color="#b04a00", ci_alpha=0.15)
    noisy = KaplanMeierFitter(label=f"epsilon {EPSILON:g}, with sampling and noise").fit(curve.time)
    noisy.survival_function_.iloc[1:, 0] = curve.survival
    noisy.confidence_interval_.iloc[1:] = np.array([curve.low, curve.high]).T
    noisy.plot_survival_function(ax=axes, color="#0a5cb8", drawstyle="default", marker="o", ms=4)
    axes.set(xlabel="days", ylabel="share alive", xlim=(0, 80), ylim=(0, 1.02))
    figure.savefig(output)


if __name__ == "__main__":
    typer.run(main)

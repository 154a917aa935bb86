"""Drawings of MagRR's estimate, Laplace noise, and the silhouette."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from _drawings_canvas import BLUE, GREY, INK, LIGHT_BLUE, MINUS, ORANGE, PALE, Sheet
from _drawings_signds import bell
from numpy.typing import NDArray

from flower_ldp.mechanisms import Laplace, LaplacePlan, MagRR, RandomSource
from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.magrr import Phase
from flower_ldp.strategies import ClusterScore

#: What texts that take a sensitivity of 1 publish for noise below 1e-5.
PUBLISHED = 230_260


def magrr_estimate() -> Sheet:
    """Draw the estimate of a hundred clients' magnitude, which halves every 25 rounds."""
    rounds, clients, rng = 80, 100, RandomSource.seeded(5)
    mechanism = MagRR(epsilon=1.0, initial_estimate=2.0**-10)
    truth = 0.1 * 2.0 ** (-np.arange(rounds) / 25)
    states = [mechanism.start()]
    for typical in truth:
        state = states[-1]
        values = typical * np.exp(bell(clients, rng) / 4)
        bits = [mechanism.randomize(bool(value < state.threshold), rng) for value in values]
        states.append(mechanism.advance(state, sum(bits), clients))
    value = np.array([state.value for state in states[:rounds]])
    growing = [state.phase is Phase.GROWTH for state in states[:rounds]]

    sheet = Sheet(308, "MagRR's estimate over rounds")
    dashes = (0, (5, 2))
    sheet.key(54, 10, "r_est", BLUE, line="-")
    sheet.key(140, 10, "to 2 r_est", LIGHT_BLUE)
    sheet.key(262, 10, "true magnitude r", ORANGE, line=dashes)
    sheet.key(54, 32, "growth", PALE)
    sheet.key(140, 32, "contraction", "none")
    axes: Any = sheet.plot(54, 48, 374, 222)
    edges = np.arange(rounds + 1) + 0.5
    turns = np.flatnonzero(np.diff([False, *growing, False])).reshape(-1, 2)
    for first, end in turns:
        axes.axvspan(edges[first], edges[end], color=PALE, linewidth=0)
    axes.stairs(2 * value, edges, baseline=value, fill=True, color=LIGHT_BLUE)
    axes.stairs(value, edges, color=BLUE, linewidth=2, baseline=None)
    axes.plot(np.arange(rounds) + 1, truth, color=ORANGE, linewidth=2, linestyle=dashes)
    axes.set_yscale("log")
    axes.set(xlim=(0.5, rounds + 0.5), ylim=(7e-4, 0.25), xlabel="round")
    axes.set_yticks([0.001, 0.01, 0.1], ["0.001", "0.01", "0.1"])
    axes.minorticks_off()
    return sheet


def density(mechanism: Laplace, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the density of the noise on an entry, whose grid is too fine to see."""
    logs = [mechanism.noise.log_prob(round(x * mechanism.steps)) for x in at]
    return mechanism.steps * np.exp(logs)


def laplace_density() -> Sheet:
    """Draw the density at the published epsilon and at a useful one, at the scale of each."""
    useful, published = LaplacePlan(4.0), LaplacePlan.from_published(PUBLISHED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoProtectionWarning)
        wide, narrow = (Laplace(plan.epsilon, classes=10) for plan in (useful, published))
    x, unit = np.linspace(-2, 2, 161), 1e-5
    sheet = Sheet(380, "Density of Laplace noise at two epsilons")
    axes: Any = sheet.plot(70, 48, 358, 96)
    heights = density(wide, x)
    axes.fill_between(x, heights, color=LIGHT_BLUE, linewidth=0)
    axes.plot(x, heights, color=BLUE, linewidth=2)
    axes.axvline(0, color=ORANGE, linewidth=2)
    axes.set(xlim=(-2, 2), ylim=(0, 1.1), xticks=range(-2, 3), yticks=[0, 1])
    axes.set_xlabel("noise on a probability")
    sheet.text(2, 10, f"ε = {useful.epsilon:g}: 90 % below {useful.noise_below(0.9):.2f}", BLUE)
    sheet.text(2, 32, f"ε = {published.epsilon:,.0f}: the line at 0", ORANGE)

    axes = sheet.plot(70, 244, 358, 96)
    heights = density(narrow, x * unit)
    axes.plot(x, heights, color=ORANGE, linewidth=2)
    axes.axhline(density(wide, np.zeros(1))[0], color=BLUE, linewidth=2)
    axes.set(xlim=(-2, 2), ylim=(0, 1.1 * heights.max()), xticks=range(-2, 3))
    axes.set_yticks([0, heights.max()], ["0", f"{heights.max():,.0f}"])
    axes.set_xlabel(f"noise, in units of {unit:.5f}")
    words = f"ε = {published.epsilon:,.0f}, published as {PUBLISHED:,}:"
    sheet.text(2, 216, f"{words}\n90 % below {published.noise_below(0.9):.5f}", ORANGE)
    return sheet


def silhouette() -> Sheet:
    """Draw two clusters of rows on the simplex, and the distances from one of the rows."""
    rng = RandomSource.seeded(2)
    centres = np.array([[0.62, 0.12, 0.26], [0.12, 0.62, 0.26]])
    rows = np.repeat(centres, 6, axis=0) + 0.06 * bell(36, rng).reshape(12, 3)
    rows = np.clip(rows, 0.01, None)
    rows /= rows.sum(axis=1, keepdims=True)
    labels = rows.argmax(axis=1)
    place = int(np.argmax(np.where(labels == 0, rows[:, 1], 0)))
    away = np.linalg.norm(rows - rows[place], axis=1)
    a = away[labels == 0].sum() / ((labels == 0).sum() - 1)
    b = away[labels == 1].mean()

    sheet = Sheet(380, "The silhouette of one row")
    corners = np.array([[88.0, 254.0], [352.0, 254.0], [220.0, 254.0 - 132 * math.sqrt(3)]])
    shown = rows @ corners
    for word, (x, y), shift in zip(("1", "2", "3"), corners, (14, 14, -13), strict=True):
        sheet.text(x, y + shift, f"class {word}", GREY, "center")
    sheet.line(*corners[[0, 1, 2, 0]].T)
    for label, colour in enumerate((BLUE, ORANGE)):
        for x, y in shown[labels == label]:
            dashes = "-" if label == 0 else (0, (5, 2))
            sheet.line([shown[place, 0], x], [shown[place, 1], y], colour, 1.2, dashes=dashes)
        marker = "os"[label]
        sheet.page.plot(*shown[labels == label].T, marker, color=colour, markersize=8)
    sheet.page.plot(*shown[place], "o", color=INK, markersize=11)
    sheet.key(60, 296, f"a = {a:.2f}, mean to its own cluster", BLUE, line="-")
    sheet.key(60, 320, f"b = {b:.2f}, mean to the other", ORANGE, line=(0, (5, 2)))
    score = ClusterScore().of_rows(rows)
    sheet.text(60, 344, f"s = (b {MINUS} a) / max(a, b) = {(b - a) / max(a, b):.2f}")
    sheet.text(60, 368, f"score, the mean over all rows: {score:.2f}")
    return sheet

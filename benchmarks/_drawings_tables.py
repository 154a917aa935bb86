"""Drawing of statistics by query: a histogram and a survival curve with their noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from _drawings_canvas import BLUE, LIGHT_BLUE, ORANGE, Sheet
from sklearn.datasets import load_breast_cancer

from flower_ldp.mechanisms import RandomSource
from flower_ldp.strategies import CountsQuery, CountTable, survival
from flower_ldp.wire.counts import Levels

SITES = 5


def asked(columns: dict[str, Levels], rows: dict[str, Any], seed: int) -> CountTable:
    """Return the sum of five sites' noisy tables at an epsilon of 1 a row, without agreement."""
    query = CountsQuery(columns, [tuple(columns)], epsilon=1.0)
    proposal, rng = query.proposal, RandomSource.seeded(seed)
    size = len(next(iter(rows.values())))
    places = proposal.places(rows, size)
    parts = [(places[i::SITES], np.arange(len(places[i::SITES]))) for i in range(SITES)]
    total = sum(proposal.mechanism.randomize(part, rng) for part in parts)
    noisy = proposal.mechanism.estimate(np.asarray(total)).reshape(proposal.shape(tuple(columns)))
    best = np.maximum(noisy, 0.0)
    return CountTable(columns, best, noisy, proposal.deviation(SITES), 3.0 / SITES)


def tables_by_query() -> Sheet:
    """Draw the mean radius of 569 patients' nuclei, and simulated survival of 1,000 patients."""
    sheet = Sheet(468, "A histogram and a survival curve of five sites, epsilon 1 a row")
    radius = load_breast_cancer().data[:, 0]
    edges = np.linspace(6.0, 30.0, 13)
    table = asked({"radius": edges.tolist()}, {"radius": radius}, 3)
    rows, truth = table.rows(), np.histogram(radius, edges)[0] / len(radius)
    sheet.key(54, 10, "with noise", LIGHT_BLUE)
    sheet.key(160, 10, "exact", ORANGE, line="-")
    axes: Any = sheet.plot(54, 28, 374, 162)
    axes.stairs(rows["share"], edges, fill=True, color=LIGHT_BLUE)
    middles = (edges[1:] + edges[:-1]) / 2
    axes.vlines(middles, rows["share_low"], rows["share_high"], color=BLUE, linewidth=2)
    axes.stairs(truth, edges, color=ORANGE, linewidth=2)
    axes.set(xlim=(6, 30), ylim=(0, None), xlabel="mean radius", ylabel="share")

    draws = np.random.default_rng(1)
    lives, leaves = draws.normal(55, 13, 1_000), draws.uniform(20, 140, 1_000)
    time, event = np.clip(np.minimum(lives, leaves), 0, 99), (lives <= leaves).astype(int)
    ends = np.arange(0.0, 101.0, 5.0)
    table = asked({"t": ends.tolist(), "e": ["0", "1"]}, {"t": time, "e": event}, 4)
    curve = survival(table, time="t", event="e")
    order = np.argsort(time)
    exact = np.cumprod(1 - event[order] / np.arange(len(time), 0, -1))
    axes = sheet.plot(54, 258, 374, 162)
    with_start = [np.insert(one, 0, 1.0) for one in (curve.survival, curve.low, curve.high)]
    axes.fill_between(ends, with_start[1], with_start[2], color=LIGHT_BLUE, linewidth=0)
    axes.plot(ends, with_start[0], color=BLUE, linewidth=2)
    axes.step(time[order], exact, where="post", color=ORANGE, linewidth=2)
    axes.set(xlim=(0, 100), ylim=(0, 1.02), xlabel="time", ylabel="survival")
    return sheet

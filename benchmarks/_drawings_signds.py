"""Drawings of SignDS: a round, the published example, and the bytes of a report."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from _drawings_canvas import BLUE, GREY, INK, LIGHT_BLUE, MINUS, ORANGE, PALE, TIMES, Sheet
from numpy.typing import NDArray

from flower_ldp.mechanisms import BinaryResponse, RandomSource, SignDS
from flower_ldp.mechanisms.signds import HEADER_BYTES, Selection, sum_of_signs, top_by_sort
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.wire.proposal import append_health

#: Of the published example: updates, and each client's report with positions from 0.
UPDATES = np.array(
    [
        [0.4, 0.1, -0.2, 0.3, 0.5, 0.1, -0.2, -0.3],
        [0.5, 0.2, 0.0, 0.1, 0.3, 0.2, -0.1, -0.2],
        [0.3, 0.1, -0.1, 0.5, 0.2, 0.3, 0.0, 0.1],
    ]
)
REPORTS = (
    Selection(np.array([0, 4, 7]), 1),
    Selection(np.array([1, 2, 3]), -1),
    Selection(np.array([2, 5, 6]), 1),
)


def signed(value: float, digits: str = "g") -> str:
    """Return a number with a minus sign that is as wide as a plus sign."""
    return format(value, digits).replace("-", MINUS)


def bell(size: int, rng: RandomSource) -> NDArray[np.float64]:
    """Return numbers of about a normal law, the same on every platform."""
    sums = rng.integers(1001, 12 * size).reshape(12, size).sum(axis=0)
    return np.asarray((sums - 6000) / 1000)


def signds_round() -> Sheet:
    """Draw one client's report of 24 entries, and the sums of a hundred clients."""
    dimension, clients, rng = 24, 100, RandomSource.seeded(1)
    mechanism = SignDS(epsilon=4.0, k=0.25, dim_out=3)
    plan = mechanism.plan(dimension, quiet=True)
    common = bell(dimension, rng)
    updates = [common + bell(dimension, rng) / 2 for _ in range(clients)]
    reports = [mechanism.randomize(update, rng) for update in updates]
    update, report = updates[0], reports[0]
    top = set(top_by_sort(update, plan.top_size, report.sign))
    size = SignDSRound(mechanism).report_length(dimension)

    sheet = Sheet(434, "A round of SignDS")
    places = 158 + 11.6 * np.arange(dimension)
    axis = [152, 430]
    sheet.box(2, 20, 436, 266)
    sheet.text(2, 9, "client", GREY, bold=True)
    sheet.text(12, 62, "the app's\nupdate u")
    sheet.bars(places, update, 62, 32, [GREY] * dimension, 8)
    sheet.line(axis, [62, 62])
    sheet.arrow((72, 84), (72, 112))

    sheet.box(8, 114, 424, 166, edge=BLUE)
    sheet.text(424, 126, "gate", BLUE, "right", bold=True)
    sign = signed(report.sign, "+d")
    sheet.text(14, 170, f"s = {sign}, a coin\nS: the {len(top)} largest\nentries of s·u")
    colours = [BLUE if place in top else GREY for place in range(dimension)]
    sheet.bars(places, report.sign * update, 174, 32, colours, 8)
    sheet.line(axis, [174, 174])
    inside = len(top & set(report.indices))
    sheet.text(14, 246, f"J: h = {plan.dim_out} indices,\n{inside} of them in S")
    for place, x in enumerate(places):
        chosen = place in report.indices
        sheet.box(x - 4.5, 237, 9, 18, fill=ORANGE if chosen else PALE, edge=None)
        if chosen:
            sheet.line([x, x], [208, 233], ORANGE, dashes=(0, (2, 2)))
    sheet.arrow((72, 268), (72, 324))
    sheet.text(84, 303, f"report: s and J, {size} bytes")

    sheet.box(2, 326, 436, 106)
    sheet.text(424, 338, "server", GREY, "right", bold=True)
    sheet.text(14, 384, f"sums of s at J,\n{clients} clients")
    sums = sum_of_signs(reports, dimension)
    sheet.bars(places, sums, 384, 36, [INK] * dimension, 8)
    sheet.line(axis, [384, 384])
    return sheet


def signds_example() -> Sheet:
    """Draw the published example: top sets, reports and the step at a rate of 1."""
    clients, dimension = UPDATES.shape
    size, h = 3, len(REPORTS[0].indices)
    left, wide, high = 84.0, 44.0, 36.0
    sheet = Sheet(240, "The published example of SignDS")
    for column in range(dimension):
        sheet.text(left + wide * (column + 0.5), 10, f"d{column + 1}", GREY, "center")
    for row, (update, report) in enumerate(zip(UPDATES, REPORTS, strict=True)):
        y = 22 + (high + 8) * row
        sheet.text(2, y + high / 2, f"client {row + 1}\ns = {signed(report.sign, '+d')}")
        top = set(top_by_sort(update, size, report.sign))
        for column, value in enumerate(update):
            x = left + wide * column
            fill = LIGHT_BLUE if column in top else None
            sheet.box(x, y, wide, high, signed(value), fill=fill)
            if column in report.indices:
                sheet.box(x + 3, y + 3, wide - 6, high - 6, edge=ORANGE, line=2.2)
    y = 22 + (high + 8) * clients + 6
    sheet.text(2, y + high / 2, "mean of\nthe signs")
    for column, total in enumerate(sum_of_signs(REPORTS, dimension)):
        words = str(Fraction(int(total), clients)).replace("-", MINUS)
        sheet.box(left + wide * column, y, wide, high, words, edge=INK)
    y += high + 14
    sheet.box(left, y, 26, 20, fill=LIGHT_BLUE)
    sheet.text(left + 33, y + 10, f"top set, K = {size}")
    sheet.box(left + 176, y, 26, 20)
    sheet.box(left + 178.5, y + 2.5, 21, 15, edge=ORANGE, line=2.2)
    sheet.text(left + 209, y + 10, f"reported, h = {h}")
    return sheet


def wire_report() -> Sheet:
    """Draw the bytes of a report with magnitude and health bit, and the bits of its two parts."""
    dimension, rng = 61_706, RandomSource.seeded(13)
    mechanism = SignDS(epsilon=8.0, k=0.2)
    asked = SignDSRound(mechanism, magnitude_epsilon=1.0, magnitude_threshold=1.0)
    drawn = asked.randomize(bell(dimension, rng), rng)
    report = append_health(
        asked.encode(drawn, dimension), BinaryResponse(1.0).randomize(False, rng)
    )
    h, code = len(drawn[0].indices), asked.report_length(dimension) - HEADER_BYTES
    each = ((dimension - h) // h).bit_length() - 1
    parts = (h * each, h + ((dimension - h) >> each))
    rest = 8 * code - sum(parts)
    if not 0 <= rest < 8:
        raise ValueError("the code of the indices is not plain")

    sheet, side, left = Sheet(284, "The bytes of a SignDS report"), 21.0, 10.0
    right = left + side * len(report)
    for place in range(8):
        bit = report[1] >> place & 1
        sheet.box(left + side * place, 8, side, 28, str(bit), edge=ORANGE)
    words = "bit 0: s is +1\nbit 1: magnitude bit asked\nbit 2: magnitude bit"
    sheet.text(left + 8 * side + 12, 32, words)
    x = left + 1.5 * side
    sheet.arrow((x, 112), (x, 40), ORANGE)
    sheet.text(x + 12, 90, "flags", ORANGE)

    top = 112.0
    sheet.text(right, top - 14, f"{len(report)} bytes in all", align="right")
    sheet.box(left, top, side, 28, f"{report[0]:02x}", fill=PALE)
    start = left + HEADER_BYTES * side
    words = f"indices: {code} bytes"
    sheet.box(start, top, code * side, 28, words, fill=LIGHT_BLUE, edge=BLUE)
    for place in range(1, code):
        sheet.line([start + place * side] * 2, [top + 23, top + 28], BLUE)
    sheet.box(left + side, top, side, 28, f"{report[1]:02x}", edge=ORANGE, line=2)
    sheet.box(right - side, top, side, 28, f"{report[-1]:02x}", dashed=True)
    sheet.text(left, top + 43, "version")
    sheet.text(right, top + 43, "health bit, if asked", align="right")
    sheet.arrow(((left + right) / 2, top + 28), ((left + right) / 2, 188), BLUE)

    x, top = left, 190.0
    for bits, words in zip(
        (*parts, rest), (f"{h} {TIMES} {each} low bits", f"{parts[1]}", ""), strict=True
    ):
        width = (right - left) * bits / (8 * code)
        sheet.box(x, top, width, 28, words, fill=LIGHT_BLUE if words else None, edge=BLUE)
        x += width
    sheet.text(right, top + 43, f"high bits as a bitmap, {rest} zeros", align="right")
    words = (
        f"d = {dimension:,}, ε = {mechanism.epsilon:g}, h = {h}; float32: {4 * dimension:,} bytes"
    )
    sheet.text(left, top + 80, words, GREY)
    return sheet

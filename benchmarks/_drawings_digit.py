"""A drawing of one digit's embedding, its bits, and the bits that leave."""

from __future__ import annotations

from typing import Any

import numpy as np
from _drawings_canvas import GREY, INK, ORANGE, Sheet
from _drawings_signds import bell
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from flower_ldp.mechanisms import RandomSource, UnaryEncoding

_CELL = 16.0
_SIDE = 8 * _CELL


def _grid(sheet: Sheet, left: float, top: float, values: NDArray[Any], wrong: Any = None) -> None:
    """Draw 64 numbers as squares by area: negative ones are hollow, wrong ones have a colour."""
    sheet.box(left, top, _SIDE, _SIDE)
    sides = (_CELL - 4) * np.sqrt(np.abs(values) / np.abs(values).max())
    styles: dict[tuple[str, str | None], list[tuple[float, float, float, float]]] = {}
    for place, (value, side) in enumerate(zip(values, sides, strict=True)):
        y, x = divmod(place, 8)
        corner = left + _CELL * (x + 0.5) - side / 2, top + _CELL * (y + 0.5) - side / 2
        colour = INK if wrong is None or not wrong[place] else ORANGE
        if side >= 1:
            style = colour, colour if value > 0 else None
            styles.setdefault(style, []).append((*corner, side, side))
    for (colour, fill), places in styles.items():
        sheet.boxes(places, edge=colour, fill=fill, line=1.2)


def embedding_bits() -> Sheet:
    """Draw a digit of scikit-learn's, its embedding by a fixed random bottom, and its bits."""
    rng = RandomSource.seeded(54)
    image = load_digits().data[13] / 16
    width = image.size
    embedding = bell(width * width, rng).reshape(width, width) @ image
    bits = UnaryEncoding(None, width).quantize(embedding)

    sheet = Sheet(358, "Bits of one digit")
    columns = (2.0, 156.0, 310.0)
    first = ("a digit", image), ("E, random bottom", embedding), ("B = [E > 0]", 2 * bits - 1)
    for left, (words, values) in zip(columns, first, strict=True):
        sheet.text(left, 10, words)
        _grid(sheet, left, 24, values)
    for left, label in zip(columns, (5.0, 1.0), strict=False):
        mechanism = UnaryEncoding(label, width)
        report = mechanism.randomize(embedding, rng)
        wrong = report != bits
        sheet.text(left, 180, f"P, label {label:g}")
        _grid(sheet, left, 194, 2.0 * report - 1, wrong)
        sheet.text(left, 342, f"ε = {mechanism.record_epsilon:g}, {wrong.sum()} flipped")
    for y, words, colour, fill in (
        (210, "1: above 0", INK, INK),
        (238, "0: others", INK, None),
        (266, "flipped", ORANGE, ORANGE),
    ):
        sheet.box(columns[2], y - 6, 12, 12, edge=colour, fill=fill, line=1.2)
        sheet.text(columns[2] + 20, y, words)
    sheet.text(columns[2], 304, "ε of a record\nper release", GREY)
    return sheet

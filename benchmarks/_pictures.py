"""Images in rows, each row with its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SIZE, HEAD, GAP = 0.5, 0.22, 0.1


def draw(rows: Mapping[str, Any], path: Path, left: float, titles: Sequence[str] = ()) -> None:
    """Write a picture.

    Parameters
    ----------
    rows : mapping of str to images
        As many in each; grey, in [0, 1].
    path : Path
        PNG to write; its folder is made.
    left : float
        Inches for the names.
    titles : sequence of str
        Above the columns, in turn; a gap is between turns.
    """
    from matplotlib.figure import Figure

    columns, head = len(next(iter(rows.values()))), HEAD if titles else 0.0
    gaps = columns // len(titles) if titles else 0
    width, height = left + SIZE * columns + GAP * gaps, head + SIZE * len(rows)
    figure = Figure(figsize=(width, height), dpi=100)
    for number, (name, images) in enumerate(rows.items(), start=1):
        bottom = 1 - (head + SIZE * number) / height
        middle = bottom + SIZE / 2 / height
        figure.text((left - 0.08) / width, middle, name, ha="right", va="center")
        for column, image in enumerate(images):
            before = GAP * (column // len(titles)) if titles else 0.0
            place = (left + SIZE * column + before) / width
            axis = figure.add_axes((place, bottom, 0.96 * SIZE / width, 0.96 * SIZE / height))
            axis.imshow(image, cmap="gray", vmin=0, vmax=1)
            axis.set_axis_off()
            if titles and number == 1:
                axis.set_title(titles[column % len(titles)], fontsize=9, pad=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)

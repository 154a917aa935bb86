"""A sheet of fixed width whose SVG takes other colours on a dark page.

Coordinates are in points from the upper left corner. The drawing is in the colours of a light page.
A style sheet in the SVG maps them to those of a dark one. Text stays text, and equal content gives
equal bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.path import Path
from numpy.typing import ArrayLike

WIDTH = 440.0
#: Size of text in points: 10 pixels where the sheet is shown 340 pixels wide.
TEXT = 13.0
#: From one line of text to the next.
LINE = 16.0
MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"
INK, GREY, PALE = "#1f2328", "#59636e", "#e3e8ed"
BLUE, LIGHT_BLUE = "#0a5cb8", "#cfe3fa"
ORANGE = "#b04a00"
#: Each colour on a dark page.
DARK = {
    INK: "#e6edf3",
    GREY: "#9aa5b1",
    PALE: "#2b323a",
    BLUE: "#6cb2ff",
    LIGHT_BLUE: "#1d4270",
    ORANGE: "#ff9f4a",
}
#: For Matplotlib, while a sheet is made.
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "flower-ldp",
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,
}
#: Verdana's letters are as wide as those that the layout was measured with; others are narrower.
_FONTS = "Verdana, 'DejaVu Sans', sans-serif"
Align = Literal["left", "center", "right"]
DASHES = (0, (4, 3))
Point = tuple[float, float]


class Style(TypedDict, total=False):
    """Of a rectangle."""

    edge: str | None
    fill: str | None
    line: float
    dashed: bool


class Sheet:
    """One drawing.

    Parameters
    ----------
    height : float
        In points.
    title : str
        For who cannot see the drawing.
    """

    def __init__(self, height: float, title: str) -> None:
        self.height, self.title = height, title
        self.figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        self.page: Any = self.figure.add_axes((0, 0, 1, 1))
        self.page.set(xlim=(0, WIDTH), ylim=(height, 0))
        self.page.set_axis_off()

    def plot(self, left: float, top: float, width: float, height: float) -> Any:
        """Return axes at a place of the sheet, with two spines."""
        below = self.height - top - height
        place = (left / WIDTH, below / self.height, width / WIDTH, height / self.height)
        axes = self.figure.add_axes(place)
        axes.spines[["top", "right"]].set_visible(False)
        axes.patch.set_visible(False)
        return axes

    def text(
        self,
        x: float,
        y: float,
        words: str,
        colour: str = INK,
        align: Align = "left",
        *,
        bold: bool = False,
    ) -> None:
        """Write words, with y at the middle of their lines."""
        for number, line in enumerate(lines := words.split("\n")):
            self.page.text(
                x,
                y + LINE * (number - (len(lines) - 1) / 2) + TEXT * 0.36,
                line,
                color=colour,
                ha=align,
                va="baseline",
                fontweight="bold" if bold else "normal",
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        colour: str = INK,
        *,
        bold: bool = False,
        **style: Unpack[Style],
    ) -> None:
        """Draw a rectangle with words in its middle."""
        self.boxes([(x, y, width, height)], **style)
        if words:
            self.text(x + width / 2, y + height / 2, words, colour, "center", bold=bold)

    def boxes(
        self, places: Sequence[tuple[float, float, float, float]], **style: Unpack[Style]
    ) -> None:
        """Draw rectangles (x, y, width, height) of one style."""
        corners = [
            [(x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)] for x, y, w, h in places
        ]
        edge = style.get("edge", GREY)
        self.page.add_patch(
            PathPatch(
                Path.make_compound_path(*(Path(points, closed=True) for points in corners)),
                facecolor=style.get("fill") or "none",
                edgecolor=edge or "none",
                linewidth=style.get("line", 1.0) if edge else 0,
                linestyle=DASHES if style.get("dashed") else "-",
                clip_on=False,
            )
        )

    def line(
        self,
        xs: ArrayLike,
        ys: ArrayLike,
        colour: str = GREY,
        width: float = 1.0,
        *,
        dashes: Any = "-",
    ) -> None:
        """Draw a line through points."""
        self.page.plot(xs, ys, color=colour, linewidth=width, linestyle=dashes, clip_on=False)

    def key(self, x: float, y: float, words: str, colour: str, *, line: Any = None) -> None:
        """Explain a fill, or a line by its dashes."""
        if line is None:
            self.box(x, y - 7, 24, 14, edge=GREY, fill=colour)
        else:
            self.line([x, x + 24], [y, y], colour, 2, dashes=line)
        self.text(x + 30, y, words)

    def arrow(self, start: Point, end: Point, colour: str = INK) -> None:
        """Draw an arrow."""
        self.page.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=11,
                shrinkA=0,
                shrinkB=0,
                clip_on=False,
                color=colour,
                linewidth=1.4,
            )
        )

    def bars(
        self,
        places: ArrayLike,
        values: ArrayLike,
        base: float,
        height: float,
        colours: list[str],
        width: float,
    ) -> None:
        """Draw signed bars from a base line, the longest ``height`` long."""
        found = np.asarray(values, dtype=np.float64)
        scale = height / np.abs(found).max()
        left = np.asarray(places) - width / 2
        spans = [
            (x, min(base, base - scale * v), width, scale * abs(v))
            for x, v in zip(left, found, strict=True)
        ]
        for colour in dict.fromkeys(colours):
            mine = [span for span, own in zip(spans, colours, strict=True) if own == colour]
            self.boxes(mine, edge=None, fill=colour)

    def svg(self) -> str:
        """Return the drawing as SVG, the same for the same content."""
        written = io.StringIO()
        fields = dict.fromkeys(("Date", "Creator", "Format", "Type")) | {"Title": self.title}
        self.figure.savefig(written, format="svg", transparent=True, metadata=fields)
        return _switching(written.getvalue())


def drawn(make: Callable[[], Sheet]) -> str:
    """Return the SVG of a drawing."""
    with rc_context(_SETTINGS):
        return make().svg()


def _switching(svg: str) -> str:
    """Return an SVG with the rules of a dark page, without what only some programs read."""
    svg = re.sub(r"<\?xml.*?<svg", "<svg", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: " + _FONTS, svg)
    svg = re.sub(r' id="[a-z]+[\da-z]*_\d+"', "", svg)  # what nothing refers to
    svg = re.sub(r'(?<= d=")[^"]*', lambda path: " ".join(path[0].split()), svg)
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    style = "</style>"
    svg = svg.replace(style, f"\n@media (prefers-color-scheme: dark){{{rules}}}{style}", 1)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"

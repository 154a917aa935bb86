"""The drawings of the pages: SVG for a light and a dark page, with the package's own numbers.

python benchmarks/drawings.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from _drawings_canvas import drawn
from _drawings_curves import laplace_density, magrr_estimate, silhouette
from _drawings_digit import embedding_bits
from _drawings_flows import protected_evaluation, shuffled_reports, split_learning
from _drawings_published import published_evaluation, published_signds
from _drawings_signds import signds_example, signds_round, wire_report
from _drawings_tables import tables_by_query

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
#: Each drawing by the name of its file.
DRAWINGS = {
    make.__name__: make
    for make in (
        signds_round,
        signds_example,
        wire_report,
        magrr_estimate,
        laplace_density,
        silhouette,
        protected_evaluation,
        split_learning,
        shuffled_reports,
        embedding_bits,
        published_signds,
        published_evaluation,
        tables_by_query,
    )
}


def main(folder: Annotated[Path, typer.Argument(help="Where to write.")] = IMAGES) -> None:
    """Draw all of them; equal versions of Matplotlib write equal files."""
    for name, make in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(drawn(make), encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)

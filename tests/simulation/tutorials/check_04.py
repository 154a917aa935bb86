"""A part of a model: six ways, one report of each client in each."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number

#: Numbers that a report is about, the verdict, and an accuracy that noise does not go below
#: (five classes; five deviations and more below what was seen).
ROWS = {
    "torch, head": ("165", "good", 60.0),
    "torch, all weights": ("6,405", "poor", 0.0),
    "torch, subspace": ("400", "good", 25.0),
    "torch, LoRA and head": ("389", "good", 50.0),
    "scikit-learn, head": ("205", "good", 55.0),
    "JAX, head": ("165", "good", 60.0),
}


def check(text: str) -> None:
    assert number(r"(\S+) images of 5 to 9 held out", text) == 256
    skipped = "JAX is not installed, so this app was skipped" in text
    for name, (numbers, verdict, least) in ROWS.items():
        row = rf"^{name} +{numbers} +[34]  {verdict} +(\S+)%  epsilon 8, 160 clients$"
        found = re.findall(row, text, flags=re.MULTILINE)
        assert len(found) == (name != "JAX, head" or not skipped), name
        assert all(float(accuracy) > least for accuracy in found), name
    assert text.count(": 160 reports of ") == len(ROWS) - skipped

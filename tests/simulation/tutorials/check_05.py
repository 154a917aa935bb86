"""Protected evaluation: each client once, and the metric is near the truth."""

from __future__ import annotations

import re

import pytest

from tests.simulation.tutorials.reading import number

#: The noise of a round's accuracy by the law, and a mean error of the six rounds that is eight
#: deviations above what noise and sampling give.
RUNS = {"Laplace": (0.141, 0.45), "codebook": (0.071, 0.25)}
ROUND = re.compile(r"^ +(\d+) +(\S+) +(\S+) +(\S+) +(\S+)$", re.MULTILINE)


def check(text: str) -> None:
    for name, (noise, most) in RUNS.items():
        assert (
            f"{name}: 300 clients answered; epsilon of a client in all: at most 8 by their ledger, "
            "8 by the server's count" in text
        )
        own = text.partition(f"{name}: deviation")[2].partition("mean error: accuracy")
        assert number(r"accuracy of a round (\S+)\n", own[0]) == pytest.approx(noise, abs=2e-3)
        rounds = [[float(value) for value in row] for row in ROUND.findall(own[0])]
        assert [row[0] for row in rounds] == [1, 2, 3, 4, 5, 6]
        assert rounds[-1][2] > 0.25  # the model, of ten classes
        assert number(r"^ (\S+),", own[2]) < most
    assert re.search(r"last round: the score shows -?\d+% of a difference", text)

"""Private labels: stored outputs are of MNIST, and a fresh run is of the digits."""

from __future__ import annotations

import re

import pytest

from tests.simulation.tutorials.reading import number


def check(text: str) -> None:
    assert number(r"(\S+) examples to train on", text) in (60_000, 1_437)
    assert number(r"whole orders.* (\S+)\n", text) == pytest.approx(1.0188, abs=1e-4)
    replaced = number(r"\n +epsilon (\S+) \(one example replaced", text)
    assert replaced == pytest.approx(0.885, abs=2e-3)
    assert "k = 2" in text
    assert "the same the second time: True" in text
    # RR at epsilon 1 flips 76.8 %: 1,437 digits stay within five deviations of it
    assert number(r"flipped: (\S+)%; the same", text) == pytest.approx(76.8, abs=5.6)
    charges = re.findall(r"^images/0: (.*)$", text, flags=re.MULTILINE)
    # what is about an example is about its label too
    example, both = "epsilon 1, delta 1e-05 per example", "epsilon 2, delta 1e-05 per label"
    first = [example, "epsilon 1, delta 1e-05 per label"]
    assert sorted(charges) == sorted([*first, example, both, example, both])

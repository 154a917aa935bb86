"""Private labels: stored outputs are of MNIST, and a fresh run is of the digits."""

from __future__ import annotations

import re

import pytest

from tests.simulation.tutorials.reading import number

#: Far below what the digits gave: 99, 52, 74, 74, 71 and 79 %.
LEAST = {
    "no privacy": 85.0,
    "RR, plain loss": 20.0,
    "RR, forward-corrected loss": 30.0,
    "RR-with-prior (central), plain loss": 35.0,
    "RR-with-prior (central), soft targets": 35.0,
    "RR, local priors, soft targets": 40.0,
}


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
    assert charges == ["epsilon 1 per label"] * 2
    # What was spent on labels besides, by each of the four combinations of the slips.
    spent = re.findall(r"^ +(?:1\.95|0\.9)  from [01] +(\S+) ", text, flags=re.MULTILINE)
    assert spent == ["2.05", "2.05", "1.00", "1.00"]
    assert "at epsilon 0.1 + 0.9 = 1\n" in text
    # Ten classes. On the digits DP-SGD learns next to nothing at this epsilon, the others much.
    for name, least in LEAST.items():
        assert number(rf"^{re.escape(name)}: (\S+)%", text) > least, name
    assert number(r"^DP-SGD: (\S+)%", text) < number(r"^no privacy: (\S+)%", text)

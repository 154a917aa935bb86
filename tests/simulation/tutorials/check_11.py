"""Statistics: three questions are answered within their noise, and a fourth has no budget."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number


def check(text: str) -> None:
    assert "patients at each hospital: 113 113 113 113 113" in text
    deviation = number(r"its deviation +(\S+),", text)
    assert number(r"noise of a count: (\S+) patients", text) == round(deviation, 1)
    # Of 16 counts, each a sum of five hospitals': 64 is ten deviations.
    assert 0 < number(r"worst of 16 counts is off by (\S+) of", text) < 64
    for name, mean in (("benign", 12.1), ("malignant", 17.5)):
        told = rf"^mean radius, {name}: (\S+) \[(\S+), (\S+)\], exactly (\S+)$"
        found, low, high, exact = numbers(told, text)
        assert abs(exact - mean) < 0.1
        assert low < found < high
        assert abs(found - exact) < 3
    table = re.findall(
        r"^\[\d+, \d+. +\[\d+, \d+. +\d+% +\d+% to +\d+% +(\d+)%$", text, re.MULTILINE
    )
    assert [int(one) for one in table] == [1, 8, 13, 54, 82, 98]
    # -6.0 without noise; of 100 draws -7.9 to -3.8.
    assert number(r"log-rank test: statistic (\S+), p", text) < 0
    for name in ("benign", "malignant"):
        told = rf"^alive after 60 months, {name}: (\S+)% \[(\S+)%, (\S+)%\], exactly (\S+)%$"
        found, low, high, exact = numbers(told, text)
        assert low <= high
        assert abs(found - exact) < 30  # six deviations
    spent = re.findall(r"^hospital/(\d): (.*)$", text, flags=re.MULTILINE)
    thrice = [(str(site), "epsilon 3 per example") for site in range(5)]
    assert spent == thrice + thrice  # after three questions, and after the one that was refused
    assert re.search(r"a fourth question: no site gave counts: .*refused:budget': 5", text)


def numbers(pattern: str, text: str) -> list[float]:
    """Return all groups of the first match."""
    found = re.search(pattern, text, flags=re.MULTILINE)
    assert found is not None, pattern
    return [float(one) for one in found.groups()]

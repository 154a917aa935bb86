"""Two hospitals: what each ledger says of a record, and accuracies within the noise of codes."""

from __future__ import annotations

import re

import pytest

from tests.simulation.tutorials.reading import number

REFERENCE = {
    "both hospitals, no privacy": 97.9,
    "size alone, no privacy": 96.8,
    "shape alone, no privacy": 92.1,
    "60 public patients, all columns": 96.3,
}
HALVES = {2: "1 + 1", 4: "2 + 2", 8: "4 + 4", 16: "8 + 8"}
#: Of 189 patients: the noise of codes moves the first by 3 points and the last by next to nothing.
LEAST = {2: 55.0, 4: 65.0, 8: 80.0, 16: 88.0}


def check(text: str) -> None:
    for name, accuracy in REFERENCE.items():
        assert number(rf"{name} +(\S+)%", text) == pytest.approx(accuracy, abs=1.5)
    assert len(re.findall(r"conditional on\s+the\s+bottom\s+model", text)) == 2
    assert "labels: epsilon 3 per label, in all; charged to patients/node-1\n" in text
    assert "the hospitals' ledgers: epsilon 4 and 4 of a record\n" in text
    for name in ("both, bottoms conditional", "both, bottoms public", "size alone, bottom public"):
        for total, least in LEAST.items():
            costs = f"{total}" if "alone" in name else HALVES[total]
            row = rf"^{name} +{re.escape(costs)} = +{total}  (\S+)%$"
            found = re.findall(row, text, flags=re.MULTILINE)
            assert len(found) == 1, row
            assert float(found[0]) > least, row

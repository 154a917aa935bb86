"""Choosing: a hopeless study learns nothing, and a good plan does."""

from __future__ import annotations

import re

import pytest

from tests.simulation.tutorials.reading import number

RUN = re.compile(
    r"^(?P<name>.{16}) +(?P<clients>\d+) clients +(?P<weights>\S+) weights +cosine (?P<cosine>\S+) "
    r"(?P<verdict>\w+) +accuracy +(?P<accuracy>\S+)% +at most (?P<spent>.*)$",
    re.MULTILINE,
)


def check(text: str) -> None:
    verdicts = re.findall(r"^verdict +(\w+)", text, flags=re.MULTILINE)
    assert verdicts == ["hopeless", "good"]
    assert number(r"cosine of the run's steps +(0\.\d+)", text) < 0.35
    runs = [run.groupdict() for run in RUN.finditer(text)]
    assert [int(run["clients"]) for run in runs] == [60, 480, 240, 60, 240, 240]
    assert [run["spent"] for run in runs] == [
        f"epsilon {total} per client" for total in (2, 8, 8, 8, 4, 2)
    ]
    study, plan = runs[:2]
    assert (study["weights"], study["verdict"]) == ("4,810", "hopeless")
    assert (plan["weights"], plan["verdict"]) == ("280", "good")
    # The cosine is a formula's. A guess is right in 10 % of all digits.
    assert float(plan["cosine"]) == pytest.approx(0.96, abs=0.05)
    assert float(study["accuracy"]) < 55
    assert float(plan["accuracy"]) > 65

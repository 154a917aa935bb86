"""What examples must each have, since an app is installed alone: the copies are the same."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_readers_of_digits_are_one_text() -> None:
    copies = sorted(EXAMPLES.glob("*/*/digits.py"))
    assert [path.parent.name for path in copies] == [
        "asked_once_example",
        "label_dp_example",
        "signds_example",
        "unsupervised_example",
    ]
    assert len({path.read_bytes() for path in copies}) == 1


def test_the_reports_are_one_text() -> None:
    names = ("asked-once/asked_once_example", "signds/signds_example")
    copies = [EXAMPLES / name / "report.py" for name in names]
    assert len({path.read_bytes() for path in copies}) == 1

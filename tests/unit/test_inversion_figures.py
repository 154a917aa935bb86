"""What the benchmarks' page says of gradient inversion is what was measured.

``python -m tests.unit.test_inversion_figures`` writes the measured rows into the table.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from flower_ldp.mechanisms import best_accuracy

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "README.md"
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "inversion_of_updates.json").read_text())
ROWS: dict[str, dict[str, Any]] = {row["sent"]: row for row in RESULTS["rows"]}
HEAD = (
    "| what the server sees | SSIM, DLG | MSE | SSIM, TV | MSE | image, of 100 | digit |",
    "|---|---|---|---|---|---|---|",
)


def nearness(found: dict[str, float]) -> list[str]:
    ssim = f"{found['ssim']:.3f} ± {found['ssim-deviation']:.3f}".replace("-0.000", "0.000")
    return [ssim, f"{found['mse']:.3f}"]


def row(name: str, found: dict[str, Any]) -> str:
    shown = [name, *nearness(found["deep-leakage"]), *nearness(found["with-prior"])]
    shown += [f"{100 * found[rate]:.0f} %" for rate in ("named", "digit")]
    return f"| {' | '.join(shown)} |"


def floor(name: str, found: dict[str, float]) -> str:
    return f"| {' | '.join([name, *nearness(found), *nearness(found), '—', '—'])} |"


def table() -> str:
    rows = [row(name, found) for name, found in ROWS.items()]
    return "\n".join([*HEAD, *rows, *(floor(*pair) for pair in RESULTS["floors"].items())])


def test_the_table_is_that_of_the_results() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = re.findall(r"<!-- updates -->\n\n(.*?)\n\n<!-- end -->", text, flags=re.DOTALL)
    assert shown == table(), "run python -m tests.unit.test_inversion_figures"


def test_only_the_update_itself_is_nearer_than_an_image_of_another_class() -> None:
    chance = RESULTS["floors"]["a random image of another class"]["ssim"]
    nearer = {
        name
        for name, found in ROWS.items()
        if max(found["deep-leakage"]["ssim"], found["with-prior"]["ssim"]) > chance
    }
    assert nearer == {"the update itself"}


def test_the_images_found_fit_reports_better_than_the_true_ones() -> None:
    cosines = {
        name: (found["cosine-with-the-true-update"], found["cosine-with-the-update-found"])
        for name, found in ROWS.items()
        if name != "the update itself"
    }
    assert all(found > true for true, found in cosines.values())
    true, found = cosines["SignDS, ε 100"]
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"For SignDS at 100 the cosines are {found:.2f} and {true:.2f}" in text


def test_no_image_is_named_more_often_than_epsilon_allows() -> None:
    for name in ("SignDS, ε 8", "a codeword, ε 8"):
        assert ROWS[name]["named"] <= best_accuracy(8.0, 100)
        assert ROWS[name]["digit"] <= best_accuracy(8.0, 10)
    limits = f"{100 * best_accuracy(8.0, 100):.1f} % and {100 * best_accuracy(8.0, 10):.1f} %"
    assert limits in PAGE.read_text(encoding="utf-8")


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    written = f"<!-- updates -->\n\n{table()}\n\n<!-- end -->"
    found = re.sub(r"<!-- updates -->.*?<!-- end -->", lambda _: written, text, flags=re.DOTALL)
    PAGE.write_text(found, encoding="utf-8")


if __name__ == "__main__":
    main()

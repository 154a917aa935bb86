"""The tables of audits beside the benchmark's command are those of its results.

``python -m tests.unit.test_audit_figures`` writes them there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "README.md"
HEAD = "| mechanism | strongest of its checks | claim | lower bound | draws |"
RULE = "|---|---|---|---|---|"
PATHS = "ClientApp, LdpMod, ledger, wire; "


def result() -> dict[str, Any]:
    found = json.loads((ROOT / "benchmarks/results/audit.json").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def table(cases: list[dict[str, Any]]) -> str:
    """Return a row for each mechanism: the check with the largest bound for its claim."""
    lines = [HEAD, RULE]
    for case in cases:
        most = max(case["checks"], key=lambda one: one["lower_bound"] / one["claimed"])
        cells = [
            case["mechanism"].replace(PATHS, ""),
            most["check"],
            f"{most['claimed']:g}",
            f"{most['lower_bound']:.3f}",
            f"{most['draws']:,}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_tables_are_those_of_the_results() -> None:
    page, found = PAGE.read_text(encoding="utf-8"), result()
    assert table(found["shipped"]) in page
    assert table(found["planted"]) in page


def test_nothing_shipped_and_all_that_is_planted_is_refuted() -> None:
    found = result()
    assert not any(case["refuted"] for case in found["shipped"])
    assert all(case["refuted"] for case in found["planted"])


def test_what_is_said_of_plans_at_an_epsilon_of_4_is_in_the_results() -> None:
    [plans] = (
        case["checks"] for case in result()["shipped"] if "wire; epsilon 4, d" in case["mechanism"]
    )
    one, two = (f"{check['lower_bound']:.2f}" for check in plans[:2])
    assert not any(check["lower_bound"] for check in plans[2:])
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"gave {one} and, in two rounds, {two} beside the claim of 4" in text


def main() -> None:
    """Write the tables into the page, in the order in which they stand there."""
    page, found = PAGE.read_text(encoding="utf-8"), result()
    for cases in (found["shipped"], found["planted"]):
        end = page.index(f"{HEAD}\n") if HEAD in page else -1
        if end < 0:
            raise ValueError("the page has no such tables")
        before, after = page[:end], page[end:]
        rest = after.split("\n\n", 1)[1]
        page = f"{before}{table(cases).replace(HEAD, HEAD.upper(), 1)}\n\n{rest}"
    PAGE.write_text(page.replace(HEAD.upper(), HEAD), encoding="utf-8")


if __name__ == "__main__":
    main()

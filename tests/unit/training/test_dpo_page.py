"""What the page for a data-protection officer says of numbers, files and erasure is so."""

from __future__ import annotations

import math
import re
import stat
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from flower_ldp.refusals import REFUSED_LEDGER, REFUSED_POLICY
from tests.unit.training.gated import ROWS, Site, weights

PAGE = (Path(__file__).parents[3] / "docs" / "dpo.md").read_text(encoding="utf-8")
WARD = ["ann-odonnell", "ben-okafor", "eve-lindqvist", "ida-marchetti"]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Four patients of two rows each."""
    groups = [name for name in WARD for _ in range(2)]
    return Site(
        tmp_path, example="patient", examples=4, arguments={"groups": groups, "max_rows": 2}
    )


def spent(folder: Path) -> float:
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        return ledger.totals("ward")[Unit.EXAMPLE].spent(Unit.EXAMPLE).epsilon


def test_the_odds_are_those_of_the_theorem_and_no_smaller() -> None:
    rows = re.findall(r"^\| (\d+) % \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 3
    for before, cells in rows:
        odds = int(before) / (100 - int(before))
        for epsilon, cell in zip((1, 2, 3, 8), cells.split(" | "), strict=True):
            after = odds * math.exp(epsilon)
            stated, exact = float(cell.split()[-2]), 100 * after / (1 + after)
            digit = 0.01 if re.search(r"\.\d\d", cell) else 0.1
            assert exact <= stated < exact + digit
    found = float(re.search(r"finds\s+at most ([\d.]+) %", PAGE)[1])  # type: ignore[index]
    assert 5 * math.e <= found < 5 * math.e + 0.1


def test_the_files_beside_the_ledger_are_those_of_the_page_and_name_no_patient(site: Site) -> None:
    weights(site.ask())
    found = {path.name: path for path in site.folder.iterdir()}
    own = {name for name in found if name.startswith("ledger.sqlite")}
    assert own == {
        "ledger.sqlite",
        "ledger.sqlite-journal",
        "ledger.sqlite-models-key",
        "ledger.sqlite.models",
    }
    for suffix in (".models", "-models-key"):
        assert f"`<ledger>{suffix}`" in PAGE
    models = [*found["ledger.sqlite.models"].iterdir()]
    assert len(models) == 1
    for path in (*models, *(found[name] for name in own)):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077
        if path.is_file():
            content = path.read_bytes()
            assert not any(name.encode() in content for name in WARD)


def without(site: Site, rows: slice, examples: int) -> Site:
    """Return the site with these rows alone."""
    left = {"groups": site.arguments["groups"][rows], "max_rows": 2, "data": ROWS[rows]}
    return Site(site.folder, example="patient", examples=examples, arguments=left)


def test_a_patient_who_is_removed_in_the_middle_of_a_plan_costs_the_others_nothing(
    site: Site,
) -> None:
    weights(site.ask("m-1"))
    charged = spent(site.folder)
    weights(without(site, slice(2, None), 4).ask("m-2"))
    assert spent(site.folder) == charged
    assert not site.counts().get("failed")


def test_without_its_ledger_and_with_nothing_allowed_a_site_refuses(site: Site) -> None:
    weights(site.ask("m-1"))
    policy = site.folder / "policy.yaml"
    text = policy.read_text()
    policy.write_text(re.sub(r"messages:\n(  .*\n)+", "messages: {train: {}}\n", text))
    assert "messages: {train: {}}" in PAGE
    assert site.ask("m-2").error.reason == REFUSED_POLICY
    policy.write_text(text)
    (site.folder / "ledger.sqlite").unlink()
    assert site.ask("m-2").error.reason == REFUSED_LEDGER


def test_the_number_of_patients_may_be_another_one_in_another_year(site: Site) -> None:
    weights(site.ask("m-1"))
    charged = spent(site.folder)
    weights(without(site, slice(6), 3).ask("m-2"))
    assert spent(site.folder) == 2 * charged

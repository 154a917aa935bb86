"""docs/start.md shows what its commands print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.cli import flower_ldp

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").replace("\\\n", "")
(PLAN, PLANNED), (SIMULATE, SIMULATED) = re.findall(
    r"```console\n\$ flower-ldp (.*)\n((?:.*\n)*?)```", PAGE
)


def test_the_plan_is_what_the_command_prints() -> None:
    assert flower_ldp(*PLAN.split()).out == PLANNED


def test_the_run_is_a_command_that_ends_well(tmp_path: Path) -> None:
    """With two nodes here, in one round, and a ledger that is no part of the checkout."""
    pytest.importorskip("sklearn")
    found = re.fullmatch(r"simulate (\S+) --nodes (\d+) +--policy (\S+)", SIMULATE)
    assert found
    app, nodes, policy = found.groups()
    own = shutil.copy(ROOT / policy, tmp_path)
    few = ("--nodes", 2, "--policy", own, "--run-config", "num-server-rounds=1")
    done = flower_ldp("simulate", ROOT / app, *few)
    assert done.code == 0, done.both
    assert "2 nodes" in done.both
    assert (nodes, SIMULATED) == ("100", "")

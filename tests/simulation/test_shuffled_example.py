"""The example of shuffled reports: an analyzer in a process of its own, and clients in others."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.fixtures import ROOT


@pytest.mark.skipif(sys.platform == "win32", reason="no analyzer there")
def test_the_example_runs_with_three_parts_and_says_both_numbers() -> None:
    command = [sys.executable, "examples/shuffled/run.py", "--clients", "60", "--rounds", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^round 2/2: accuracy 0\.\d+$", done.stdout, re.MULTILINE)
    assert "at most epsilon 4 per client (worst of 60 clients, a sum)" in done.stdout
    assert re.search(r"central epsilon [\d.]+ at delta 1e-06 among 30, for the", done.stdout)
    assert re.search(r"; [\d.]+ among 28, for a server", done.stdout)
    assert "answered: 30 reports, left out {}" in done.stderr

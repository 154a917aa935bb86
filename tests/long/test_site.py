"""The site's pages build without a warning. Python's names are built by the site's workflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lint import ROOT

pytest.importorskip("sphinx", reason="the extra docs is not installed")


def test_the_pages_build_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    options = ("-q", "-W", "--keep-going", "-b", "dummy", "-t", "pages", "-c", "docs")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, ".", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

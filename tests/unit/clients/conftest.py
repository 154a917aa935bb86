"""The fixture of files about labels, and of releases without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import make_site


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the file's policy, which the environment names, with a new ledger."""
    make_site(tmp_path, request.module.POLICY)
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(tmp_path / "policy.yaml"))
    return tmp_path

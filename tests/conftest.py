"""Fixtures that more than one folder of tests uses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def simulation_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped policy for simulations, named by the environment, with a new ledger."""
    path = tmp_path / "simulation_policy.yaml"
    shutil.copyfile(ROOT / "configs" / path.name, path)
    monkeypatch.setenv("FLOWER_LDP_POLICY", str(path))
    return path

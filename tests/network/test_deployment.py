"""The deployment guide, followed by its own script."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.network.certificates import DEPLOYMENT, make_certificates
from tests.network.certificates import _prepare as prepare
from tests.network.federation import in_a_hurry


def test_the_guide_runs_on_one_machine(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(DEPLOYMENT / "try_on_one_machine.sh"), "1", "2"],  # a round, two sites
        env={**in_a_hurry(), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(2):
        assert f"ward-{number}-images: 1 reports, epsilon 30 per client" in done.stdout
    assert "round 1/1: accuracy" in done.stdout
    (work,) = tmp_path.glob("flower-ldp-deployment.*")
    assert (work / "outputs" / "signds-history.json").exists()


def test_a_certificate_can_be_renewed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    first = make_certificates(tmp_path)
    authority, server = first.authority.read_bytes(), first.certificate.read_bytes()
    with pytest.raises(FileExistsError):
        make_certificates(tmp_path)
    first.certificate.unlink()
    first.key.unlink()
    make_certificates(tmp_path)
    assert first.authority.read_bytes() == authority
    assert first.certificate.read_bytes() != server
    assert first.key.stat().st_mode & 0o777 == 0o600
    prepare.site(tmp_path / "site", "ward-7", prepare.POLICY)
    with pytest.raises(FileExistsError):
        prepare.site(tmp_path / "site", "ward-7", prepare.POLICY)
    assert (tmp_path / "site").stat().st_mode & 0o777 == 0o700

"""The deployment guide, followed by its own script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit
from tests.cli import flower_ldp, process
from tests.network.certificates import DEPLOYMENT, make_certificates, prepared
from tests.network.federation import in_a_hurry

ROOT = DEPLOYMENT.parents[1]


def on_one_machine(route: str, folder: Path) -> str:
    """Return what the guide's script prints."""
    done = subprocess.run(
        [str(DEPLOYMENT / "try_on_one_machine.sh"), route, "1", "2"],  # a round, two sites
        env={**in_a_hurry(), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_few_sites_train_a_listed_app_and_are_asked_for_no_more(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = on_one_machine("dpsgd", tmp_path)
    (accuracy,) = re.findall(r"^final accuracy ([0-9.]+)", said, flags=re.MULTILINE)
    assert float(accuracy) > 0.7  # of the untrained model 0.61 to 0.75
    _, longer, again, ledgers = re.split(r"^== (?:one more|another|the sites)", said, flags=re.M)
    assert "ldp:refused:app" in longer
    assert "ldp:refused:budget" in again
    (work,) = tmp_path.glob("flower-ldp-deployment.*")
    for number in range(2):
        assert f"ward-{number}" in ledgers
        with Ledger.open(work / f"ward-{number}" / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            totals = ledger.totals(f"ward-{number}")
        assert {unit: str(one) for unit, one in totals.items() if one.epsilon} == {
            Unit.EXAMPLE: "epsilon 5, delta 0.00001",
            Unit.LABEL: "epsilon 5, delta 0.00001",
        }


def test_an_app_that_nobody_has_read_runs_in_a_sandbox(tmp_path: Path) -> None:
    said = on_one_machine("codeword", tmp_path)
    assert "round 1/1: accuracy" in said
    (work,) = tmp_path.glob("flower-ldp-deployment.*")
    assert (work / "outputs" / "codeword-history.json").exists()
    for number in range(2):
        with Ledger.open(work / f"ward-{number}" / "ledger.sqlite", read_only=True) as ledger:
            assert ledger.verify().sealed == 1
            assert ledger.totals(f"ward-{number}")[Unit.CLIENT].epsilon_text == "8"


def test_a_certificate_can_be_renewed_and_nothing_is_overwritten(tmp_path: Path) -> None:
    first = make_certificates(tmp_path)
    authority, server = first.authority.read_bytes(), first.certificate.read_bytes()
    assert prepared("certificates", str(tmp_path), "localhost", "127.0.0.1") == 1
    first.certificate.unlink()
    first.key.unlink()
    make_certificates(tmp_path)
    assert first.authority.read_bytes() == authority
    assert first.certificate.read_bytes() != server
    assert first.key.stat().st_mode & 0o777 == 0o600


def test_a_traceback_shows_no_values(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    (tmp_path / "ca.crt").write_text("damaged, while ca.key, read before it, is whole")
    words = (sys.executable, DEPLOYMENT / "prepare.py", "certificates", tmp_path, "localhost")
    done = process(*words)
    assert done.returncode == 1
    assert "load_pem_x509_certificate" in done.stderr
    assert "PosixPath(" not in done.stderr


def test_a_site_has_the_policy_of_the_command_line(tmp_path: Path) -> None:
    words = ("--epsilon", "5", "--examples", "91", "--rounds", "8", "--steps", "5", "--rate", "0.5")
    site, sample = tmp_path / "site", flower_ldp("policy", "sample", "--for", "dpsgd", *words).out
    assert prepared("site", str(site), "--data-id", "ward-7", *words) == 0
    found = (site / "policy.yaml").read_text()
    assert found == sample.replace("CHANGE-ME", '"ward-7"')
    assert site.stat().st_mode & 0o777 == 0o700
    assert flower_ldp("policy", "check", site / "policy.yaml").code == 0
    # its ledger remembers what was spent
    assert prepared("site", str(site), "--data-id", "ward-7", *words) == 2


def test_another_route_s_policy_and_no_key(tmp_path: Path) -> None:
    words = ("--data-id", "digits", "--for", "labels", "--epsilon", "4", "--no-node-key")
    assert prepared("site", str(tmp_path / "labels"), *words) == 0
    found = load_policy(tmp_path / "labels" / "policy.yaml")
    assert found.messages["train"]["kary_response"].epsilon == 4.0
    made = {one.name for one in (tmp_path / "labels").iterdir()}
    assert made == {"policy.yaml", "ledger.sqlite"}


@pytest.mark.parametrize(
    "words",
    [
        (),  # how many rows are there
        ("--examples", "91", "--epsilonn", "4"),
        ("--policy", str(DEPLOYMENT / "split" / "party.yaml"), "--epsilon", "4"),
    ],
)
def test_a_policy_that_cannot_be_leaves_no_folder(words: tuple[str, ...], tmp_path: Path) -> None:
    assert prepared("site", str(tmp_path / "site"), "--data-id", "ward-7", *words) == 2
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize("name", ["7", "null", "a: b", "ward 'seven' \"", "Säntis 🏔"])
def test_a_data_id_is_kept_as_it_is(name: str, tmp_path: Path) -> None:
    words = ("--data-id", name, "--for", "codeword", "--no-node-key")
    assert prepared("site", str(tmp_path / "site"), *words) == 0
    assert load_policy(tmp_path / "site" / "policy.yaml").data_id == name


@pytest.mark.parametrize(
    "name",
    ["", "ward #7", "ward\nreleases: {life: 999}", "ward\x85releases: {life: 999}", "\udcff"],
)
def test_a_data_id_that_cannot_be_leaves_no_folder(name: str, tmp_path: Path) -> None:
    words = ["site", str(tmp_path / "site"), "--data-id", name, "--for", "codeword"]
    done = process(sys.executable, DEPLOYMENT / "prepare.py", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    assert "error: the site's policy" in done.stderr
    assert not (tmp_path / "site").exists()


def test_a_site_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "file").write_text("")
    prepare = (sys.executable, DEPLOYMENT / "prepare.py", "site")
    words = ("--data-id", "ward-7", "--for", "codeword")
    there = process(*prepare, tmp_path / "site", *words)
    assert (there.returncode, "Traceback" in there.stderr) == (2, False)
    assert f"Error: Invalid value: {tmp_path / 'site'} exists, " in there.stderr
    beneath = process(*prepare, tmp_path / "file" / "site", *words)
    told = f"error: {tmp_path / 'file' / 'site'}: Not a directory\n"
    assert (beneath.returncode, beneath.stderr) == (1, told)


def test_the_guide_s_commands_for_a_site_are_right_as_written(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    guide = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```bash\n(flwr build .*?)```", guide, flags=re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    here = commands.replace("/var/lib/flower-ldp", str(tmp_path))
    done = process("bash", "-e", "-c", here, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    policy = load_policy(tmp_path / "ward-7" / "policy.yaml")
    assert (policy.data_id, policy.examples, len(policy.apps)) == ("ward-7", 152, 1)
    assert done.stdout.endswith((tmp_path / "ward-7" / "policy.yaml").read_text())

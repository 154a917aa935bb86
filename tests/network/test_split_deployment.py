"""Split learning's compose files and unit: their commands, run as they stand but for places."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import Unit
from tests.network.certificates import DEPLOYMENT, prepared
from tests.network.processes import free_port, is_listening, wait_for
from tests.network.samples import command, here
from tests.network.sites import ROOT
from tests.network.test_deployment_samples import Machine, machine, split, wait

SPLIT = DEPLOYMENT / "split"
POLICY = "FLOWER_LDP_POLICY="
__all__ = ["machine"]


def compose(name: str) -> dict[str, Any]:
    found = yaml.safe_load((SPLIT / name).read_text(encoding="utf-8"))["services"]
    assert isinstance(found, dict)
    return found


def preparing(name: str, what: str) -> list[list[str]]:
    """Return the words of each command of prepare.py in the comment of a sample."""
    text = (SPLIT / name).read_text(encoding="utf-8")
    commands = re.findall(rf"^#   python prepare.py ({what} .*)$", text, flags=re.MULTILINE)
    return [shlex.split(one, comments=True) for one in commands]


def prepare(words: list[str], folder: Path, name: str) -> None:
    """Run a command of a sample in a folder of this machine, under another name."""
    policies = {"split/party.yaml": str(SPLIT / "party.yaml")}
    kind, _, *rest = [policies.get(word, word) for word in words]
    assert prepared(kind, str(folder / name), *rest) == 0


def lines(name: str, setting: str) -> list[str]:
    """Return the values of a setting of a unit or a drop-in."""
    text = (SPLIT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    found = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return [value for key, _, value in found if key == setting]


def party(sample: str, folder: Path, superlink: int, node: int) -> list[str]:
    """Return the command of a party, with its folder and ports."""
    if sample == "compose":
        words = [str(one) for one in compose("compose.party.yaml")["party"]["command"]]
        own = {"/party": folder, "superlink:": "127.0.0.1:"}
    else:
        (line,) = lines("flower-split-party.service", "ExecStart")
        words = shlex.split(line)
        own = {
            "/var/lib/flower-split/party": folder,
            "/etc/flower-ldp": folder,
            "labels.example.org:": "127.0.0.1:",
        }
    places = {"9092": str(superlink), "9094": str(node), "127.0.0.1": "127.0.0.1"}
    return here(words, {**places, **{name: str(place) for name, place in own.items()}})


def test_both_samples_are_one_command_at_the_same_places(tmp_path: Path) -> None:
    found = [split(party(sample, tmp_path, 1, 2)) for sample in ("compose", "systemd")]
    assert found[0] == found[1]


def test_labels_and_two_parties_train_and_are_charged(machine: Machine, tmp_path: Path) -> None:
    # Where each sample says that the labels' policy is.
    places = machine.places("compose") | {"/labels": str(tmp_path / "labels")}
    (named,) = compose("compose.labels.yaml")["superlink"]["environment"]
    assert compose("compose.labels.yaml")["superlink"]["volumes"] == ["./labels:/labels"]
    (dropped,) = lines("labels.conf", "Environment")
    assert named.removeprefix(POLICY).replace("/labels", "labels") == "labels/policy.yaml"
    assert dropped == f"{POLICY}/var/lib/flower-superlink/labels/policy.yaml"
    (words,) = preparing("compose.labels.yaml", "site")
    prepare(words, tmp_path, "labels")
    assert not list((tmp_path / "labels").glob("node-key*"))
    policy = str(tmp_path / "labels" / "policy.yaml")
    machine.environment["FLOWER_LDP_POLICY"] = policy
    superlink = machine.start("superlink", here(command("compose", "superlink"), places), "link")
    del machine.environment["FLOWER_LDP_POLICY"]
    wait_for(
        lambda: is_listening(machine.superlink) or not superlink.is_running,
        "the SuperLink listening",
        timeout=120,
        shown=lambda: superlink.output,
    )
    assert superlink.is_running, superlink.output[-4_000:]
    for side, sample in (("left", "compose"), ("right", "systemd")):
        folder = tmp_path / side
        (words,) = preparing("compose.party.yaml", "site")
        prepare([word.replace("left", side) for word in words], tmp_path, side)
        shutil.copy(tmp_path / "certificates" / "ca.crt", folder)
        key = str(folder / "node-key.pub")
        register = ["flwr", "supernode", "register", key, "here", "--name", side]
        done = subprocess.run(
            register, env=machine.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        words = party(sample, folder, machine.superlink, free_port())
        words = [word.replace('side="left"', f'side="{side}"') for word in words]
        wait(machine.start(side, words, f"{side}-home"), "SuperNode ID")
    submit = ["flwr", "run", str(ROOT / "examples" / "split-digits"), "here", "--stream"]
    submit += ["--run-config", 'mode="codes" block-size=1500']
    wait(machine.start("run", submit, "user"), "epsilon of a training record", timeout=200)
    spent = {}
    for name in ("labels", "left", "right"):
        with Ledger.open(tmp_path / name / "ledger.sqlite") as ledger:
            ledger.verify()
            unit = Unit.LABEL if name == "labels" else Unit.EXAMPLE
            spent[name] = ledger.totals(f"digits-{name}")[unit].epsilon_text
    assert spent == {"labels": "4", "left": "8", "right": "8"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    name = "flower-split-party.service"
    text = (SPLIT / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text.replace("/opt/flower-ldp/bin/flower-supernode", "/bin/true"))
    verify = ["systemd-analyze", "verify", str(tmp_path / name)]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

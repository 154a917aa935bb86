"""The compose file and the systemd units: their commands, run as they stand but for places."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from tests.network.certificates import DEPLOYMENT, make_certificates, make_site
from tests.network.federation import in_a_hurry, write_connection
from tests.network.processes import TAG, Process, free_port, is_listening, kill_tagged, wait_for
from tests.network.samples import PARTS, UNITS, command, compose, here, unit
from tests.network.sites import ROOT, make_app, policy


@dataclass(frozen=True)
class Machine:
    """What the samples expect to find: certificates, a site, a secret, ports."""

    folder: Path
    superlink: int
    node: int
    environment: dict[str, str]
    processes: list[Process] = field(default_factory=list)

    def start(self, name: str, words: list[str], home: str) -> Process:
        """Start a command that is killed at the end of the test."""
        own = {**self.environment, "FLWR_HOME": str(self.folder / home)}
        self.processes.append(Process.start(words, own, self.folder / f"{name}.log", self.folder))
        return self.processes[-1]

    def places(self, sample: str) -> dict[str, str]:
        """Return where on this machine each place of a sample is."""
        certificates, site = self.folder / "certificates", self.folder / "site"
        shared = {
            "0.0.0.0": "127.0.0.1",
            "9092": str(self.superlink),
            "9094": str(self.node),
        }
        if sample == "compose":
            own = {
                "/certificates": certificates,
                "/ca.crt": certificates / "ca.crt",
                "/state": self.folder,
                "/site": site,
                "/run/secrets": self.folder,
                "superlink:": "127.0.0.1:",
                "node:": "127.0.0.1:",
            }
        else:
            own = {
                "/etc/flower-superlink": certificates,
                "/etc/flower-ldp": certificates,
                "/var/lib/flower-superlink": self.folder,
                "/var/lib/flower-ldp/site": site,
                "${CREDENTIALS_DIRECTORY}": self.folder,
                "superlink.example.org:": "127.0.0.1:",
            }
        return {**shared, **{name: str(place) for name, place in own.items()}}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Make the files that the samples' comments say how to make."""
    certificates = make_certificates(tmp_path / "certificates")
    make_site(tmp_path / "site", "ward-7-images", policy("CHANGE-ME"))
    (tmp_path / "superexec-secret").write_bytes(os.urandom(32))
    tag = uuid.uuid4().hex
    environment = {
        **in_a_hurry(),
        TAG: tag,
        "FLWR_HOME": str(tmp_path / "user"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }
    found = Machine(tmp_path, free_port(), free_port(), environment)
    write_connection(tmp_path / "user", found.superlink, certificates)
    try:
        yield found
    finally:
        for process in found.processes:
            process.kill()
        kill_tagged(tag)


def wait(process: Process, text: str, timeout: float = 120) -> None:
    """Wait until a process has printed something."""
    wait_for(
        lambda: text in process.output or not process.is_running,
        repr(text),
        timeout=timeout,
        shown=lambda: process.output[-4_000:],
    )
    assert text in process.output, process.output[-4_000:]


def split(words: list[str]) -> list[str]:
    """Return words in which each option's value is a word of its own."""
    return [one for word in words for one in (word.split("=", 1) if word[:2] == "--" else [word])]


def test_the_commands_make_a_federation_in_which_a_report_leaves(
    machine: Machine, tmp_path: Path
) -> None:
    found = {
        sample: {part: here(command(sample, part), machine.places(sample)) for part in PARTS}
        for sample in ("compose", "systemd")
    }
    words = found["compose"]
    # At the same places these are the units' commands as well, and one federation tries both.
    for part in PARTS:
        assert split(words[part]) == split(found["systemd"][part])
    assert words != found["systemd"]
    words["app"] = found["systemd"]["app"]
    words["node"] += ["--ldp-unsafe-app-user"]  # all parts run as the tests' own user here
    superlink = machine.start("superlink", words["superlink"], "superlink-home")
    wait_for(
        lambda: is_listening(machine.superlink) or not superlink.is_running,
        "the SuperLink listening",
        timeout=120,
        shown=lambda: superlink.output,
    )
    assert superlink.is_running, superlink.output[-4_000:]
    key = str(tmp_path / "site" / "node-key.pub")
    register = ["flwr", "supernode", "register", key, "here", "--name", "ward-7"]
    done = subprocess.run(
        register, env=machine.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait(machine.start("node", words["node"], "node-home"), "SuperNode ID")
    machine.start("app", words["app"], "app-home")
    received = tmp_path / "received.json"
    submit = ["flwr", "run", str(make_app(tmp_path, "plain_client")), "here", "--stream"]
    submit += ["--run-config", f'num-server-rounds=1 nodes=1 received="{received}"']
    wait(machine.start("run", submit, "user"), "\nfinished", timeout=200)
    assert json.loads(received.read_text())["metrics"]["1"]["accepted"] == 1
    with Ledger.open(tmp_path / "site" / "ledger.sqlite") as ledger:
        assert ledger.verify().sealed == 1


def test_the_samples_name_installed_commands() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for sample in ("compose", "systemd"):
        for part in PARTS:
            program = Path(command(sample, part)[0]).name
            assert f'\n{program} = "' in project or shutil.which(program), program


def test_every_path_of_a_container_is_mounted_and_the_app_has_no_network() -> None:
    found = compose()
    for part, service in found["services"].items():
        mounts = [one.split(":")[1] for one in service.get("volumes", [])]
        mounts += [f"/run/secrets/{name}" for name in service.get("secrets", [])]
        assert set(service.get("secrets", [])) <= set(found["secrets"])
        assert set(service["networks"]) <= set(found["networks"])
        for word in command("compose", part):
            path = word.partition("=")[2]
            if path.startswith("/"):
                assert any(f"{path}/".startswith(f"{mount}/") for mount in mounts), word
    app = found["services"]["app"]
    assert list(app["networks"]) == ["inside"]
    assert "volumes" not in app
    assert "ports" not in app


def test_the_app_unit_is_a_sandbox_and_the_node_comes_back() -> None:
    app, node = unit("app"), unit("node")
    assert app["IPAddressDeny"] == ["any"]
    assert app["IPAddressAllow"] == ["127.0.0.1/32"]
    assert app["SystemCallArchitectures"] == ["native"]
    assert app["User"] != node["User"]
    hidden = " ".join(app["InaccessiblePaths"]).split()
    assert {*node["WorkingDirectory"], "/etc/flower-ldp"} <= set(hidden)
    assert node["Restart"] == ["always"]
    assert node["StartLimitIntervalSec"] == ["0"]


def test_the_drop_in_of_few_sites_is_the_node_of_the_script_that_tries_it() -> None:
    options = ["--ldp-gate", "reports", "--ldp-unsafe-app-user"]
    script = (DEPLOYMENT / "try_on_one_machine.sh").read_text(encoding="utf-8")
    assert f"apps=({' '.join(options)})" in script
    text = (DEPLOYMENT / "systemd" / "few-sites.conf").read_text(encoding="utf-8")
    _, line = re.findall(r"^ExecStart=(.*)$", text.replace("\\\n", " "), flags=re.MULTILINE)
    words = command("systemd", "node")
    start = words.index("--isolation")
    words[start : start + 4] = options
    assert shlex.split(line) == words


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("few_sites", [False, True])
def test_systemd_finds_nothing_wrong_with_the_units(few_sites: bool, tmp_path: Path) -> None:
    names = [*UNITS.values(), "flower-ldp-sandboxed.service"]
    files = {name: tmp_path / name for name in names}
    if few_sites:
        files["few-sites.conf"] = tmp_path / f"{UNITS['node']}.d" / "few-sites.conf"
        files["few-sites.conf"].parent.mkdir()
    for name, file in files.items():
        text = (DEPLOYMENT / "systemd" / name).read_text(encoding="utf-8")
        text = re.sub(r"/opt/flower-ldp/bin/[\w-]+", "/bin/true", text)
        file.write_text(text, encoding="utf-8")
    units = [str(files[name]) for name in names]
    verify = ["systemd-analyze", "verify", *units]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

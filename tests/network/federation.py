"""A federation of real processes on loopback: one SuperLink, any number of SuperNodes.

    with Federation.start(folder, tls=True) as federation:
        node = federation.add_node("ward-0", {"partition-id": 0}, policy=POLICY)
        run = federation.submit(app, {"num-server-rounds": 3})
        run.wait_for("finished", timeout=120)

Each SuperNode has a folder (policy, ledger, log, key); nothing is shared but the network.
Everything is killed at the end, whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from typer.testing import CliRunner

from tests.network.certificates import Certificates, make_certificates, make_node_key
from tests.network.nodes import START_SECONDS, Node, Run
from tests.network.processes import (
    TAG,
    Process,
    free_port,
    is_listening,
    kill_tagged,
    wait_for,
)
from tests.nursery import HURRY

#: The command of the guarded node, as it runs without being installed.
NODE = (sys.executable, "-m", "flower_ldp.node")
#: With apps under the tests' own user, as on any machine, and with apps in a sandbox.
GUARDED = (*NODE, "--ldp-unsafe-app-user")
SANDBOXED = (*NODE, "--sandbox")

#: Settings of a node: what ``--node-config`` can hold.
NodeConfig = Mapping[str, str | int | float | bool]


@dataclass
class Federation:
    """One SuperLink and its SuperNodes. Make one with :meth:`start`."""

    folder: Path
    port: int
    environment: dict[str, str]
    certificates: Certificates | None
    superlink: Process
    nodes: dict[str, Node] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        folder: Path,
        *,
        tls: bool = False,
        stores: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Federation]:
        """Run a SuperLink; with TLS it takes registered SuperNodes only.

        It has a database, or, as Flower's own does and for half of the work, keeps all in memory.
        """
        folder.mkdir(parents=True, exist_ok=True)
        tag = uuid.uuid4().hex
        certificates = make_certificates(folder / "certificates") if tls else None
        port = free_port()
        variables = {
            **in_a_hurry(),
            **(environment or {}),
            TAG: tag,
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
        }
        variables.pop("FLOWER_LDP_POLICY", None)
        write_connection(folder / "flower", port, certificates)
        process = _start_superlink(folder, port, variables, certificates, stores)
        federation = cls(folder, port, variables, certificates, process)
        try:
            federation._wait_for_superlink()
            yield federation
        finally:
            # Nothing is worth waiting for: whoever wants an orderly end asks for it before.
            for run in federation.runs:
                run.process.kill()
            for node in federation.nodes.values():
                node.process.kill()
            federation.superlink.kill()
            kill_tagged(tag)

    def stored(self) -> bytes:
        """Everything that the SuperLink stored or printed: database, journal, log, folder."""
        files = [path for path in self.folder.glob("superlink*") if path.is_file()]
        files += [path for path in (self.folder / "flower").rglob("*") if path.is_file()]
        return b"\n".join(path.read_bytes() for path in files)

    def restart_superlink(self) -> None:
        """Start the SuperLink again on its database and port."""
        self.superlink = _start_superlink(
            self.folder, self.port, self.environment, self.certificates, stores=True
        )
        self._wait_for_superlink()

    def register(self, public_key: Path, name: str) -> None:
        """Register a SuperNode's public key, as an administrator does."""
        command = ["supernode", "register", str(public_key), "here", "--name", name]
        home = {"FLWR_HOME": self.environment["FLWR_HOME"]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Flower's own, of libraries that it uses
            # Flower's command, in this process: it works for less time than it takes to load.
            from flwr.cli.app import app

            done = CliRunner().invoke(app, command, env=home)
        assert done.exit_code == 0, done.output

    def add_node(
        self,
        name: str,
        config: NodeConfig | None = None,
        *,
        policy: str | None = None,
        command: tuple[str, ...] = ("flower-supernode",),
        port: int | None = None,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        register: bool = True,
        secure: bool = True,
        connect: bool = True,
    ) -> Node:
        """Start a SuperNode in a folder of its own.

        Parameters
        ----------
        name : str
            Of the node and its folder.
        config : mapping, optional
            For ``--node-config``.
        policy : str, optional
            Text of a policy: written to ``policy.yaml`` in the folder and named by
            ``--node-config 'ldp-policy="..."'``. A ledger is a path relative to the folder.
        command : tuple of str
            What to run; :data:`GUARDED` for the guarded node.
        port : int, optional
            Where it finds the SuperLink, if not at the SuperLink's own port.
        options : tuple of str
            More options of the command.
        environment : mapping, optional
            Variables besides those of the federation.
        register : bool
            With TLS: register the node's key before it starts.
        secure : bool
            With TLS: give the node the authority's certificate and a key.
        connect : bool
            Wait until it has joined.
        """
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        settings = dict(config or {})
        if policy is not None:
            (folder / "policy.yaml").write_text(policy, encoding="utf-8")
            settings["ldp-policy"] = str(folder / "policy.yaml")
        arguments = [*command, "--superlink", f"127.0.0.1:{port or self.port}", *options]
        arguments += ["--host", "127.0.0.1", "--port", str(free_port())]
        if settings:
            arguments += ["--node-config", " ".join(f"{k}={_toml(v)}" for k, v in settings.items())]
        if secure:
            arguments += self._security(folder, name, register)
        variables = {
            **self.environment,
            "FLWR_HOME": str(folder / "flower"),
            **(environment or {}),
        }
        process = Process.start(arguments, variables, folder / "node.log", folder)
        node = self.nodes[name] = Node(folder, arguments, variables, process)
        if connect:
            node.wait_until_connected()
        return node

    def submit(self, app: Path, config: NodeConfig | None = None) -> Run:
        """Submit an app with ``flwr run`` and stream its log in the background."""
        command = ["flwr", "run", str(app), "here", "--stream"]
        for name, value in (config or {}).items():
            command += ["--run-config", f"{name}={_toml(value)}"]
        log = self.folder / f"run-{len(self.runs)}.log"
        run = Run(
            Process.start(command, self.environment, log, self.folder),
            self.environment,
            self.folder,
        )
        self.runs.append(run)
        return run

    def _security(self, folder: Path, name: str, register: bool) -> list[str]:
        if self.certificates is None:
            return ["--insecure"]
        private, public = make_node_key(folder)
        if register:
            self.register(public, name)
        return [
            *("--root-certificates", str(self.certificates.authority)),
            *("--auth-supernode-private-key", str(private)),
        ]

    def _wait_for_superlink(self) -> None:
        wait_for(
            lambda: is_listening(self.port) or not self.superlink.is_running,
            "the SuperLink listening",
            timeout=START_SECONDS,
            shown=lambda: self.superlink.output[-4_000:],
        )
        assert self.superlink.is_running, self.superlink.output[-4_000:]


def hurried() -> str:
    """Return where processes are to look for packages, so that Flower asks more often."""
    own = [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return os.pathsep.join([str(HURRY), *own])


def in_a_hurry() -> dict[str, str]:
    """Return this process's variables, and those by which Flower's processes ask more often."""
    return {**os.environ, "PYTHONPATH": hurried(), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def write_connection(home: Path, port: int, certificates: Certificates | None) -> None:
    """Write the configuration by which ``flwr`` finds a SuperLink, under the name ``here``."""
    home.mkdir(parents=True, exist_ok=True)
    trust = (
        "insecure = true"
        if certificates is None
        else f'root-certificates = "{certificates.authority}"'
    )
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        f"{trust}\n",
        encoding="utf-8",
    )


def _start_superlink(
    folder: Path,
    port: int,
    environment: dict[str, str],
    certificates: Certificates | None,
    stores: bool,
) -> Process:
    command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(port)]
    if stores:
        command += ["--database", str(folder / "superlink.sqlite")]
    command += ["--isolation", "subprocess", "--disable-runtime-dependency-installation"]
    if certificates is None:
        command += ["--insecure"]
    else:
        command += ["--enable-supernode-auth"]
        command += ["--ssl-ca-certfile", str(certificates.authority)]
        command += ["--ssl-certfile", str(certificates.certificate)]
        command += ["--ssl-keyfile", str(certificates.key)]
    return Process.start(command, environment, folder / "superlink.log", folder)

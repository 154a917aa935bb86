"""Three ways to run feature parties and a server, which the split examples' ``run.py`` share.

``process``     everything in this process: no engine, the same messages and the same gate
``simulation``  Flower's simulation engine, one virtual node for each party
``nodes``       a SuperLink and a SuperNode for each party, each a process with its own data,
                its own policy and its own ledger, as institutions would run them

Not part of the package.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import typer
from _runner import flower_environment, follow, free_ports, running, superlink
from flwr.app import Context, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.strategies import LocalExchange


class Engine(str, Enum):
    """How parties and server run."""

    PROCESS = "process"
    SIMULATION = "simulation"
    NODES = "nodes"


@dataclass(frozen=True)
class Parties:
    """The feature parties of an app.

    Parameters
    ----------
    app : Path
        The app's folder.
    nodes : mapping of str to dict
        By name, what each party's operator adds to its node's configuration.
    policy : callable
        Of a name and a mode, the text of that party's policy. In a simulation all parties have
        the one of the name ``both``.
    shown : str
        Pattern of the app's lines that are printed; the line ``finished`` ends a run.
    holder : str
        Name of the labels' holder, if the server obeys a policy for its labels: ``policy`` has
        its text too. In a simulation that is the one of the name ``both``.
    """

    app: Path
    nodes: Mapping[str, Mapping[str, str]]
    policy: Callable[[str, str], str]
    shown: str
    holder: str = ""

    def in_process(
        self,
        client: ClientApp,
        server: Callable[[LocalExchange, Context], None],
        config: dict[str, Any],
        folder: Path,
    ) -> None:
        """Call the parties' app directly."""
        logging.getLogger("flwr").setLevel(logging.WARNING)  # the app prints what it says
        parties = {}
        for number, (name, own) in enumerate(self.nodes.items(), start=1):
            policy = self._owner(folder / f"owner-{name}", name, "deployment")
            node = {**own, "party-folder": str(folder), "ldp-policy": str(policy)}
            parties[number] = (client, _context(number, node, config))
        own = {}
        if self.holder:
            path = self._owner(folder / f"owner-{self.holder}", self.holder, "deployment")
            own = {"ldp-policy": str(path)}
        server(LocalExchange(parties), _context(len(parties) + 1, own, config))

    def with_flower(self, config: dict[str, Any], folder: Path, *, nodes: bool) -> None:
        """Submit the app to a SuperLink of its own, with virtual nodes or with SuperNodes."""
        port, control, *listening = free_ports(2 + len(self.nodes))
        home = folder / "flower"
        # Parties work at the same time, on the same cores.
        environment = {"OMP_NUM_THREADS": "1", **flower_environment(home, port)}
        own_environment = dict(environment)  # the server's app runs in it, and virtual nodes do
        if not nodes:
            policy = self._owner(folder / "owners", "both", "simulation")
            own_environment["FLOWER_LDP_POLICY"] = str(policy)
        elif self.holder:
            policy = self._owner(folder / f"owner-{self.holder}", self.holder, "deployment")
            own_environment["FLOWER_LDP_POLICY"] = str(policy)
        log = home / "superlink.log"
        with contextlib.ExitStack() as processes:
            link = superlink(port, control, own_environment, log, simulation=not nodes)
            processes.enter_context(link)
            for name, own in zip(self.nodes, listening, strict=True) if nodes else ():
                command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}"]
                command += ["--port", str(own), "--node-config", self._settings(folder, name)]
                processes.enter_context(running(command, environment, home / f"{name}.log"))
            virtual = 0 if nodes else len(self.nodes)
            given = {**config, "party-folder": str(folder)}
            written = {
                name: f'"{value}"' if isinstance(value, str) else str(value)
                for name, value in given.items()
            }
            follow(self.app, environment, virtual, written, "finished", self._is_shown)

    def _owner(self, folder: Path, name: str, mode: str) -> Path:
        """Write a party's policy, and begin its ledger if it has none."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "policy.yaml"
        path.write_text(self.policy(name, mode), encoding="utf-8")
        Ledger.open(folder / "ledger.sqlite", create=True).close()
        return path

    def _settings(self, folder: Path, name: str) -> str:
        policy = self._owner(folder / f"owner-{name}", name, "deployment")
        own = {**self.nodes[name], "party-folder": folder, "ldp-policy": policy}
        return " ".join(f'{key}="{value}"' for key, value in own.items())

    def _is_shown(self, line: str) -> bool:
        return re.match(self.shown, line) is not None


def _context(node: int, own: Mapping[str, str], config: dict[str, Any]) -> Context:
    return Context(
        run_id=1, node_id=node, node_config={**own}, state=RecordDict(), run_config=config
    )


def app_config(app: Path, changes: list[str]) -> dict[str, Any]:
    """Return the app's configuration, with what ``KEY=VALUE`` items of a command line change."""
    text = (app / "pyproject.toml").read_text(encoding="utf-8")
    lines = text.partition("[tool.flwr.app.config]")[2].splitlines()
    pairs = (line.partition("#")[0].partition("=") for line in lines)
    config = {name.strip(): _value(value) for name, equals, value in pairs if equals}
    for setting in changes:
        name, equals, value = setting.partition("=")
        if not equals or name.strip() not in config:
            raise typer.BadParameter(f"--set takes KEY=VALUE of {sorted(config)}, got {setting!r}")
        kind = type(config[name.strip()])
        try:
            config[name.strip()] = kind(value.strip())
        except ValueError as error:
            raise typer.BadParameter(f"--set {setting}: {error}") from None
    return config


def _value(text: str) -> str | int | float:
    text = text.strip()
    if text.startswith('"'):
        return text.strip('"')
    return float(text) if "." in text else int(text)

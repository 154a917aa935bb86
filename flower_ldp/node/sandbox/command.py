"""What ``flower-ldp-supernode`` does for ``--sandbox``, between its command line and Flower's."""

from __future__ import annotations

import argparse
import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from flower_ldp.node.sandbox.check import print_table, run_check
from flower_ldp.node.sandbox.executor import start_executor
from flower_ldp.node.sandbox.limits import Group, make_group
from flower_ldp.node.sandbox.settings import SandboxMissing, settings_of

_log = logging.getLogger("flower_ldp")
_LOCAL = ("127.0.0.1", "localhost")
#: Bytes of the secret by which a node knows its executor.
_SECRET = 32
ANOTHER_USER = (
    "Apps run as another user than this node. What is left: a fault of the kernel, the relay or "
    "Flower's runtime API."
)
NO_LIMIT = (
    "Memory is not limited (--sandbox-no-memory-limit): an app can use up this machine's, and the "
    "kernel may end the node for it."
)
SAME_USER = (
    "This node is not root, so for the kernel apps run as its own user, in a user namespace. What "
    "is left: a fault of the kernel's namespaces gives an app this user's files, the node's key "
    "and ledger among them; as root it would still be another user."
)


class SandboxedApps:
    """The apps of one node, in sandboxes.

    Parameters
    ----------
    options : argparse.Namespace
        The site's options, those of the sandbox among them.
    arguments : argparse.Namespace
        Flower's.

    Raises
    ------
    SandboxMissing
        If the two contradict each other.
    """

    def __init__(self, options: argparse.Namespace, arguments: argparse.Namespace) -> None:
        self._settings = settings_of(options)
        self._port = int(arguments.port)
        self._secret = os.urandom(_SECRET)
        _check_arguments(options, arguments)

    def flower_options(self) -> list[str]:
        """Return options for Flower's command: the executor is ours, and has to know a secret."""
        descriptor = os.memfd_create("superexec-secret")  # this process alone can open it
        os.write(descriptor, self._secret)
        file = f"/proc/self/fd/{descriptor}"
        return ["--isolation", "process", "--superexec-auth-secret-file", file]

    def check(self, hidden: Mapping[str, Path]) -> bool:
        """Print what is open; return whether nothing is."""
        group = self._make_group()
        try:
            findings = run_check(self._settings, hidden, group, every_file=True)
        finally:
            group.remove()
        print_table(findings)
        print("The node's runtime API answers, through the one socket that there is.")
        if not self._settings.control_group:
            print(NO_LIMIT)
        print(ANOTHER_USER if os.geteuid() == 0 else SAME_USER)
        return not any(one.is_open for one in findings)

    def start(self, hidden: Mapping[str, Path], ended: Callable[[str], NoReturn]) -> None:
        """Check the sandbox, then start the executor; ``ended`` is called when that ends.

        Raises
        ------
        SandboxMissing
            If a part is missing or a way out is open.
        """
        group = self._make_group()
        atexit.register(group.remove)
        found = run_check(self._settings, hidden, group, every_file=False)
        ways = "; ".join(f"{one.way} ({one.seen})" for one in found if one.is_open)
        if ways:
            raise SandboxMissing(f"the sandbox has ways out: {ways}")
        if os.geteuid() != 0:
            _log.warning(SAME_USER)
        process = start_executor(self._settings, hidden, self._port, self._secret, group)
        atexit.register(process.terminate)

        def watch() -> None:
            process.wait()
            ended(f"the app executor ended, with {process.returncode}")

        threading.Thread(target=watch, daemon=True).start()

    def _make_group(self) -> Group:
        """Return a control group for the apps, one without limits if the operator wants none."""
        if not self._settings.control_group:
            return Group()
        return make_group(self._settings.memory, self._settings.processes)


def _check_arguments(options: argparse.Namespace, arguments: argparse.Namespace) -> None:
    if options.ldp_gate == "reports":
        raise SandboxMissing(
            "--ldp-gate reports lets the app write to the ledger, which --sandbox hides: leave "
            "the gate at privatize, or run the app as docs/deployment.md says"
        )
    if arguments.superexec_auth_secret_file is not None:
        raise SandboxMissing("--sandbox makes its own secret: leave --superexec-auth-secret-file")
    if arguments.host not in _LOCAL:
        raise SandboxMissing("--sandbox needs no other host than 127.0.0.1: leave --host")
    if arguments.port < 1024:
        raise SandboxMissing("--port: apps cannot be given a port below 1024")
    if arguments.ssl_certfile or arguments.ssl_keyfile or arguments.ssl_ca_certfile:
        raise SandboxMissing("with --sandbox apps reach the node by a socket: leave --ssl-*")

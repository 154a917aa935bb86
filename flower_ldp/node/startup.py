"""The start of a guarded node: policy, ledger, gate, app executor, Flower's node.

It does not start without a policy and a ledger that can be used.
"""

from __future__ import annotations

import argparse
import logging
import os
import pkgutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from flwr.clientapp.typing import Mod

from flower_ldp import inner_gate
from flower_ldp.accounting.ledger.charges import MOST_REPORT
from flower_ldp.clients import RELEASES, LdpMod
from flower_ldp.clients.charging import ledger_of
from flower_ldp.errors import ConfigError, LdpError
from flower_ldp.extensions.loading import never_load
from flower_ldp.node import PROGRAM, FlowerChanged, flower_api, stop
from flower_ldp.node.flower_api import Channel, NodeConfig, Opened, Setup
from flower_ldp.node.gates import AppListGate, FormatChecked, PaidReports, fixed_moment, listed_apps
from flower_ldp.node.guard import Guard
from flower_ldp.node.received_apps import ReceivedApps
from flower_ldp.node.report_mac import KEY_SUFFIX, MacAuthorizer
from flower_ldp.node.runtime_api import LONGEST_OBJECT, AppCalls, watch_own_user
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing
from flower_ldp.policy import ENVIRONMENT_VARIABLE, NODE_CONFIG_KEY, find_policy

if TYPE_CHECKING:
    from flower_ldp.node.sandbox.command import SandboxedApps

OWN_USER = (
    "apps would run as this node's user: they could read its key and policy, write to its ledger "
    "and open connections. Give --sandbox, or --isolation process and start flower-ldp-superexec "
    "as another user (docs/deployment.md). --ldp-unsafe-app-user starts it all the same"
)
NO_SECRET = (
    "without --superexec-auth-secret-file every program that reaches this node's runtime API, the "
    "apps among them, can take messages in the executor's place"
)
INSECURE = (
    "--insecure: no TLS to the SuperLink. Whoever is on the way can read this node's reports "
    "and pose as the SuperLink; the policy still bounds what leaves. Give --root-certificates"
)
INSTALLS = (
    "--allow-runtime-dependency-installation: an app would choose what is installed here, which no "
    "digest of it tells; install what the listed apps need beforehand"
)
NO_EXTENSIONS = (
    "the policy allows extensions, and the guarded node loads none: it runs no code but its own. "
    "Take extensions out of this node's policy, or run an unguarded SuperNode"
)
NO_RAW_REPLIES = (
    "the policy lists raw replies under not_encrypt, and the guarded node sends none. Take "
    "not_encrypt out of this node's policy, or run an unguarded SuperNode"
)
_log = logging.getLogger("flower_ldp")


class SitePolicy(NamedTuple):
    """Paths of the site's policy and ledger."""

    path: Path
    ledger: Path


@dataclass(frozen=True)
class Start:
    """The site's options and Flower's arguments."""

    options: argparse.Namespace
    arguments: argparse.Namespace

    def apps(self) -> SandboxedApps | None:
        """Return the starter of sandboxed apps, or None if another process starts them.

        Raises SandboxMissing if apps would run under this node's user without
        ``--ldp-unsafe-app-user``.
        """
        options, arguments = self.options, self.arguments
        if not options.sandbox:
            if arguments.isolation == "subprocess" and not options.ldp_unsafe_app_user:
                raise SandboxMissing(OWN_USER)
            if options.check:
                raise SandboxMissing("--check is for --sandbox")
            if arguments.isolation == "process" and arguments.superexec_auth_secret_file is None:
                _log.warning(NO_SECRET)
            return None
        # It needs a library that a node without a sandbox does without.
        from flower_ldp.node.sandbox.command import SandboxedApps

        return SandboxedApps(options, arguments)

    def policy(self, node_config: NodeConfig) -> SitePolicy:
        """Open the site's policy and ledger, and return their paths."""
        policy = find_policy(node_config)
        if policy is None:
            raise ConfigError("no policy is named: give --ldp-policy FILE")
        if policy.is_simulation and not self.options.ldp_simulation:
            raise ConfigError(
                "the policy says mode: simulation, in which nothing is protected: use one of mode "
                "deployment, or give --ldp-simulation"
            )
        if policy.extensions:
            raise ConfigError(NO_EXTENSIONS)
        if policy.not_encrypt:
            raise ConfigError(NO_RAW_REPLIES)
        ledger_of(policy).close()
        named = node_config.get(NODE_CONFIG_KEY) or os.environ[ENVIRONMENT_VARIABLE]
        return SitePolicy(Path(os.path.abspath(str(named))), Path(policy.ledger))

    def hidden(self, policy: SitePolicy | None) -> dict[str, Path]:
        """Return the files that no app may see, by names for people."""
        home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
        found = {"the node's Flower folder": Path(home)}
        if policy is not None:
            marks = policy.ledger.with_name(policy.ledger.name + KEY_SUFFIX)
            found |= {"the policy": policy.path, "the ledger": policy.ledger, "its mark key": marks}
        if self.arguments.auth_supernode_private_key is not None:
            found["the node's key"] = Path(self.arguments.auth_supernode_private_key).expanduser()
        return found

    def check_only(self, apps: SandboxedApps | None) -> NoReturn:
        """Try the sandbox, with the site's files hidden if they are named; end the process."""
        node_config = flower_api.given_config(self.arguments)
        try:
            policy = None if find_policy(node_config) is None else self.policy(node_config)
            closed = apps is not None and apps.check(self.hidden(policy))
        except (LdpError, OSError) as error:
            stop(str(error))
        sys.exit(0 if closed else 1)

    def setup(self, node_config: NodeConfig, apps: SandboxedApps | None, calls: AppCalls) -> Setup:
        """Find the site's policy, ledger and gate; end the process if one cannot be used."""
        never_load(NO_EXTENSIONS)  # the policy is read anew for each message
        inner_gate.guarded_node = True
        name = self.options.ldp_gate
        try:
            policy = self.policy(node_config)
            gate = named_gate(name)
            if apps is not None:
                apps.start(self.hidden(policy), _end)
        except Exception as error:  # whatever it is, there is no gate
            stop(str(error))
        by_apps, hides = name == "reports", name == "privatize"
        # Of a gate of the site's own that is no LdpMod it is not known what it does with a raw
        # reply.
        calls.privatizes = hides or isinstance(gate, LdpMod)
        gate_config = {**node_config, NODE_CONFIG_KEY: str(policy.path)}
        app_config = dict(node_config)
        if not by_apps:
            # The app needs neither policy nor ledger, so it is not told where they are.
            app_config.pop(NODE_CONFIG_KEY, None)
            os.environ.pop(ENVIRONMENT_VARIABLE, None)
        print(f"{PROGRAM}: gate {name}, policy {policy.path}", file=sys.stderr, flush=True)

        def guard(inner: Channel, opened: Opened) -> Channel:
            received = ReceivedApps(lambda digest: digest in listed_apps(gate_config))
            # What a gate of the site's own releases, it alone knows.
            releases = {} if ":" in name else RELEASES
            return Guard(
                received.around(inner),
                AppListGate(gate, received.of, by_apps=by_apps, releases=releases),
                gate_config,
                hold_seconds=self.options.ldp_hold_seconds,
                hides=hides,
                calls=calls,
                answer_after=lambda kind: None if by_apps else fixed_moment(gate_config, kind),
                opened=opened,
            ).channel()

        return Setup(guard, app_config)


def start(options: argparse.Namespace) -> None:
    """Run Flower's SuperNode, with the arguments in ``sys.argv``, as the site's options say."""
    if options.ldp_policy is not None:
        # Another that the process was started with is found, and refused, where the policy is.
        os.environ[ENVIRONMENT_VARIABLE] = os.path.abspath(options.ldp_policy)
    # A report of an app's own gate is one object.
    calls = AppCalls(MOST_REPORT if options.ldp_gate == "reports" else LONGEST_OBJECT)
    try:
        flower_api.check_flower()
        asked = Start(options, flower_api.flower_arguments())
        if asked.arguments.runtime_dependency_install:
            stop(INSTALLS)
        if asked.arguments.insecure:
            _log.warning(INSECURE)
        apps = asked.apps()
        if options.check:
            asked.check_only(apps)
        flower_api.wrap_runtime_api(calls.around)
        if apps is not None:
            sys.argv += apps.flower_options()
        elif options.ldp_unsafe_app_user:
            # With Flower's own an app would find what others left in the folder of its bundle.
            flower_api.use_own_executor([sys.executable, "-m", "flower_ldp.node.app_executor"])
        else:
            flower_api.wrap_runtime_api(
                lambda app: watch_own_user(app, lambda seen: _end(f"{seen}: {OWN_USER}"))
            )
        flower_api.run_supernode(lambda config: asked.setup(config, apps, calls))
    except (FlowerChanged, SandboxMissing) as error:
        stop(str(error))


def named_gate(name: str) -> Mod:
    """Return the gate that ``--ldp-gate`` names.

    Raises ValueError, TypeError, ImportError or AttributeError if it names none.
    """
    if name == "privatize":
        return FormatChecked(LdpMod(actions=RELEASES, authorizer=MacAuthorizer()))
    if name == "reports":
        return PaidReports()
    if ":" not in name:
        raise ValueError(f"--ldp-gate must be privatize, reports or module:object, got {name!r}")
    gate: Mod = pkgutil.resolve_name(name)
    if not callable(gate):
        raise TypeError(f"--ldp-gate {name} is no mod")
    return gate


def _end(reason: str) -> NoReturn:
    stop(reason, "ended", 3)

"""The command ``flower-ldp-supernode``: Flower's SuperNode behind the site's gate.

It takes all options of ``flower-supernode``, and those of :func:`site_parser`. It does not
start without a policy and a ledger that can be used.
"""

from __future__ import annotations

import argparse
import logging
import os
import pkgutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from flower_ldp.node.here import FlowerChanged, NoLinux, check_here
from flower_ldp.node.log import keep_plain
from flower_ldp.node.sandbox.settings import SandboxMissing, add_options

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod

    from flower_ldp.node.calls import AppCalls
    from flower_ldp.node.channel import Channel, NodeConfig, Setup
    from flower_ldp.node.sandbox.command import SandboxedApps

PROGRAM = "flower-ldp-supernode"
OWN_USER = (
    "apps would run under this node's own user: they could read its key and policy, write to its "
    "ledger and open connections of their own. Start it with --sandbox (Linux), or with "
    "--isolation process and flower-ldp-superexec as another user (docs/deployment.md). With "
    "--ldp-unsafe-app-user it starts all the same"
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
_log = logging.getLogger("flower_ldp")


def site_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that this command adds to Flower's."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        add_help=False,
        allow_abbrev=False,
        usage=f"{PROGRAM} [site options] [options of flower-supernode]",
        description="Run a Flower SuperNode whose every reply passes this site's gate.",
    )
    site = parser.add_argument_group("site options")
    site.add_argument(
        "--ldp-policy",
        metavar="FILE",
        help="The site's policy. Without it: ldp-policy in --node-config, or the variable "
        "FLOWER_LDP_POLICY.",
    )
    site.add_argument(
        "--ldp-gate",
        default="privatize",
        metavar="GATE",
        help="'privatize' (default): replies are privatized here. 'reports': the app has the gate "
        "LdpMod; only reports that the site's ledger holds leave. 'module:object': a mod of the "
        "site's own, for other releases.",
    )
    site.add_argument(
        "--ldp-hold-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="Hold each report back until this long after the message came (default: 0).",
    )
    site.add_argument(
        "--ldp-unsafe-app-user",
        action="store_true",
        help="Start although apps run under this node's own user, so that they can read its key "
        "and policy, write to its ledger and open connections of their own.",
    )
    site.add_argument(
        "--ldp-simulation",
        action="store_true",
        help="Take a policy of mode simulation, which protects nothing.",
    )
    add_options(parser)
    return parser


def main() -> None:
    """Run the command with the arguments in ``sys.argv``."""
    # Flower reads this when it is imported, and the app's process inherits it.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    parser = site_parser()
    options, rest = parser.parse_known_args()
    if {"-h", "--help"} & set(rest):
        print(parser.format_help())
    sys.argv = [PROGRAM, *rest]
    _log_to_stderr()
    keep_plain()
    try:
        check_here()
    except (FlowerChanged, NoLinux) as error:
        _stop(str(error))
    if options.ldp_policy is not None:
        from flower_ldp.policy import ENVIRONMENT_VARIABLE

        # Another that the process was started with is found, and refused, where the policy is.
        os.environ[ENVIRONMENT_VARIABLE] = os.path.abspath(options.ldp_policy)

    from flower_ldp.accounting.ledger.charges import MOST_REPORT
    from flower_ldp.node.calls import LONGEST_OBJECT, AppCalls
    from flower_ldp.node.channel import (
        check_flower,
        flower_arguments,
        given_config,
        run_supernode,
        use_own_executor,
        wrap_runtime_api,
    )
    from flower_ldp.node.peers import OwnUserWatch

    # A report of an app's own gate is one object.
    calls = AppCalls(MOST_REPORT if options.ldp_gate == "reports" else LONGEST_OBJECT)
    try:
        check_flower()
        arguments = flower_arguments()
        if arguments.runtime_dependency_install:
            _stop(INSTALLS)
        if arguments.insecure:
            _log.warning(INSECURE)
        apps = _apps(options, arguments)
        if options.check:
            _check_only(options, apps, given_config(arguments), arguments)
        wrap_runtime_api(calls.around)
        if apps is not None:
            sys.argv += apps.flower_options()
        elif options.ldp_unsafe_app_user:
            # With Flower's own an app would find what others left in the folder of its bundle.
            use_own_executor([sys.executable, "-m", "flower_ldp.node.apps"])
        else:
            wrap_runtime_api(lambda app: OwnUserWatch(app, _own_user))
        run_supernode(lambda config: _setup(config, options, arguments, apps, calls), _stop)
    except (FlowerChanged, SandboxMissing) as error:
        _stop(str(error))


def _apps(options: argparse.Namespace, arguments: argparse.Namespace) -> SandboxedApps | None:
    """Return who starts the apps: None if another process does.

    Raises
    ------
    SandboxMissing
        If apps would run under this node's user, and the operator did not ask for that.
    """
    if not options.sandbox:
        if arguments.isolation == "subprocess" and not options.ldp_unsafe_app_user:
            raise SandboxMissing(OWN_USER)
        if options.check:
            raise SandboxMissing("--check is for --sandbox")
        if arguments.isolation == "process" and arguments.superexec_auth_secret_file is None:
            _log.warning(NO_SECRET)
        return None
    from flower_ldp.node.sandbox.command import SandboxedApps

    return SandboxedApps(options, arguments)


def _check_only(
    options: argparse.Namespace,
    apps: SandboxedApps | None,
    node_config: NodeConfig,
    arguments: argparse.Namespace,
) -> NoReturn:
    """Try the sandbox, with the site's files hidden if they are named; end the process."""
    from flower_ldp.errors import LdpError
    from flower_ldp.policy import find_policy

    try:
        named = find_policy(node_config) is not None
        policy = _usable_policy(node_config, options) if named else None
        closed = apps is not None and apps.check(_hidden(policy, arguments))
    except (LdpError, OSError) as error:
        _stop(str(error))
    sys.exit(0 if closed else 1)


def _hidden(policy: SitePolicy | None, arguments: argparse.Namespace) -> dict[str, Path]:
    """Return what no app may see, by names for people."""
    from flower_ldp.node.marks import KEY_SUFFIX

    home = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    found = {"the node's Flower folder": Path(home)}
    if policy is not None:
        marks = policy.ledger.with_name(policy.ledger.name + KEY_SUFFIX)
        found |= {"the policy": policy.path, "the ledger": policy.ledger, "its mark key": marks}
    if arguments.auth_supernode_private_key is not None:
        found["the node's key"] = Path(arguments.auth_supernode_private_key).expanduser()
    return found


def _setup(
    node_config: NodeConfig,
    options: argparse.Namespace,
    arguments: argparse.Namespace,
    apps: SandboxedApps | None,
    calls: AppCalls,
) -> Setup:
    """Find the site's policy, ledger and gate; end the process if one cannot be used."""
    from flower_ldp.clients import RELEASES, LdpMod
    from flower_ldp.extensions.loading import never_load
    from flower_ldp.node.channel import Guarded, Setup
    from flower_ldp.node.guard import Guard
    from flower_ldp.node.pinned import PinnedGate, fixed_moment, listed_apps
    from flower_ldp.node.received import ReceivedApps
    from flower_ldp.policy import ENVIRONMENT_VARIABLE, NODE_CONFIG_KEY

    never_load(NO_EXTENSIONS)  # the policy is read anew for each message
    try:
        policy = _usable_policy(node_config, options)
        gate = named_gate(options.ldp_gate)
        if apps is not None:
            apps.start(_hidden(policy, arguments), _ended)
    except Exception as error:  # whatever it is, there is no gate
        _stop(str(error))
    # Of a gate of the site's own that is no LdpMod it is not known what it does with a raw reply.
    calls.privatizes = options.ldp_gate == "privatize" or isinstance(gate, LdpMod)
    gate_config = {**node_config, NODE_CONFIG_KEY: str(policy.path)}
    app_config = dict(node_config)
    by_apps = options.ldp_gate == "reports"
    if not by_apps:
        # The app needs neither policy nor ledger, so it is not told where they are.
        app_config.pop(NODE_CONFIG_KEY, None)
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
    print(f"{PROGRAM}: gate {options.ldp_gate}, policy {policy.path}", file=sys.stderr, flush=True)

    def guard(inner: Channel) -> Guarded:
        received = ReceivedApps(lambda digest: digest in listed_apps(gate_config))
        found = Guard(
            received.around(inner),
            PinnedGate(
                gate,
                received.of,
                by_apps=by_apps,
                # What a gate of the site's own releases, it alone knows.
                releases={} if ":" in options.ldp_gate else RELEASES,
            ),
            gate_config,
            hold_seconds=options.ldp_hold_seconds,
            hides=options.ldp_gate == "privatize",
            calls=calls,
            answer_after=lambda kind: None if by_apps else fixed_moment(gate_config, kind),
        )
        return Guarded(found.channel(), found.is_open)

    return Setup(guard, app_config)


class SitePolicy(NamedTuple):
    """Where the site's policy and its ledger are."""

    path: Path
    ledger: Path


def _usable_policy(node_config: NodeConfig, options: argparse.Namespace) -> SitePolicy:
    """Return where the site's policy is, once it and its ledger have been opened."""
    from flower_ldp.clients.node_config import ledger_of
    from flower_ldp.errors import ConfigError
    from flower_ldp.policy import ENVIRONMENT_VARIABLE, NODE_CONFIG_KEY, find_policy

    policy = find_policy(node_config)
    if policy is None:
        raise ConfigError("no policy is named: give --ldp-policy FILE")
    if policy.is_simulation and not options.ldp_simulation:
        raise ConfigError(
            "the policy says mode: simulation, in which nothing is protected: use one of mode "
            "deployment, or give --ldp-simulation"
        )
    if policy.extensions:
        raise ConfigError(NO_EXTENSIONS)
    ledger_of(policy).close()
    named = node_config.get(NODE_CONFIG_KEY) or os.environ[ENVIRONMENT_VARIABLE]
    return SitePolicy(Path(os.path.abspath(str(named))), Path(policy.ledger))


def named_gate(name: str) -> Mod:
    """Return the gate that ``--ldp-gate`` names.

    Raises
    ------
    ValueError, TypeError, ImportError, AttributeError
        If it names none.
    """
    from flower_ldp.clients import RELEASES, LdpMod
    from flower_ldp.node.formed import WellFormed
    from flower_ldp.node.marks import MarkedAdmission
    from flower_ldp.node.reports import PaidReports

    if name == "privatize":
        return WellFormed(
            LdpMod(
                train=RELEASES["train"],
                evaluate=RELEASES["evaluate"],
                admission=MarkedAdmission(),
            )
        )
    if name == "reports":
        return PaidReports()
    if ":" not in name:
        raise ValueError(f"--ldp-gate must be privatize, reports or module:object, got {name!r}")
    gate: Mod = pkgutil.resolve_name(name)
    if not callable(gate):
        raise TypeError(f"--ldp-gate {name} is no mod")
    return gate


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"must be in [0, 86400], got {text}")
    return value


def _log_to_stderr() -> None:
    logger = logging.getLogger("flower_ldp")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _stop(reason: str) -> NoReturn:
    """End at once: Flower's server thread, if it runs already, would keep the process alive."""
    print(f"{PROGRAM}: not started: {reason}", file=sys.stderr, flush=True)
    os._exit(2)


def _own_user(seen: str) -> NoReturn:
    _ended(f"{seen}: {OWN_USER}")


def _ended(reason: str) -> NoReturn:
    """End a node whose apps cannot be started any more: whoever supervises it starts it again."""
    print(f"{PROGRAM}: ended: {reason}", file=sys.stderr, flush=True)
    os._exit(3)

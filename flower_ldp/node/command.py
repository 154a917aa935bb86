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
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from flwr.clientapp.typing import Mod

    from flower_ldp.node.channel import NodeConfig, Setup

PROGRAM = "flower-ldp-supernode"


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
        help="'privatize' (default): replies are privatized here, whatever the app "
        "does. 'reports': the app has the gate LdpMod; only reports that the site's ledger "
        "holds leave. 'module:object': a mod of the site's own, for other releases.",
    )
    site.add_argument(
        "--ldp-hold-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="Hold each report back until this long after the message came (default: 0).",
    )
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
    if options.ldp_policy is not None:
        _name_policy(options.ldp_policy)

    from flower_ldp.node.channel import FlowerChanged, run_supernode

    try:
        run_supernode(lambda node_config: _setup(node_config, options), _stop)
    except FlowerChanged as error:
        _stop(str(error))


def _setup(node_config: NodeConfig, options: argparse.Namespace) -> Setup:
    """Find the site's policy, ledger and gate; end the process if one cannot be used."""
    from flower_ldp.node.channel import Setup
    from flower_ldp.node.guard import Guard
    from flower_ldp.policy import ENVIRONMENT_VARIABLE, NODE_CONFIG_KEY

    try:
        policy = _usable_policy(node_config)
        gate = named_gate(options.ldp_gate)
    except Exception as error:  # whatever it is, there is no gate
        _stop(str(error))
    gate_config = {**node_config, NODE_CONFIG_KEY: policy}
    app_config = dict(node_config)
    if options.ldp_gate != "reports":
        # The app needs neither policy nor ledger, so it is not told where they are.
        app_config.pop(NODE_CONFIG_KEY, None)
        os.environ.pop(ENVIRONMENT_VARIABLE, None)
    print(f"{PROGRAM}: gate {options.ldp_gate}, policy {policy}", file=sys.stderr, flush=True)
    return Setup(
        lambda inner: Guard(
            inner, gate, gate_config, hold_seconds=options.ldp_hold_seconds
        ).channel(),
        app_config,
    )


def _usable_policy(node_config: NodeConfig) -> str:
    """Return the path of the site's policy once it and its ledger have been opened."""
    from flower_ldp.accounting.ledger import Ledger
    from flower_ldp.errors import ConfigError
    from flower_ldp.policy import ENVIRONMENT_VARIABLE, NODE_CONFIG_KEY, find_policy

    policy = find_policy(node_config)
    if policy is None:
        raise ConfigError("no policy is named: give --ldp-policy FILE")
    Ledger.open(policy.ledger, create=policy.is_simulation).close()
    named = node_config.get(NODE_CONFIG_KEY) or os.environ[ENVIRONMENT_VARIABLE]
    return os.path.abspath(str(named))


def named_gate(name: str) -> Mod:
    """Return the gate that ``--ldp-gate`` names.

    Raises
    ------
    ValueError, TypeError, ImportError, AttributeError
        If it names none.
    """
    from flower_ldp.clients import LdpMod
    from flower_ldp.node.releases import node_releases
    from flower_ldp.node.reports import PaidReports

    if name == "privatize":
        releases = node_releases()
        return LdpMod(train=releases["train"], evaluate=releases["evaluate"])
    if name == "reports":
        return PaidReports()
    if ":" not in name:
        raise ValueError(f"--ldp-gate must be privatize, reports or module:object, got {name!r}")
    gate: Mod = pkgutil.resolve_name(name)
    if not callable(gate):
        raise TypeError(f"--ldp-gate {name} is no mod")
    return gate


def _name_policy(path: str) -> None:
    from flower_ldp.policy import ENVIRONMENT_VARIABLE

    path = os.path.abspath(path)
    before = os.environ.get(ENVIRONMENT_VARIABLE)
    if before is not None and os.path.realpath(before) != os.path.realpath(path):
        _stop(f"two policies: --ldp-policy names {path}, {ENVIRONMENT_VARIABLE} names {before}")
    os.environ[ENVIRONMENT_VARIABLE] = path


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

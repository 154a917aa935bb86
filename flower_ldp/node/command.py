"""The commands ``flower-ldp-supernode`` and ``flower-ldp-superexec``.

The first is Flower's SuperNode behind the site's gate. It takes all options of
``flower-supernode``, and those of :func:`site_parser`; what it starts is in
:mod:`flower_ldp.node.starting`. The second is Flower's executor, as :mod:`flower_ldp.node.apps` has
it. Both say at once where there is no guarded node.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from functools import partial

from flower_ldp.node import PROGRAM, FlowerChanged, NoLinux, check_here, stop
from flower_ldp.node.log import keep_plain
from flower_ldp.node.sandbox.settings import add_options


def site_parser() -> argparse.ArgumentParser:
    """Return the parser of the options that this command adds to Flower's."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        add_help=False,
        allow_abbrev=False,
        usage=f"{PROGRAM} [site options] [options of flower-supernode]",
        description="Run a Flower SuperNode whose every reply passes this site's gate.",
    )
    add = parser.add_argument_group("site options").add_argument
    flag = partial(add, action="store_true")
    add(
        "--ldp-policy",
        metavar="FILE",
        help="The site's policy. Without it: ldp-policy in --node-config, or the variable "
        "FLOWER_LDP_POLICY.",
    )
    add(
        "--ldp-gate",
        default="privatize",
        metavar="GATE",
        help="'privatize' (default): replies are privatized here. 'reports': the app has the gate "
        "LdpMod; only reports that the site's ledger holds leave. 'module:object': a mod of the "
        "site's own, for other releases.",
    )
    add(
        "--ldp-hold-seconds",
        type=_seconds,
        default=0.0,
        metavar="SECONDS",
        help="Hold each report back until this long after the message came (default: 0).",
    )
    flag(
        "--ldp-unsafe-app-user",
        help="Start although apps run under this node's own user, so that they can read its key "
        "and policy, write to its ledger and open connections of their own.",
    )
    flag("--ldp-simulation", help="Take a policy of mode simulation, which protects nothing.")
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
        stop(str(error))
    from flower_ldp.node.starting import start

    start(options)


def run_superexec() -> None:
    """Run the command ``flower-ldp-superexec``."""
    try:
        check_here()
    except (FlowerChanged, NoLinux) as error:
        print(f"flower-ldp-superexec: not started: {error}", file=sys.stderr)
        sys.exit(2)
    from flower_ldp.node.apps import main as run

    run()


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

"""The commands ``flower-ldp-supernode`` and ``flower-ldp-superexec``.

The first is Flower's SuperNode behind the site's gate, with the options of both
``flower-supernode`` and :func:`site_parser`.
"""

import argparse
import logging
import os
import re
import sys
from functools import partial
from typing import Any

from flower_ldp.node import PROGRAM, FlowerChanged, NoLinux, check_here
from flower_ldp.node.log import IN_AN_HOUR, Allowance, keep_plain
from flower_ldp.node.sandbox.filesystem_view import Settings

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: Python and Flower alone take more than this.
_LEAST_MEMORY = 256 << 20
_HELP = {
    "--ldp-policy": "The site's policy. Without it: ldp-policy in --node-config, or the variable "
    "FLOWER_LDP_POLICY.",
    "--ldp-gate": "'privatize' (default): replies are privatized here. 'reports': the app has the "
    "gate LdpMod; only reports that the site's ledger holds leave. 'module:object': a mod of the "
    "site's own, for other releases.",
    "--ldp-hold-seconds": "Hold each report until this long after the message came (default: 0).",
    "--ldp-unsafe-app-user": "Start although apps run under this node's own user, so that they can "
    "read its key and policy, write to its ledger and open connections of their own.",
    "--ldp-simulation": "Take a policy of mode simulation, which protects nothing.",
    "--sandbox": "Start every app under bubblewrap: no network, no files of this machine's but the "
    "programs and what --sandbox-data names, one socket to this node.",
    "--check": "With --sandbox: try every way out from inside, print a table, and end; not 0 if "
    "one is open.",
    "--sandbox-data": "A folder or file that apps may read; may be repeated.",
    "--sandbox-device": "A device for apps, as /dev/nvidia0; may be repeated.",
    "--sandbox-user": "Account of the apps where this node is root (default: flower-app, or a "
    "number that no account has).",
    "--sandbox-memory": "Memory of all apps together, as 8G (default) or 512M.",
    "--sandbox-processes": "Processes and threads of all apps (default: %(default)s).",
    "--sandbox-files": "Open files of a process (default: %(default)s).",
    "--sandbox-seconds": "End an app that has run for so long (default: never).",
    "--sandbox-no-memory-limit": "Start although this machine gives no control group: an app can "
    "then use up all of its memory, and the kernel may end this node for it.",
}


def site_parser() -> argparse.ArgumentParser:
    """Return the parser of the options beside Flower's."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        add_help=False,
        allow_abbrev=False,
        usage=f"{PROGRAM} [site options] [options of flower-supernode]",
        description="Run a Flower SuperNode whose every reply passes this site's gate.",
    )
    site = parser.add_argument_group("site options")
    sandbox = parser.add_argument_group("sandbox options (Linux)")

    def add(name: str, **how: Any) -> None:
        group = site if name.startswith("--ldp-") else sandbox
        group.add_argument(name, help=_HELP[name], **how)

    add("--ldp-policy", metavar="FILE")
    add("--ldp-gate", metavar="GATE", default="privatize")
    add("--ldp-hold-seconds", metavar="SECONDS", type=_seconds, default=0.0)
    for name in ("--ldp-unsafe-app-user", "--ldp-simulation", "--sandbox", "--check"):
        add(name, action="store_true")
    for name in ("--sandbox-data", "--sandbox-device"):
        add(name, metavar="PATH", action="append", type=os.path.abspath, default=[])
    add("--sandbox-user", metavar="NAME", default=Settings.user)
    add("--sandbox-memory", metavar="SIZE", type=_size, default=Settings.memory)
    count, seconds = partial(_number, least=64), partial(_number, least=1)
    add("--sandbox-processes", metavar="N", type=count, default=Settings.processes)
    add("--sandbox-files", metavar="N", type=count, default=Settings.files)
    add("--sandbox-seconds", metavar="S", type=seconds, default=Settings.seconds)
    add("--sandbox-no-memory-limit", action="store_false", dest="sandbox_control_group")
    return parser


def _check_here(program: str) -> None:
    try:
        check_here()
    except (FlowerChanged, NoLinux) as error:
        print(f"{program}: not started: {error}", file=sys.stderr)
        sys.exit(2)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 86_400.0:
        raise argparse.ArgumentTypeError(f"must be in [0, 86400], got {text}")
    return value


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)", text)
    value = int(found[1]) * _UNITS[found[2]] if found else 0
    if value < _LEAST_MEMORY:
        raise argparse.ArgumentTypeError(f"must be a size as 8G, at least 256M, got {text!r}")
    return value


def _number(text: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,7}", text) or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number from {least} on, got {text!r}")
    return int(text)


def main() -> None:
    """Run ``flower-ldp-supernode``."""
    # Flower reads this when it is imported, and the app's process inherits it.
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    parser = site_parser()
    options, rest = parser.parse_known_args()
    if {"-h", "--help"} & set(rest):
        print(parser.format_help())
    sys.argv = [PROGRAM, *rest]
    _log_to_stderr()
    keep_plain(Allowance(IN_AN_HOUR))
    _check_here(PROGRAM)
    from flower_ldp.node.startup import start

    start(options)


def run_superexec() -> None:
    """Run ``flower-ldp-superexec``."""
    _check_here("flower-ldp-superexec")
    from flower_ldp.node.app_executor import main as run

    run()


def _log_to_stderr() -> None:
    logger = logging.getLogger("flower_ldp")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

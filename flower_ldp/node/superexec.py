"""The command ``flower-ldp-superexec``: says at once where there is no guarded node to serve."""

from __future__ import annotations

import sys

from flower_ldp.node.here import FlowerChanged, NoLinux, check_here


def main() -> None:
    """Run Flower's executor as :mod:`flower_ldp.node.apps` has it."""
    try:
        check_here()
    except (FlowerChanged, NoLinux) as error:
        print(f"flower-ldp-superexec: not started: {error}", file=sys.stderr)
        sys.exit(2)
    from flower_ldp.node.apps import main as run

    run()

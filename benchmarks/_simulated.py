"""One run of an app in one engine, in a process of its own.

python benchmarks/_simulated.py nothing strict --nodes 100 --rounds 5
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from _simulated_apps import CLIENTS, Clock

#: What the ways to run in this package's engine ask for.
OURS: dict[str, dict[str, Any]] = {
    "strict": {},
    "fast": {"strict": False},
    "strict-2": {"workers": 2},
    "fast-2": {"strict": False, "workers": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=CLIENTS)
    parser.add_argument("way", choices=["flower", *OURS])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4, help="the first warms up")
    parser.add_argument("--contexts", default="memory")
    parser.add_argument("--average", action="store_true", help="average replies as FedAvg does")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    clock = Clock(options.kind, options.nodes, options.rounds, options.average)
    client, _ = CLIENTS[options.kind]
    if options.way == "flower":
        from flwr.simulation import run_simulation

        resources = {"num_cpus": 1, "num_gpus": 0.0}
        config: Any = {"client_resources": resources, "init_args": {"num_cpus": 2}}
        run_simulation(clock.app(), client, options.nodes, backend_config=config)
    else:
        from flower_ldp.simulation import run_in_process

        how = OURS[options.way]
        run_in_process(clock.app(), client, options.nodes, contexts=options.contexts, **how)


if __name__ == "__main__":
    main()

"""Rounds of the example app through ``flwr run``, with and without the gate.

The app is copied and its components are exchanged: the client with or without ``LdpMod``,
the server for one that notes the time of each round.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

from _examples import EXAMPLES, replace_once
from _runner import local_superlink, submit

EXAMPLE = EXAMPLES / "signds"
Config: TypeAlias = dict[str, bool | float | int | str]
_PRIVATE = "signds_example.client_app:app"
_UNPROTECTED = "signds_example.plain_client:app"
_PLAIN_CLIENT = '''"""Written by benchmarks/gate.py: the example's client without a mod."""

from flwr.clientapp import ClientApp

from signds_example import training

app = ClientApp()
app.train()(training.train)
'''

# The example's server, with a clock in place of the evaluation.
_CLOCK_SERVER = '''"""Written by benchmarks/gate.py."""

import json
import time
from collections import Counter
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from flower_ldp.strategies import grid_with_deadlines
from signds_example import data, model
from signds_example.server_app import make_strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the time at which each round's model is there."""
    config = context.run_config
    seed = int(config["seed"])
    side = data.load(str(config["data"]), str(config["evaluate-on"]), seed).side
    net = model.build(str(config["model"]), side, seed)
    times = []

    def tick(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        times.append(time.monotonic())
        return MetricRecord({"round": server_round})

    result = make_strategy(context).start(
        grid_with_deadlines(grid),  # so that both ask for replies at the same times
        ArrayRecord(net.state_dict()),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=tick,
    )
    rejected = Counter()
    for metrics in result.train_metrics_clientapp.values():
        rejected.update({name: n for name, n in metrics.items() if name.startswith("rejected-")})
    Path(str(config["output-dir"])).write_text(
        json.dumps({"times": times, "rejected": dict(rejected)})
    )
    print("wrote the times", flush=True)
'''


# Steps small enough that training does not diverge: clients refuse to report NaN.
_SIGNDS = """encrypt:
  encrypt_train_type: {kind}
  signds:
    sign_k: 0.2
    sign_eps: {epsilon}
    sign_mag_eps: 1.0
    sign_scaling: published
"""


def engine(
    settings: Config, epsilon: float, clients: int, runs: int, policy: Path, folder: Path
) -> dict[str, Any]:
    """Time rounds of ``flwr run`` with private and with unprotected clients.

    Parameters
    ----------
    settings : dict
        Of the app's configuration, for both kinds. The first round of a run warms up and is not
        counted.
    epsilon : float
        Of the selection.
    clients : int
        Simulated SuperNodes; all take part in every round.
    runs : int
        Runs of each kind, in alternation.
    policy : Path
        That simulated clients obey.
    folder : Path
        For the copies of the app and for Flower's home.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    cases = {"with_gate": (_PRIVATE, "SIGNDS"), "without_gate": (_UNPROTECTED, "NOT_ENCRYPT")}
    copies = {
        name: _copy_app(folder / name, client, _SIGNDS.format(kind=kind, epsilon=float(epsilon)))
        for name, (client, kind) in cases.items()
    }
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    with local_superlink(folder / "flwr-home", policy) as environment:
        for run in range(runs):
            for name in list(cases)[:: 1 if run % 2 else -1]:
                output = folder / f"{name}-{run}.json"
                config = {
                    key: json.dumps(value)
                    for key, value in (settings | {"output-dir": str(output)}).items()
                }
                submit(copies[name], clients, config, environment=environment)
                rounds[name] += _seconds(output)
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    least = {name: min(values) for name, values in rounds.items()}
    return {
        "clients": clients,
        "runs": runs,
        "rounds_timed": {name: len(values) for name, values in rounds.items()},
        "median_seconds": medians,
        "least_seconds": least,
        "quartiles_seconds": {
            name: statistics.quantiles(values, n=4)[::2] for name, values in rounds.items()
        },
        "ratio": medians["with_gate"] / medians["without_gate"],
        "ratio_of_least": least["with_gate"] / least["without_gate"],
    }


def _seconds(output: Path) -> list[float]:
    """Return the times of all rounds but the first, which warms up."""
    result = json.loads(output.read_text())
    if result["rejected"]:
        raise RuntimeError(f"reports were rejected: {result['rejected']}")
    return [after - before for before, after in pairwise(result["times"][1:])]


def _copy_app(target: Path, client: str, signds: str) -> Path:
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    (target / "signds_example" / "clock_server.py").write_text(_CLOCK_SERVER)
    (target / "signds_example" / "plain_client.py").write_text(_PLAIN_CLIENT)
    (target / "signds_example" / "signds.yaml").write_text(signds)
    project = target / "pyproject.toml"
    replace_once(project, '"signds_example.server_app:app"', '"signds_example.clock_server:app"')
    replace_once(project, f'"{_PRIVATE}"', f'"{client}"')
    return target

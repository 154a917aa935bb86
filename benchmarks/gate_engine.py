"""Rounds of the example app through ``flwr run``, with and without the gate.

The app is copied and its components are exchanged: the client with or without ``LdpMod``,
the server for one that notes the time of each round. ``flwr run`` leaves a SuperLink
behind; it is found in ``/proc`` by its environment, and stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

Config: TypeAlias = dict[str, bool | float | int | str]

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "signds"
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
    settings: Config, *, epsilon: float, clients: int, num_rounds: int, runs: int, folder: Path
) -> dict[str, Any]:
    """Time rounds of ``flwr run`` with private and with unprotected clients.

    Parameters
    ----------
    settings : dict
        Of the app's configuration, for both kinds.
    epsilon : float
        Of the selection.
    clients : int
        Simulated SuperNodes; all take part in every round.
    num_rounds : int
        Rounds of a run. The first warms up and is not counted.
    runs : int
        Runs of each kind, in alternation.
    folder : Path
        Empty, for the copies of the app and for Flower's home.
    """
    home = folder / "flwr-home"
    home.mkdir()
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(_free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    cases = {"with_gate": (_PRIVATE, "SIGNDS"), "without_gate": (_UNPROTECTED, "NOT_ENCRYPT")}
    copies = {
        name: _copy_app(folder / name, client, _SIGNDS.format(kind=kind, epsilon=float(epsilon)))
        for name, (client, kind) in cases.items()
    }
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    try:
        for run in range(runs):
            for name in list(cases)[:: 1 if run % 2 else -1]:
                output = folder / f"{name}-{run}.json"
                config = {
                    **settings,
                    "num-server-rounds": num_rounds,
                    "output-dir": str(output),
                }
                rounds[name] += _run(copies[name], config, clients, environment, output)
    finally:
        _stop_processes_of(home)
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    return {
        "clients": clients,
        "runs": runs,
        "rounds_timed": {name: len(values) for name, values in rounds.items()},
        "median_seconds": medians,
        "least_seconds": {name: min(values) for name, values in rounds.items()},
        "quartiles_seconds": {
            name: statistics.quantiles(values, n=4)[::2] for name, values in rounds.items()
        },
        "ratio": medians["with_gate"] / medians["without_gate"],
        "ratio_of_least": min(rounds["with_gate"]) / min(rounds["without_gate"]),
    }


def _copy_app(target: Path, client: str, signds: str) -> Path:
    shutil.copytree(EXAMPLE, target, ignore=shutil.ignore_patterns("outputs", "__pycache__"))
    (target / "signds_example" / "clock_server.py").write_text(_CLOCK_SERVER)
    (target / "signds_example" / "plain_client.py").write_text(_PLAIN_CLIENT)
    (target / "signds_example" / "signds.yaml").write_text(signds)
    project = target / "pyproject.toml"
    text = project.read_text()
    for old, new in (
        ("signds_example.server_app:app", "signds_example.clock_server:app"),
        (_PRIVATE, client),
    ):
        if text.count(f'"{old}"') != 1:
            raise RuntimeError(f"{EXAMPLE}/pyproject.toml does not name {old} exactly once")
        text = text.replace(f'"{old}"', f'"{new}"')
    project.write_text(text)
    return target


def _run(
    app: Path,
    config: Config,
    clients: int,
    environment: dict[str, str],
    output: Path,
) -> list[float]:
    """Run the app once; return the times of all rounds but the first, which warms up."""
    command = [
        *("flwr", "run", str(app), "--stream"),
        *("--federation-config", f"num-supernodes={clients}"),
        *("-c", " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1_800)
    if not output.exists():
        raise RuntimeError(f"{' '.join(command)} left no result:\n{done.stdout}\n{done.stderr}")
    result = json.loads(output.read_text())
    if result["rejected"]:
        raise RuntimeError(f"reports were rejected: {result['rejected']}\n{done.stdout}")
    times: list[float] = result["times"]
    return [after - before for before, after in pairwise(times[1:])]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stop_processes_of(home: Path) -> None:
    """Stop the SuperLink that ``flwr run`` left behind, known by its FLWR_HOME."""
    mark = f"FLWR_HOME={home}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may be gone by now, or another user's.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGTERM)

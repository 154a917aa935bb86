"""What the gate costs: round times of the example app with and without ``LdpMod``.

The app is ``examples/signds`` with LeNet-5 (d = 61,706): the client trains on real images,
then either its weights leave as they are or the gate turns them into a SignDS report.

* **In process**: the client app answers one train message, in alternation with the gate
  and without it, from the same model and data. No network, no engine: the bare cost, with a
  policy as in a deployment and a ledger that waits for the disk.
* ``--engine``: ``flwr run`` on a copy of the app, private clients under the SignDS
  strategy against unprotected ones under FedAvg, in alternation. A round time is the time
  from one call of the server's ``evaluate_fn`` to the next; nothing is evaluated. It holds
  the engine, the transport and the server's aggregation too.

The ratio that counts is the quotient of the two medians; the goal is at most 1.1. On a busy
machine look at that of the fastest calls and, in process, at that of processor time.

    python benchmarks/gate.py --engine --output benchmarks/results/gate.json

Images are those of scikit-learn's digits, enlarged to 28 x 28, or those of ``--data``, an
npz in MNIST's layout.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import _options as options
import numpy as np
import torch
import typer
from _environment import report
from _examples import ROOT
from _messages import asked_by_signds, signds_proposal
from _runs import say
from _timing import Taken, Times, alternated, clocked
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from gate_engine import EXAMPLE, Config, engine
from signds_example import client_app, model, training
from sklearn.datasets import load_digits

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy

GOAL, EPSILON = 1.1, 100.0
TRAINING: Config = {"local-steps": 20, "batch-size": 32, "model": "lenet5"}
SIMULATION = ROOT / "configs" / "simulation_policy.yaml"


def enlarged_digits(path: Path) -> None:
    """Write scikit-learn's digits as 28 x 28 images in MNIST's layout."""
    images, labels = load_digits(return_X_y=True)
    bytes_ = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = np.pad(bytes_.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    (x_test, x_train), (y_test, y_train) = (np.split(a, [len(large) // 5]) for a in (large, labels))
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def deployed(folder: Path) -> Path:
    """Write a policy as in a deployment, with a ledger that is on disk before all else."""
    path = folder / "policy.yaml"
    path.write_text(SIMULATION.read_text().replace("mode: simulation", "mode: deployment"))
    path.chmod(0o600)
    Ledger.open(load_policy(path).ledger, create=True).close()
    return path


def simulated(folder: Path) -> Path:
    """Copy the policy for simulations, so that its ledger lies in ``folder``."""
    target = folder / "simulation"
    target.mkdir()
    return Path(shutil.copy(SIMULATION, target))


def in_process(data: str, clients: int, repeats: int) -> dict[str, Any]:
    """Time the client's handler with and without the gate, in alternation."""
    plain = ClientApp()
    plain.train()(training.train)
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"] | TRAINING | {"data": data}
    node: Config = {"partition-id": 0, "num-partitions": clients}
    context = Context(1, 2, node, RecordDict(), config)
    arrays = ArrayRecord(model.build("lenet5", 28, 1).state_dict())
    proposal = signds_proposal(EPSILON)
    torch.set_num_threads(1)

    def answering(app: ClientApp) -> Callable[[], Taken]:
        numbers, replies = itertools.count(), list[Message]()

        def answer() -> Taken:
            number = next(numbers)
            sent = RecordDict({"arrays": arrays})
            sent["config"] = ConfigRecord({"server-round": number})
            message = asked_by_signds(sent, proposal, number)
            taken = clocked(lambda: replies.append(app(message, context)))()
            if replies[-1].has_error():
                raise RuntimeError(replies[-1].error.reason)
            return taken

        return answer

    calls = {"with_gate": answering(client_app.app), "without_gate": answering(plain)}
    found = {name: Times(one) for name, one in alternated(calls, repeats, warm_up=5).items()}
    gated, bare = found.values()
    return {
        "repeats": repeats,
        "median_seconds": {name: one.median for name, one in found.items()},
        "least_seconds": {name: one.least for name, one in found.items()},
        "median_cpu_seconds": {name: one.cpu for name, one in found.items()},
        "ratio": gated.median / bare.median,
        "ratio_of_least": gated.least / bare.least,
        "ratio_of_cpu": gated.cpu / bare.cpu,
    }


def main(
    repeats: options.Repeats = 200,
    clients: Annotated[int, typer.Option(min=1)] = 20,
    data: Annotated[Path | None, typer.Option(help="npz in MNIST's layout, not digits.")] = None,
    through_engine: Annotated[
        bool, typer.Option("--engine", help="Measure through flwr run too.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=4, help="Of each engine run.")] = 10,
    engine_runs: Annotated[int, typer.Option(min=1, help="Of each kind.")] = 2,
    output: options.Report = None,
) -> None:
    """Time both ways; exit status 1 if a ratio is above the goal."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        images = folder / "digits.npz" if data is None else data.resolve()
        if data is None:
            enlarged_digits(images)
        os.environ["FLOWER_LDP_POLICY"] = str(deployed(folder))
        result = {"in_process": in_process(str(images), clients, repeats)}
        if through_engine:
            settings = TRAINING | {"data": str(images), "num-server-rounds": rounds}
            result["engine"] = engine(
                settings, EPSILON, clients, engine_runs, simulated(folder), folder
            )
    say(result)
    body = {
        "torch": torch.__version__,
        "model": "LeNet-5, d = 61,706",
        "images": "digits, enlarged" if data is None else data.name,
        "local_steps": TRAINING["local-steps"],
        "batch_size": TRAINING["batch-size"],
        "goal": GOAL,
    }
    report(output, body | result)
    raise typer.Exit(int(any(part["ratio"] > GOAL for part in result.values())))


if __name__ == "__main__":
    typer.run(main)

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

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _environment import write_report
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, Metadata, RecordDict
from flwr.clientapp import ClientApp
from gate_engine import EXAMPLE, Config, engine
from sklearn.datasets import load_digits

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.policy import load_policy
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal

GOAL = 1.1
ROOT = Path(__file__).resolve().parents[1]


def enlarged_digits(path: Path) -> None:
    """Write scikit-learn's digits as 28 x 28 images in MNIST's layout."""
    images, labels = load_digits(return_X_y=True)
    bytes_ = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    large = np.pad(bytes_.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2)))
    held_out = len(large) // 5
    np.savez(
        path,
        x_train=large[held_out:],
        y_train=labels[held_out:],
        x_test=large[:held_out],
        y_test=labels[:held_out],
    )


def deployed(folder: Path) -> Path:
    """Write a policy as in a deployment, with a ledger that is on disk before all else."""
    text = (ROOT / "configs" / "simulation_policy.yaml").read_text()
    path = folder / "policy.yaml"
    path.write_text(text.replace("mode: simulation", "mode: deployment"))
    path.chmod(0o600)
    Ledger.open(load_policy(path).ledger, create=True).close()
    return path


def simulated(folder: Path) -> Path:
    """Copy the policy for simulations, so that its ledger lies in ``folder``."""
    target = folder / "simulation"
    target.mkdir()
    return Path(shutil.copy(ROOT / "configs" / "simulation_policy.yaml", target))


def app_config() -> Config:
    """Return the example's own configuration."""
    text = (EXAMPLE / "pyproject.toml").read_text()
    config: Config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    return config


def run_config(options: argparse.Namespace, data: str) -> Config:
    """Return what both ways of measuring set in the app's configuration."""
    return {
        "local-steps": options.local_steps,
        "batch-size": options.batch_size,
        "model": "lenet5",
        "data": data,
    }


def train_message(
    number: int, arrays: ArrayRecord, proposal: UpdateProposal[SignDSRound]
) -> Message:
    """Return what the SignDS strategy sends to a client."""
    content = RecordDict(
        {
            "arrays": arrays,
            "config": ConfigRecord({"server-round": number}),
            PROPOSAL_KEY: ConfigRecord({**proposal.to_fields()}),
        }
    )
    message: Message = Message(  # type: ignore[call-overload]  # its overloads lack metadata
        content=content,
        metadata=Metadata(
            run_id=1,
            message_id=f"ask-{number}",
            src_node_id=1,
            dst_node_id=2,
            reply_to_message_id="",
            group_id=str(number),
            created_at=time.time(),
            ttl=3_600.0,
            message_type=MessageType.TRAIN,
        ),
    )
    return message


def in_process(options: argparse.Namespace, data: str) -> dict[str, Any]:
    """Time the client's handler with and without the gate, in alternation."""
    sys.path.insert(0, str(EXAMPLE))
    from signds_example import client_app, model, training

    plain = ClientApp()
    plain.train()(training.train)
    apps: dict[str, ClientApp] = {"with_gate": client_app.app, "without_gate": plain}
    config = app_config() | run_config(options, data)
    context = Context(
        run_id=1,
        node_id=2,
        node_config={"partition-id": 0, "num-partitions": options.clients},
        state=RecordDict(),
        run_config=config,
    )
    arrays = ArrayRecord(model.build("lenet5", 28, 1).state_dict())
    proposal = UpdateProposal(SignDSRound(SignDS(options.epsilon, 0.2), 1.0, 1e-3))
    seconds: dict[str, list[float]] = {name: [] for name in apps}
    cpu_seconds: dict[str, list[float]] = {name: [] for name in apps}
    torch.set_num_threads(1)
    for number in range(options.warm_up + options.repeats):
        # Each goes first every other time, so that neither profits from the other's cache.
        for name in list(apps)[:: 1 if number % 2 else -1]:
            message = train_message(number, arrays, proposal)
            start, cpu_start = time.perf_counter(), time.process_time()
            reply = apps[name](message, context)
            elapsed, cpu_elapsed = time.perf_counter() - start, time.process_time() - cpu_start
            if reply.has_error():
                raise RuntimeError(f"{name}: {reply.error.reason}")
            if number >= options.warm_up:
                seconds[name].append(elapsed)
                cpu_seconds[name].append(cpu_elapsed)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    cpu_medians = {name: statistics.median(values) for name, values in cpu_seconds.items()}
    return {
        "repeats": options.repeats,
        "median_seconds": medians,
        "least_seconds": {name: min(values) for name, values in seconds.items()},
        "median_cpu_seconds": cpu_medians,
        "ratio": medians["with_gate"] / medians["without_gate"],
        "ratio_of_least": min(seconds["with_gate"]) / min(seconds["without_gate"]),
        "ratio_of_cpu": cpu_medians["with_gate"] / cpu_medians["without_gate"],
    }


def print_result(result: dict[str, Any]) -> None:
    """Print one line for each way of measuring."""
    for name in ("in_process", "engine"):
        part = result.get(name)
        if part is None:
            continue
        seconds = part["median_seconds"]
        print(
            f"{name:<11} with the gate {1e3 * seconds['with_gate']:>9.2f} ms, "
            f"without {1e3 * seconds['without_gate']:>9.2f} ms, "
            f"ratio {part['ratio']:.3f} (goal: at most {GOAL}), "
            f"of the fastest {part['ratio_of_least']:.3f}"
        )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=200, help="calls with and without")
    parser.add_argument("--warm-up", type=int, default=5, help="calls not counted")
    parser.add_argument("--local-steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epsilon", type=float, default=100.0, help="of the selection")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--data", type=Path, help="npz in MNIST's layout; default: digits")
    parser.add_argument("--engine", action="store_true", help="measure through flwr run too")
    parser.add_argument("--rounds", type=int, default=10, help="of each engine run")
    parser.add_argument("--engine-runs", type=int, default=2, help="of each kind")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if min(options.repeats, options.engine_runs) < 1 or options.rounds < 4:
        parser.error("--repeats and --engine-runs must be at least 1, --rounds at least 4")
    if options.engine and not Path("/proc/self/environ").exists():
        parser.error("--engine needs /proc, to find the SuperLink that it must stop")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "digits.npz" if options.data is None else options.data.resolve()
        if options.data is None:
            enlarged_digits(data)
        os.environ["FLOWER_LDP_POLICY"] = str(deployed(folder))
        result: dict[str, Any] = {"in_process": in_process(options, str(data))}
        if options.engine:
            os.environ["FLOWER_LDP_POLICY"] = str(simulated(folder))
            result["engine"] = engine(
                run_config(options, str(data)),
                epsilon=options.epsilon,
                clients=options.clients,
                num_rounds=options.rounds,
                runs=options.engine_runs,
                folder=folder,
            )
    print_result(result)
    if options.output is not None:
        body = {
            "torch": torch.__version__,
            "model": "LeNet-5, d = 61,706",
            "images": "digits, enlarged" if options.data is None else options.data.name,
            "local_steps": options.local_steps,
            "batch_size": options.batch_size,
            "goal": GOAL,
            **result,
        }
        write_report(options.output, "benchmarks/gate.py", arguments, body)
    return int(any(part["ratio"] > GOAL for part in result.values()))


if __name__ == "__main__":
    raise SystemExit(main())

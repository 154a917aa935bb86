"""Ten thousand clients, a server and an analyzer, in processes of their own on this machine.

The clients seal their reports for the analyzer. The server mixes them and can read none. The
analyzer, behind HTTPS, answers with sums. On one machine the three parts show how it runs, and hide
nothing from each other's administrator: docs/analyzer.md says what is claimed where they are apart.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

EXAMPLES = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(EXAMPLES), str(EXAMPLES / "asked-once")]

from _runner import free_ports  # noqa: E402
from asked_once_example import data, head  # noqa: E402

from flower_ldp.clients import CodewordRelease, LdpMod  # noqa: E402
from flower_ldp.mechanisms import Codeword  # noqa: E402
from flower_ldp.shuffle import Analyzer  # noqa: E402
from flower_ldp.simulation import run_in_process  # noqa: E402
from flower_ldp.strategies import CodewordStrategy  # noqa: E402

POLICY = """\
data_id: shuffled
ledger: simulation-ledger.sqlite
mode: simulation
messages:
  train:
    codeword: {{epsilon: {epsilon}}}
budgets:
  client:
    life: {{epsilon: {epsilon}}}
releases: {{life: 1}}
analyzer: {{key: '{key}', minimum: {minimum}}}
"""
_IMAGES, _STEPS, _RATE, _START_SECONDS = 3, 10, 2.0, 180.0

client = ClientApp(mods=[LdpMod(train=CodewordRelease())])


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's layer on a client's images: a draw of its own from all of them."""
    images, _ = data.load(str(context.run_config["data"]), "test", seed=1)
    own = np.random.default_rng(int(context.node_config["partition-id"]))
    mine = own.integers(len(images.labels), size=_IMAGES)
    before = message.content["arrays"]["weight"].numpy()
    inputs, labels = images.features[mine], images.labels[mine]
    weights, _ = head.trained(before, inputs, labels, steps=_STEPS, rate=_RATE)
    arrays = ArrayRecord({"weight": Array(weights)})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def server_of(strategy: CodewordStrategy, rounds: int, source: str) -> ServerApp:
    """Return the server app, which prints the accuracy and both numbers."""
    server = ServerApp()
    _, held = data.load(source, "test", seed=1)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        weights = arrays["weight"].numpy()
        accuracy, _ = head.accuracy_and_loss(weights, held.features, held.labels)
        print(f"round {server_round}/{rounds}: accuracy {accuracy:.4f}", flush=True)
        return MetricRecord({"accuracy": accuracy})

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        model = ArrayRecord({"weight": Array(head.initial())})
        strategy.start(grid, model, num_rounds=rounds, evaluate_fn=evaluate)
        print(strategy.privacy_spent())

    return server


@contextmanager
def analyzer_in(folder: Path, minimum: int) -> Iterator[Analyzer]:
    """Run an analyzer with keys and a certificate of its own."""
    key, (port,) = folder / "analyzer.key", free_ports(1)
    own = [sys.executable, "-m", "flower_ldp", "analyzer"]
    made = subprocess.run([*own, "keygen", str(key)], check=True, stdout=subprocess.PIPE, text=True)
    prepare = [sys.executable, str(EXAMPLES / "deployment" / "prepare.py"), "certificates"]
    subprocess.run([*prepare, str(folder / "tls"), "127.0.0.1"], check=True)
    words = ["serve", "--key", key, "--minimum", minimum, "--port", port]
    words += ["--tls-key", folder / "tls/server.key"]
    words += ["--tls-certificate", folder / "tls/server.pem"]
    process = subprocess.Popen([*own, *map(str, words)])
    try:
        end = time.monotonic() + _START_SECONDS
        while True:
            with socket.socket() as link:
                if link.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit("the analyzer does not start: its error is above")
            time.sleep(0.1)
        yield Analyzer(
            f"https://127.0.0.1:{port}",
            made.stdout.strip(),
            token=key.with_name("analyzer.key.token"),
            certificates=folder / "tls/ca.crt",
        )
    finally:
        process.terminate()
        process.wait()


def main(
    clients: Annotated[int, typer.Option(min=10, help="Simulated clients.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; each client is in one.")] = 5,
    epsilon: Annotated[float, typer.Option(help="Local epsilon of a report.")] = 4.0,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="Of the analyzer; by default 95 % of a round.")
    ] = None,
    source: Annotated[
        str, typer.Option("--data", help="'digits', or an npz file in MNIST's layout.")
    ] = "digits",
    workers: Annotated[int, typer.Option(min=1, help="Processes of clients.")] = 2,
) -> None:
    """Train a linear layer for digits from shuffled reports, each client asked once."""
    least = minimum or max(clients // rounds * 95 // 100, 1)
    with (
        tempfile.TemporaryDirectory(prefix="flower-ldp-") as name,
        analyzer_in(Path(name), least) as analyzer,
    ):
        policy = Path(name, "policy.yaml")
        text = POLICY.format(epsilon=epsilon, key=analyzer.key, minimum=least)
        policy.write_text(text, encoding="utf-8")
        strategy = CodewordStrategy(Codeword(epsilon=epsilon), analyzer=analyzer)
        run_in_process(
            server_of(strategy, rounds, source),
            client,
            clients,
            node_config={"ldp-policy": str(policy)},
            run_config={"data": source, "num-server-rounds": rounds},
            workers=workers,
            contexts="drop",
        )


if __name__ == "__main__":
    typer.run(main)

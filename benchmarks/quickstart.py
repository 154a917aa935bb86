"""Flower's quickstart-pytorch, 100 clients: as it is, with the README's change, with 280 weights.

The app is Flower's (``tests/simulation/apps/quickstart-pytorch``). Its loader gives images in
MNIST's layout in the shape of CIFAR-10's, 480 to train on for each client, and 2,000 of the test
images. A row changes the strategy and the mod, and with 280 weights ``Net``, to the one that
``docs/asked_once.md`` has. No length was tuned. Each run is a process of its own; those that are
there are not repeated.

    python benchmarks/quickstart.py mnist.npz
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import re
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import _options as options
import numpy as np
import typer
from _examples import ROOT, replace_once
from _images import read
from _runs import Run, Runs, elsewhere, like, spread
from numpy.typing import NDArray

SIMULATION = ROOT / "tests" / "simulation"
CLIENTS, TEST = 100, 2_000

CODEWORDS = "CodewordStrategy(Codeword(epsilon=8.0))"
SIGNDS = "SignDSStrategy(SignDS(7.0, 0.2), LearnedStep(MagRR(1.0)))"
IMPORTS = """
from flower_ldp.mechanisms import Codeword, MagRR, SignDS
from flower_ldp.strategies import CodewordStrategy, LearnedStep, SignDSStrategy
"""
NOT_PRIVATE = "FedAvg(fraction_evaluate=fraction_evaluate)"


@dataclass(frozen=True)
class Row:
    """What is changed in the app, for how many rounds it runs, and the total per client."""

    name: str
    small: bool
    rounds: int
    strategy: str = NOT_PRIVATE
    release: str = ""
    total: float | None = None


ROWS = [
    Row("280 weights, asked once", True, 10, CODEWORDS, "CodewordRelease", 8.0),
    Row("280 weights, SignDS", True, 3, SIGNDS, "SignDSRelease", 24.0),
    Row("280 weights, FedAvg", True, 3),
    Row("as it is, SignDS", False, 3, SIGNDS, "SignDSRelease", 24.0),
    Row("as it is, asked once", False, 3, CODEWORDS, "CodewordRelease", 8.0),
    Row("as it is, FedAvg", False, 3),
]


def main(
    data: options.Mnist,
    seeds: options.Seeds = 5,
    output: options.Output = options.RESULTS / "quickstart.json",
) -> None:
    """Run each row with each seed, and write means and spreads."""
    runs = Runs(output, summary)
    for seed, row in itertools.product(range(1, seeds + 1), ROWS):
        runs.make(
            {**asdict(row), "seed": seed}, partial(elsewhere, train, row, seed, data.resolve())
        )
    runs.show()


def summary(runs: list[Run]) -> list[Run]:
    """Return mean and spread of each row."""
    of = {row.name: like(runs, name=row.name) for row in ROWS}
    return [{"row": name, **spread(mine)} for name, mine in of.items() if mine]


def train(row: Row, seed: int, data: Path) -> Run:
    """Run the app as a row changes it; return the accuracy of the model that it saves."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    os.environ["FLOWER_LDP_POLICY"] = str(ROOT / "configs" / "simulation_policy.yaml")
    sys.path.insert(0, str(SIMULATION / "standins"))
    _give_images(data)
    import torch

    from flower_ldp.simulation import load_folder, run_in_process

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "quickstart-pytorch"
        shutil.copytree(SIMULATION / "apps" / "quickstart-pytorch", folder)
        _change(folder / "pytorchexample", row)
        os.chdir(place)
        app = load_folder(folder, {"num-server-rounds": row.rounds})
        run_in_process(app.server, app.client, CLIENTS, run_config=app.run_config, progress=False)
        task = sys.modules["pytorchexample.task"]
        net = task.Net()
        net.load_state_dict(torch.load("final_model.pt"))
        _, accuracy = task.test(net, task.load_centralized_dataset(), torch.device("cpu"))
        return {"accuracy": float(accuracy)}


def _change(app: Path, row: Row) -> None:
    if row.release:
        replace_once(
            app / "client_app.py",
            "app = ClientApp()",
            f"from flower_ldp.clients import {row.release}, LdpMod\n"
            f"app = ClientApp(mods=[LdpMod(train={row.release}())])",
        )
        replace_once(app / "server_app.py", NOT_PRIVATE, row.strategy)
        replace_once(
            app / "server_app.py", "\n# Create ServerApp", f"{IMPORTS}\n# Create ServerApp"
        )
    if row.small:
        page = (ROOT / "docs" / "asked_once.md").read_text()
        net = re.search(r"^class Net\(nn\.Module\):\n(?:    .*\n|\n)+", page, re.M)
        task = (app / "task.py").read_text()
        old = task[task.index("class Net(") : task.index("fds = None")]
        if net is None:
            raise ValueError("the page has no Net")
        replace_once(app / "task.py", old, net[0])


def _give_images(data: Path) -> None:
    """Let the app's loader find images of a file, at the size and depth of CIFAR-10's."""
    datasets = importlib.import_module("datasets")  # of the stand-ins

    def records(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> Any:
        large = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None]
        return datasets.Records({"img": np.repeat(large, 3, 3), "label": labels})

    raw = read(data)
    test = records(raw.held_x[:TEST], raw.held_y[:TEST])
    found = {"train": records(raw.x, raw.y), "test": test}
    vars(datasets)["load_dataset"] = lambda name, split: found[split]


if __name__ == "__main__":
    typer.run(main)

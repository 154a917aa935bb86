"""The published experiments, run by this package: figures for docs/published.md.

Each command writes one result file; what is in it is not run again.

    python benchmarks/published.py signds mnist.npz
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from _environment import write_report
from _published_signds import KINDS, PUBLISHED
from _published_signds import train as train_signds
from _runs import Mnist, Output, Seeds, earlier, is_known

RESULTS = Path(__file__).resolve().parent / "results"
app = typer.Typer(help=__doc__.partition("\n")[0], no_args_is_help=True)


@app.callback()
def published() -> None:
    """Run one of the published experiments."""


@app.command()
def signds(
    mnist: Mnist,
    setting: Annotated[str, typer.Option(help="'page' (600 rounds) or 'code' (200).")] = "page",
    kind: Annotated[str, typer.Option(help="SIGNDS or NOT_ENCRYPT; by default both.")] = "",
    seeds: Seeds = 1,
    output: Output = RESULTS / "published-signds.json",
) -> None:
    """LeNet with 100 clients by SignDS, and by FedAvg without protection; hours."""
    torch.set_num_threads(1)
    settings = PUBLISHED[setting]
    for seed in range(1, seeds + 1):
        for one in [kind] if kind else KINDS:
            checkpoint = output.with_name(f".{output.stem}-{setting}-{one}-{seed}.npz")
            wanted = {"setting": setting, "kind": one, "seed": seed}
            if is_known(wanted, earlier(output)):
                continue
            run = wanted | train_signds(mnist, one, settings, seed, checkpoint)
            runs = [*earlier(output), run]
            words = ["signds", "mnist.npz", "--setting", setting, "--seeds", str(seeds)]
            write_report(output, "benchmarks/published.py", words, {"runs": runs})
            checkpoint.unlink()


if __name__ == "__main__":
    app()

"""The published experiments, run by this package: figures for docs/published.md.

Each command writes one result file; what is in it is not run again.

    python benchmarks/published.py signds mnist.npz
    python benchmarks/published.py evaluation mnist.npz
    python benchmarks/published.py labels mnist.npz
    python benchmarks/published.py messages
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _environment import write_report
from _published_evaluation import Settings as EvaluationSettings
from _published_evaluation import run as run_evaluation
from _published_labels import METHODS
from _published_labels import train as train_labels
from _published_messages import measured
from _published_signds import KINDS, PUBLISHED
from _published_signds import train as train_signds
from _runs import Mnist, Output, Run, Seeds, earlier, is_known, spread

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
    rounds: Annotated[int, typer.Option(help="Fewer than published; 0 for all.")] = 0,
    seeds: Seeds = 1,
    output: Annotated[Path | None, typer.Option(help="By default by setting.")] = None,
) -> None:
    """LeNet with 100 clients by SignDS, and by FedAvg without protection; hours."""
    torch.set_num_threads(1)
    output = output or RESULTS / f"published-signds{'-code' * (setting == 'code')}.json"
    settings = PUBLISHED[setting]
    settings = replace(settings, rounds=rounds or settings.rounds)
    for seed in range(1, seeds + 1):
        for one in [kind] if kind else KINDS:
            checkpoint = output.with_name(f".{output.stem}-{setting}-{one}-{seed}.npz")
            wanted = {"setting": setting, "kind": one, "seed": seed}
            if is_known(wanted, earlier(output)):
                continue
            run = wanted | train_signds(mnist, one, settings, seed, checkpoint)
            runs = [*earlier(output), run]
            words = ["signds", "mnist.npz", "--setting", setting, "--rounds", str(settings.rounds)]
            words += ["--seeds", str(seeds)]
            write_report(output, "benchmarks/published.py", words, {"runs": runs})
            if settings == PUBLISHED[setting]:  # else a longer run can go on from it
                checkpoint.unlink()


@app.command()
def evaluation(
    mnist: Mnist, seeds: Seeds = 5, output: Output = RESULTS / "published-evaluation.json"
) -> None:
    """Score and loss over rounds, as they are and with noise at several epsilons; minutes."""
    torch.set_num_threads(1)
    settings = EvaluationSettings()
    for seed in range(1, seeds + 1):
        wanted = {"seed": seed, "settings": asdict(settings)}
        if is_known(wanted, earlier(output)):
            continue
        runs = [*earlier(output), wanted | rounded(run_evaluation(mnist, settings, seed))]
        words = ["evaluation", "mnist.npz", "--seeds", str(seeds)]
        body = {"summary": trends(runs), "runs": runs}
        write_report(output, "benchmarks/published.py", words, body)
        print(f"seed {seed}: {body['summary'][0]}", flush=True)


@app.command()
def labels(
    mnist: Mnist,
    seeds: Seeds = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Of all methods but DP-SGD.")] = 10,
    output: Output = RESULTS / "published-labels.json",
) -> None:
    """Train the LabelDP notebook's network by its methods, and DP-SGD by Opacus; minutes."""
    torch.set_num_threads(1)
    for seed, method in itertools.product(range(1, seeds + 1), METHODS):
        wanted = {"method": method, "seed": seed}
        if is_known(wanted, earlier(output)):
            continue
        runs = [*earlier(output), wanted | train_labels(mnist, method, seed, epochs)]
        rows = {name: [run for run in runs if run["method"] == name] for name in METHODS}
        summary = [
            {"row": name, "flipped": found[0]["flipped"], **spread(found)}
            for name, found in rows.items()
            if found
        ]
        words = ["labels", "mnist.npz", "--seeds", str(seeds), "--epochs", str(epochs)]
        write_report(output, "benchmarks/published.py", words, {"summary": summary, "runs": runs})
        print(f"{method}, seed {seed}: {runs[-1]}", flush=True)


@app.command()
def messages(output: Output = RESULTS / "published-messages.json") -> None:
    """Count bytes of a round with rows in a message of their own, and in the train reply."""
    found = measured()
    write_report(output, "benchmarks/published.py", ["messages"], found)
    print(found)


def rounded(found: Any) -> Any:
    """Return a result with numbers of five significant digits."""
    if isinstance(found, dict):
        return {name: rounded(one) for name, one in found.items()}
    if isinstance(found, list):
        return [rounded(one) for one in found]
    return float(f"{found:.5g}") if isinstance(found, float) else found


def trends(runs: list[Run]) -> list[Run]:
    """Return, for each epsilon and noise, mean and deviation over seeds."""
    made: list[Run] = []
    for number, first in enumerate(runs[0]["by_epsilon"]):
        line: Run = {"epsilon": first["epsilon"]}
        for noise in ("laplace", "gaussian"):
            found = [run["by_epsilon"][number].get(noise) for run in runs]
            for name in ("spearman", "mean_error") if found[0] else ():
                values = [one[name] for one in found]
                line[f"{noise}_{name}"] = round(statistics.mean(values), 4)
                line[f"{noise}_{name}_deviation"] = round(statistics.pstdev(values), 4)
        made.append(line)
    return made


if __name__ == "__main__":
    app()

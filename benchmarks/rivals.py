"""Codewords beside other randomizers: accuracy of one training, by total epsilon and by trust.

The rows of ``totals.py`` for 1,000 clients: the same shares of the same images, and each client is
asked once. Without Flower's messages and without the gate, in numpy; the randomizers are in
``_rivals.py``. Every randomizer trains twice:

- ``same``: features, rounds, local training and server optimizer are the row's. Codewords are as
  in ``totals.py``, as a check of it; the others choose the length of the first step among four.
- ``free``: with the settings that were best for it among all rows', of four lengths each.

They were chosen on a tenth of the training images (``--choose``, kept in
``configs/rivals.json``); the test images are read for the reported figures only. A run is written
when it ends, and runs that are there are not repeated.

    python benchmarks/rivals.py mnist.npz --cache mnist-strokes.npz --choose --seeds 2
    python benchmarks/rivals.py mnist.npz --cache mnist-strokes.npz
    python benchmarks/rivals.py --plot docs/images/totals.png --headline docs/images/accuracy.png
"""

from __future__ import annotations

import itertools
import json
import logging
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import typer
from _asked_once import CLASSES, Images, Training
from _rivals import Bare, Central, Codewords, LocalGaussian, PrivUnit, ProjUnit, Rival, Signs, train
from _rivals_picture import plot, plot_headline
from _runs import Run, Runs, like, spread
from totals import Row, Source, rows

from flower_ldp.mechanisms import Codeword

CHOSEN = Path(__file__).resolve().parent / "configs" / "rivals.json"
TOTALS, SHUFFLED = (options.RESULTS / f"{name}.json" for name in ("totals", "shuffled"))
#: Times the row's length, which was chosen for codewords.
FACTORS = (0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Entry:
    """A randomizer, and what a client that takes part has to trust."""

    title: str
    trusts: str
    make: Callable[[float], Rival]


ENTRIES = {
    "codeword": Entry(
        "codewords", "nobody; pure ε", lambda epsilon: Codewords(Codeword(epsilon, blocks=CLASSES))
    ),
    "privunit": Entry("PrivUnit", "nobody; pure ε", PrivUnit),
    "projunit": Entry("ProjUnit", "nobody; pure ε", ProjUnit),
    "signds": Entry("SignDS", "nobody; pure ε", Signs),
    "gaussian": Entry("Gaussian", "nobody; δ = 1e-5", LocalGaussian),
    "central": Entry("central DP, Flower's", "server sees everything; δ = 1e-5", Central),
    "none": Entry("no privacy", "server sees everything", lambda epsilon: Bare()),
}


@dataclass(frozen=True)
class Choice:
    """Whose row's settings, and the length of the first step."""

    settings: str
    length: float


def training_of(choice: Choice, name: str, row: Row, found: list[Row]) -> Training:
    """Return a choice as a training at the row's epsilon."""
    settings = next(one.training for one in found if one.name == choice.settings)
    return replace(settings, mechanism=name, epsilon=row.training.epsilon, length=choice.length)


def choose(source: Source, found: list[Row], names: list[str], seeds: int) -> None:
    """Try lengths, and the settings of all rows, on held-out images; write the best.

    What is in the file is not tried again.
    """
    chosen = json.loads(CHOSEN.read_text()) if CHOSEN.exists() else {}
    images = {
        row.name: [source.images(row, "validation", seed) for seed in range(1, seeds + 1)]
        for row in found
    }
    for row in found:
        mine = chosen.setdefault(row.name, {})
        for name in names:
            if name in mine:
                continue
            tried = []
            for other in found:
                for length in (factor * other.training.length for factor in FACTORS):
                    one = Choice(other.name, length)
                    training = training_of(one, name, row, found)
                    make = ENTRIES[name].make
                    runs = [
                        train(some, training, make(training.epsilon)) for some in images[other.name]
                    ]
                    tried.append({**asdict(one), "validation": round(statistics.mean(runs), 4)})
            own = [one for one in tried if one["settings"] == row.name]
            if name == "codeword":  # the row itself
                own = [one for one in own if one["length"] == row.training.length]
            mine[name] = {
                "seeds": seeds,
                "same": max(own, key=lambda one: one["validation"]),
                "free": max(tried, key=lambda one: one["validation"]),
                "tried": [list(one.values()) for one in tried],
            }
            print(f"{row.name:<18} {name:<9} {mine[name]['same']} {mine[name]['free']}", flush=True)
            CHOSEN.write_text(lines_of(chosen))


def lines_of(chosen: dict[str, Any]) -> str:
    """Return JSON with a line for each randomizer."""
    found = []
    for row, mine in chosen.items():
        inside = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in mine.items()]
        found.append(f" {json.dumps(row)}: {{\n" + ",\n".join(inside) + "\n }")
    return "{\n" + ",\n".join(found) + "\n}\n"


def choices(name: str, row: Row, chosen: dict[str, Any]) -> dict[str, Choice]:
    """Return with what a randomizer trains: in the row's settings, and in the best it had."""
    mine = chosen[row.name][name]
    return {kind: Choice(mine[kind]["settings"], mine[kind]["length"]) for kind in ("same", "free")}


def described(choice: Choice, training: Training, found: list[Row]) -> dict[str, Any]:
    """Return all that a run depends on, but its seed."""
    settings = next(one for one in found if one.name == choice.settings)
    return {
        "settings": choice.settings,
        "axes": settings.axes,
        "power": settings.power,
        "training": asdict(training),
    }


def trained(images: Images, training: Training, name: str) -> Run:
    """Train once by a randomizer."""
    return {"accuracy": train(images, training, ENTRIES[name].make(training.epsilon))}


def measure(source: Source, found: list[Row], names: list[str], seeds: int, runs: Runs) -> None:
    """Run each row with each randomizer on the test images."""
    chosen = json.loads(CHOSEN.read_text())
    for seed in range(1, seeds + 1):
        images = {row.name: source.images(row, "test", seed) for row in found}
        for row, name in itertools.product(found, names):
            for choice in choices(name, row, chosen).values():
                training = training_of(choice, name, row, found)
                one = {**described(choice, training, found), "seed": seed}
                runs.make(one, partial(trained, images[choice.settings], training, name))


def summary(runs: list[Run], found: list[Row]) -> list[Run]:
    """Return mean and spread of each randomizer at each epsilon, in both settings."""
    made, chosen = [], json.loads(CHOSEN.read_text())
    for name, row, kind in itertools.product(ENTRIES, found, ("same", "free")):
        choice = choices(name, row, chosen)[kind]
        wanted = described(choice, training_of(choice, name, row, found), found)
        mine = like(runs, **wanted)
        if mine:
            made.append(
                {
                    "randomizer": name,
                    "trusts": ENTRIES[name].trusts,
                    "epsilon_total": row.training.epsilon,
                    "kind": kind,
                    **asdict(choice),
                    **spread(mine, None),
                }
            )
    return made


def main(
    data: Annotated[Path | None, typer.Argument(exists=True, help="MNIST's npz.")] = None,
    cache: options.Cache = None,
    seeds: options.Seeds = 5,
    only: options.Only = None,
    is_choosing: Annotated[
        bool, typer.Option("--choose", help="Choose settings on validation instead.")
    ] = False,
    picture: Annotated[Path | None, typer.Option("--plot", help="PNG to draw.")] = None,
    headline: Annotated[Path | None, typer.Option(help="The README's PNG to draw.")] = None,
    output: options.Output = options.RESULTS / "rivals.json",
) -> None:
    """Train each row with each randomizer and seed, and draw what came out."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if set(only or ()) - set(ENTRIES):
        raise typer.BadParameter(f"--only must be among {', '.join(ENTRIES)}")
    names = [name for name in ENTRIES if not only or name in only]
    found = [row for row in rows("mnist") if row.clients == 1000 and row.alpha is None]
    runs = Runs(output, lambda made: summary(made, found))
    if data is not None:
        source = Source(data, cache)
        if is_choosing:
            choose(source, found, names, seeds)
            return
        measure(source, found, names, seeds, runs)
    runs.show()
    lines = summary(runs.made, found)
    if picture is not None:
        labels = {name: f"{one.title} ({one.trusts})" for name, one in ENTRIES.items()}
        plot(lines, labels, picture)
    if headline is not None:
        totals, shuffled = (json.loads(path.read_text())["summary"] for path in (TOTALS, SHUFFLED))
        plot_headline(totals, lines, shuffled, headline)


if __name__ == "__main__":
    typer.run(main)

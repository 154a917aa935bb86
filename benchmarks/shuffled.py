"""Accuracy of trainings whose reports are shuffled, by their central epsilon at delta 1e-6.

The linear layers of ``totals.py``; each client is asked once. The package chooses local epsilon and
K for the wanted central epsilon and the reports of a round. Of each row there are

- ``sealed``, with that option: clients behind their gate, with policy and ledger, seal their
  reports. The server mixes them, and an analyzer in this process opens them and states the central
  epsilon of what arrived. 10,000 clients take minutes.
- ``shuffled``: the same mechanism draws reports of the same law, without messages, gate and seal.
- ``central``: central DP by Flower's own strategy, with the same clients, rounds, delta and
  relation (one client replaced). Its server sees every update and adds the noise.

Settings, also the rival's, were chosen with ``--evaluate-on validation`` (a tenth of the training
images, which clients then do not have). A run is written when it ends, and runs that are there are
not repeated.

    python benchmarks/shuffled.py mnist.npz --cache mnist-strokes.npz
    python benchmarks/shuffled.py mnist.npz --cache mnist-strokes.npz --sealed --seeds 1
    python benchmarks/shuffled.py cifar10-features.npz
"""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import _options as options
import totals
import typer
from _asked_once import CLASSES, Images, Training, run
from _rivals import Central, Codewords, train
from _runs import Run, Runs, like, reached, spread

from flower_ldp.accounting.shuffled import ShuffledReports, favoured_part
from flower_ldp.accounting.shuffled_rounds import codeword_for
from flower_ldp.mechanisms import Codeword
from flower_ldp.shuffle import ReportAnalyzer
from flower_ldp.strategies import CodewordStrategy, FixedLength

SETTINGS = Path(__file__).resolve().parent / "configs" / "shuffled.json"
DELTA = 1e-6
KINDS = ("shuffled", "sealed", "central")


@dataclass(frozen=True)
class Row:
    """A population at a wanted central epsilon; ``goal`` is a test accuracy in percent.

    ``shuffled`` and ``beside`` (central DP) have the axes and power of features, and the fields of
    a training; the rounds are the same.
    """

    name: str
    clients: int
    central: float
    goal: float
    shuffled: dict[str, Any]
    beside: dict[str, Any]

    def of(self, kind: str, changes: list[str] | None) -> totals.Row:
        """Return features and training of a kind, whose epsilon is the central one."""
        found = {"rounds": self.shuffled["rounds"]}
        found |= self.beside if kind == "central" else self.shuffled
        axes, power = found.pop("axes"), found.pop("power")
        training = options.changed(Training("codeword", self.central, **found), changes)
        return totals.Row(self.name, self.clients, None, axes, power, training)


def mechanism_of(row: totals.Row) -> Codeword:
    """Return the package's choice for the wanted central epsilon and a round's reports."""
    made = Codeword(1.0, blocks=CLASSES)
    order = made.plan(CLASSES * (row.axes + 1)).order
    reports = row.clients // row.training.rounds
    found = codeword_for(row.training.epsilon, reports, delta=DELTA, order=order)
    return replace(found, blocks=CLASSES)


def sealed(images: Images, training: Training, mechanism: Codeword) -> Run:
    """Train once with all parts."""
    each = len(images.parts) // training.rounds
    analyzer = ReportAnalyzer(each * 19 // 20, delta=DELTA)
    strategy = CodewordStrategy(
        mechanism,
        FixedLength(training.length, training.rounds, training.momentum, training.final_fraction),
        answers_per_client=1,
        fraction_train=min(1.0, (1 + 1e-9) / training.rounds),
        analyzer=analyzer,
    )
    policy = f"{{key: {analyzer.signer!r}, minimum: {analyzer.minimum}}}"
    facts = run(images, training, strategy, policy)
    cost = strategy.privacy_spent().central
    if cost is None:
        raise RuntimeError("the analyzer answered in no round")
    claim = {"central_epsilon": cost.epsilon, "reports": cost.reports}
    least = {"central_epsilon_minimum": cost.epsilon_minimum, "minimum": cost.minimum}
    return facts | claim | least


def drawn(images: Images, training: Training, mechanism: Codeword) -> Run:
    """Train once by the mechanism alone."""
    each = int(len(images.parts) * min(1.0, (1 + 1e-9) / training.rounds))
    law = favoured_part(mechanism, CLASSES * images.features.shape[1])
    return {
        "accuracy": train(images, training, Codewords(mechanism)),
        "central_epsilon": ShuffledReports((law,), each).epsilon(DELTA),
        "reports": each,
    }


def beside(images: Images, training: Training) -> Run:
    """Train once by central DP."""
    return {"accuracy": train(images, training, Central(training.epsilon, DELTA))}


def measured(source: totals.Source, row: totals.Row, mechanism: Codeword | None, one: Run) -> Run:
    """Train once, as a run's description says."""
    images = source.images(row, one["evaluated_on"], one["seed"])
    if mechanism is None:
        return beside(images, row.training)
    training = replace(row.training, epsilon=mechanism.epsilon)
    return (sealed if one["kind"] == "sealed" else drawn)(images, training, mechanism)


def summary(runs: list[Run], found: list[Row]) -> list[Run]:
    """Return mean and spread of each row's runs, of both kinds."""
    made = []
    for row, kind in itertools.product(found, KINDS):
        mine = like(runs, row=row.name, kind=kind)
        if mine:
            accuracy = spread(mine, None)
            one = {"row": row.name, "clients": row.clients, "kind": kind, "central": row.central}
            one |= {"rounds": mine[0]["training"]["rounds"], **accuracy}
            if kind != "central":
                one["central_epsilon"] = max(run["central_epsilon"] for run in mine)
                one |= {name: mine[0][name] for name in ("local_epsilon", "favoured", "codewords")}
                one |= reached(accuracy["accuracy_mean"], None, row.goal)
            made.append(one)
    return made


def main(
    data: Annotated[Path, typer.Argument(exists=True, help="MNIST's npz, or CIFAR-10's features.")],
    cache: options.Cache = None,
    seeds: options.Seeds = 5,
    only: options.Only = None,
    changes: options.Changes = None,
    evaluate_on: options.EvaluateOn = "test",
    is_sealed: Annotated[bool, typer.Option("--sealed", help="With all parts.")] = False,
    output: options.Output = options.RESULTS / "shuffled.json",
) -> None:
    """Train each row with each seed, and write means and spreads."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    source = totals.Source(data, cache)
    stored = json.loads(SETTINGS.read_text())
    known = {kind: [Row(**one) for one in stored[kind]] for kind in stored}
    runs = Runs(output, lambda made: summary(made, [*known["mnist"], *known["cifar"]]))
    kinds = ("sealed",) if is_sealed else ("shuffled", "central")
    for row, kind in itertools.product(known[source.kind], kinds):
        if only and row.name not in only:
            continue
        own = row.of(kind, changes)
        of: Run = {"axes": own.axes, "power": own.power, "training": asdict(own.training)}
        mechanism = None if kind == "central" else mechanism_of(own)
        if mechanism is not None:
            codes = mechanism.plan(CLASSES * (own.axes + 1)).codewords
            of |= {"local_epsilon": mechanism.epsilon, "favoured": mechanism.favoured}
            of["codewords"] = codes
        for seed in range(1, seeds + 1):
            one: Run = {"row": row.name, "kind": kind, "seed": seed, "evaluated_on": evaluate_on}
            runs.make(one | of, partial(measured, source, own, mechanism, one))
    runs.show()


if __name__ == "__main__":
    typer.run(main)

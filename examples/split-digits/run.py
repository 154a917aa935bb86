"""Run the app on this machine: in one process, in the simulation engine, or as SuperNodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP.parent), str(APP)]

from _parties import Engine, Parties, app_config  # noqa: E402
from _runner import data_source, stop_on_termination  # noqa: E402

#: Policies, ledgers and models stay here from run to run, as they would with parties of their own.
STATE = APP.parents[1] / "outputs" / "split_digits"
HOLDER = "labels"
HEAD = """# {side}: this party's word on what may be released. See docs/policy.md.
data_id: digits-{side}
ledger: ledger.sqlite
mode: {mode}
messages:
"""
FEATURES = """
  # The bottom is trained on the records, so both are conditional on it, and allowed by name.
  train.forward: &allowed
    "embedding_dp:conditional": {epsilon: 2000.0, unit: example}
    "codebook_embedding:conditional": {epsilon: 8.0, unit: example}
  evaluate.forward: *allowed
"""
LABELS = """
  # Each label is randomized once and kept. Another epsilon is another draw, and both count.
  train:
    kary_response: {epsilon: 8.0, unit: label}
"""
BUDGETS = {
    "example": "\n  example: {life: {epsilon: 100000.0}}",
    "label": "\n  label: {life: {epsilon: 8.0}}",
    # In a simulation parties obey the same policy, and what tells about a record tells its label.
    "both": "\n  example: &life {life: {epsilon: 100000.0}}\n  label: *life",
}


def _policy(side: str, mode: str) -> str:
    """Return the policy of a party, of the labels' holder, or of a simulation's both."""
    head = HEAD.format(side=side, mode=mode)
    if side == "both":
        return f"{head}{FEATURES}{LABELS}budgets:{BUDGETS['both']}\n"
    own, unit = (LABELS, "label") if side == HOLDER else (FEATURES, "example")
    return f"{head}{own}budgets:{BUDGETS[unit]}\n"


PARTIES = Parties(
    APP,
    {"left": {"side": "left"}, "right": {"side": "right"}},
    _policy,
    r"(epoch|party|labels|epsilon|no mechanism|finished)",
    HOLDER,
)


def main(
    engine: Annotated[Engine, typer.Option(help="How parties and server run.")] = Engine.PROCESS,
    data: Annotated[
        str, typer.Option(help="'digits', or the path of an npz file in MNIST's layout.")
    ] = "digits",
    output: Annotated[Path | None, typer.Option(help="JSON file for the result.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="KEY=VALUE of the app's configuration; repeatable."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where models, policies and ledgers stay; by default outputs/split_digits."
        ),
    ] = None,
) -> None:
    """Train on two halves of each image; print loss, accuracy and what a record has cost.

    A second run goes on: the same labels, the same bottoms, the same ledgers.

    Example: python examples/split-digits/run.py --engine nodes --set mode=bits --set epochs=2
    """
    stop_on_termination()
    config = app_config(APP, set_ or [])
    config["data"] = data_source(data)
    if output is not None:
        config["output"] = str(output.resolve())
    # Other data has other ledgers: one name for two sets of data would share their budgets.
    place = (STATE / Path(data).stem if folder is None else folder).resolve()
    place.mkdir(parents=True, exist_ok=True)
    config["checkpoint"] = config["checkpoint"] or str(place / f"top-{config['width']}.pt")
    if engine is Engine.PROCESS:
        from split_digits import client_app, server_app

        PARTIES.in_process(client_app.app, server_app.run, config, place)
    else:
        PARTIES.with_flower(config, place, nodes=engine is Engine.NODES)


if __name__ == "__main__":
    typer.run(main)

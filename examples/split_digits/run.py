"""Run the app on this machine: in one process, in the simulation engine, or as SuperNodes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

APP = Path(__file__).resolve().parent
sys.path[:0] = [str(APP.parent), str(APP)]

from _parties import Engine, Parties, app_config  # noqa: E402
from _runner import stop_on_termination  # noqa: E402

POLICY = """# {side}: this party's word on what may be released. See docs/policy.md.
data_id: digits-{side}
ledger: ledger.sqlite
mode: {mode}
messages:
  # The bottom is trained on the records, so both are conditional on it, and allowed by name.
  train.forward: &allowed
    "embedding_dp:conditional": {{epsilon: 2000.0, unit: example}}
    "codebook_embedding:conditional": {{epsilon: 8.0, unit: example}}
  evaluate.forward: *allowed
budgets:
  example:
    life: {{epsilon: 100000.0}}
"""
PARTIES = Parties(
    APP,
    {"left": {"side": "left"}, "right": {"side": "right"}},
    lambda side, mode: POLICY.format(side=side, mode=mode),
    r"(epoch|party|epsilon|no mechanism|finished)",
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
        Path | None, typer.Option(help="Where models, policies and ledgers stay; new if left out.")
    ] = None,
) -> None:
    """Train on two halves of each image; print loss, accuracy and what a record has cost.

    Example: python examples/split_digits/run.py --engine nodes --set mode=bits --set epochs=2
    """
    stop_on_termination()
    config = app_config(APP, set_ or [])
    config["data"] = data if data == "digits" else str(Path(data).resolve(strict=True))
    if output is not None:
        config["output"] = str(output.resolve())
    with tempfile.TemporaryDirectory(prefix="split-") as scratch:
        place = Path(scratch) if folder is None else folder.resolve()
        place.mkdir(parents=True, exist_ok=True)
        config["checkpoint"] = config["checkpoint"] or str(place / "top.pt")
        if engine is Engine.PROCESS:
            from split_digits import client_app, server_app

            PARTIES.in_process(client_app.app, server_app.run, config, place)
        else:
            PARTIES.with_flower(config, place, nodes=engine is Engine.NODES)


if __name__ == "__main__":
    typer.run(main)

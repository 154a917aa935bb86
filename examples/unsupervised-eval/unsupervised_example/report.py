"""What the server leaves behind: what it was told, round by round, and what that cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Result
from rich.console import Console

from flower_ldp.privacy import Unit
from flower_ldp.safe_files import replacing
from flower_ldp.strategies.rounds import SpendingReport


def publish(result: Result, config: Mapping[str, Any], spent: SpendingReport, folder: Path) -> None:
    """Write ``<protection>.json``; print what the clients have spent.

    Parameters
    ----------
    result : Result
        What ``strategy.start`` returned.
    config : mapping
        The run's configuration, kept with the history.
    spent : SpendingReport
        What ``strategy.privacy_spent()`` says, training and evaluation together.
    folder : Path
        Made if it does not exist.
    """
    rounds = [_row(result, number) for number in sorted(result.evaluate_metrics_serverapp)]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{config['protection']}.json"
    history = {
        "config": dict(config),
        "epsilon-total": spent.units[Unit.CLIENT].epsilon,
        "rounds": rounds,
    }
    write_whole(path, json.dumps(history, indent=1) + "\n")
    Console(width=100).print(f"Spent by a client, training and evaluation together: {spent}")
    print(f"wrote {path.resolve()}", flush=True)


def _row(result: Result, number: int) -> dict[str, Any]:
    row: dict[str, Any] = {"round": number, **result.evaluate_metrics_serverapp[number]}
    train = result.train_metrics_clientapp.get(number, {})
    kept = ("accepted", "rejected", "bytes-up", "epsilon-round")
    row |= {f"train-{name}": train[name] for name in kept if name in train}
    return row | {**result.evaluate_metrics_clientapp.get(number, {})}


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, never a part."""
    with replacing(path) as file:
        file.write(text.encode())

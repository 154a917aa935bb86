"""A federation of three clients in this process, and what the page says of a cell."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.simulation import run_in_process
from tests.fixtures import record

PAGE = Path(__file__).parents[3] / "docs" / "combines.md"
Arrays = dict[str, NDArray[Any]]
MODEL: Arrays = {"w": np.zeros((10, 6), np.float32), "b": np.zeros(6, np.float32)}
CLIENTS = 3


def gate() -> LdpMod:
    return LdpMod(train=SignDSRelease())


def app_of(
    does: Callable[[Arrays, Message], Arrays],
    mods: Sequence[Mod],
    called: list[Message] | None = None,
) -> ClientApp:
    """Return an app that trains a model so, and notes its messages."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        if called is not None:
            called.append(message)
        (sent,) = message.content.array_records.values()
        moved = does({name: array.numpy() for name, array in sent.items()}, message)
        content: dict[str, Any] = {
            "arrays": ArrayRecord({name: Array(np.asarray(a)) for name, a in moved.items()}),
            "metrics": MetricRecord({"num-examples": 5, "loss": 0.5}),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


def one_step(model: Arrays, _: Message) -> Arrays:
    """Move every weight, some up and some down."""
    return {
        name: (array + 1 - 2 * (array.size % 4)).astype(array.dtype)
        for name, array in model.items()
    }


def run(
    strategy: Strategy,
    app: ClientApp,
    model: Arrays | None = None,
    config: dict[str, Any] | None = None,
) -> Result:
    """Return the result of one round."""
    server, found = ServerApp(), []

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        arrays = record(MODEL if model is None else model)
        given = ConfigRecord(config or {})
        found.append(strategy.start(grid, arrays, num_rounds=1, train_config=given))

    run_in_process(server, app, CLIENTS)
    return found[0]


def has_moved(result: Result, model: Arrays | None = None) -> bool:
    before = MODEL if model is None else model
    return any((result.arrays[name].numpy() != array).any() for name, array in before.items())


@cache
def told(heading: str) -> dict[str, str]:
    """Return what a table of the page says, by the first names in its rows: the verdicts."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| \*\*(.+?)\*\*", section, flags=re.MULTILINE)
    return {name: verdict for names, verdict in rows for name in re.findall(r"`(.+?)`", names)}


def first_error(caplog: pytest.LogCaptureFixture) -> str:
    """Return what the package's first error says."""
    errors = [one for one in caplog.records if one.levelno == logging.ERROR]
    return next(one.getMessage() for one in errors if one.name == "flower_ldp")

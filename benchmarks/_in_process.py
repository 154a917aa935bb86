"""Trainings of Flower's apps in this process, and what the clients' own ledger then holds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result, Strategy

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.privacy import PrivacySpent, Unit
from flower_ldp.simulation import run_in_process


def trained(
    strategy: Strategy,
    app: ClientApp,
    first: ArrayRecord,
    rounds: int,
    clients: int,
    *,
    policy: str = "",
    unit: Unit = Unit.CLIENT,
    **how: Any,
) -> tuple[Result, list[PrivacySpent]]:
    """Train with a strategy.

    Parameters
    ----------
    policy : str
        Text of the one that the clients obey, whose ledger is ``ledger.sqlite``; empty for none.
    unit : Unit
        Whose totals are returned.
    how : Any
        Of ``run_in_process``.

    Returns
    -------
    result : Result
        With the last model, and the rounds' metrics.
    spent : list of PrivacySpent
        Of each account.
    """
    server, end = ServerApp(), list[Result]()

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        end.append(strategy.start(grid, first, num_rounds=rounds))

    with tempfile.TemporaryDirectory() as folder:
        path, node = Path(folder, "policy.yaml"), {}
        if policy:
            path.write_text(policy, encoding="utf-8")
            node["ldp-policy"] = str(path)
        run_in_process(server, app, clients, node_config=node, progress=False, **how)
        return end[0], totals(path.with_name("ledger.sqlite"), unit) if policy else []


def last_model(result: Result) -> ArrayRecord:
    """Return the model that a training ended with."""
    if result.arrays is None:
        raise RuntimeError("the run has no model")
    return result.arrays


def totals(path: Path, unit: Unit = Unit.CLIENT) -> list[PrivacySpent]:
    """Return what each account of a ledger has spent."""
    with Ledger.open(path, read_only=True) as ledger:
        return [ledger.totals(one)[unit].spent(unit) for one in ledger.data_ids()]

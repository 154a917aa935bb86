"""Where an example's app runs: in this process, or in Flower's simulation engine.

``process``     everything in this process: no engine, the same messages and the same gate
``simulation``  Flower's simulation engine, which a private SuperLink starts (``_runner.py``);
                it needs the extra ``simulation``

Not part of the package.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol

import typer
from _runner import local_superlink, submit

from flower_ldp.simulation import load_folder, read_settings, run_in_process

# Clients train beside each other, on a core each. And a worker is a copy of this process, which
# threads of numerical libraries do not survive. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
#: More cores than that gain little: the server works while clients wait.
_MOST_WORKERS = 8


class Engine(str, Enum):
    """Where clients and server run."""

    PROCESS = "process"
    SIMULATION = "simulation"


EngineOption = Annotated[
    Engine,
    typer.Option(
        help="Everything on this machine's processes, without Ray; or Flower's simulation engine, "
        'as flwr run has it (pip install "flower-ldp[simulation]").'
    ),
]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes for the clients of --engine process; by default one for each core."
    ),
]


class Submit(Protocol):
    """Runs an app to its end."""

    def __call__(
        self, app: Path, clients: int, config: Mapping[str, str], *, verbose: bool = False
    ) -> None:
        """Run an app's folder with so many clients; values of the configuration are TOML."""


@contextlib.contextmanager
def engine_for(
    engine: Engine, home: Path, policy: Path, workers: int | None = None
) -> Iterator[Submit]:
    """Yield what runs apps whose clients obey a policy.

    Parameters
    ----------
    engine : Engine
        Where.
    home : Path
        Folder for a SuperLink's own files.
    policy : Path
        A simulation's.
    workers : int, optional
        How many clients work at a time where there is no engine; with 1, in this very process.
    """
    if engine is Engine.PROCESS:
        with _obeying(policy):
            yield _Here(workers or min(os.cpu_count() or 1, _MOST_WORKERS))
    else:
        with local_superlink(home, policy) as environment:
            yield partial(submit, environment=environment)


@contextlib.contextmanager
def _obeying(policy: Path) -> Iterator[None]:
    """Name the policy for the clients, as the SuperLink's environment would."""
    before = os.environ.get("FLOWER_LDP_POLICY")
    os.environ["FLOWER_LDP_POLICY"] = str(policy.resolve(strict=True))
    try:
        yield
    finally:
        del os.environ["FLOWER_LDP_POLICY"]
        if before is not None:
            os.environ["FLOWER_LDP_POLICY"] = before


@dataclass(frozen=True)
class _Here:
    """Runs apps without an engine."""

    workers: int

    def __call__(
        self, app: Path, clients: int, config: Mapping[str, str], *, verbose: bool = False
    ) -> None:
        # Flower's log of every configuration key and metric is for --verbose: apps print rounds.
        logging.getLogger("flwr").setLevel(logging.INFO if verbose else logging.ERROR)
        settings = read_settings([f"{name}={value}" for name, value in config.items()])
        loaded = load_folder(app, settings)
        run_in_process(
            loaded.server,
            loaded.client,
            clients,
            run_config=loaded.run_config,
            workers=min(self.workers, clients),
        )

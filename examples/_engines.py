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
from enum import Enum
from pathlib import Path
from typing import Annotated, Protocol

import typer
from _runner import local_superlink, submit

from flower_ldp.simulation import load_folder, read_settings, run_in_process


class Engine(str, Enum):
    """Where clients and server run."""

    PROCESS = "process"
    SIMULATION = "simulation"


EngineOption = Annotated[
    Engine,
    typer.Option(
        help="Everything in this process, in seconds; or Flower's simulation engine, as flwr run "
        'would (pip install "flower-ldp[simulation]").'
    ),
]


class Submit(Protocol):
    """Runs an app to its end."""

    def __call__(
        self, app: Path, clients: int, config: Mapping[str, str], *, verbose: bool = False
    ) -> None:
        """Run an app's folder with so many clients; values of the configuration are TOML."""


@contextlib.contextmanager
def engine_for(engine: Engine, home: Path, policy: Path) -> Iterator[Submit]:
    """Yield what runs apps whose clients obey a policy.

    Parameters
    ----------
    engine : Engine
        Where.
    home : Path
        Folder for a SuperLink's own files.
    policy : Path
        A simulation's.
    """
    if engine is Engine.PROCESS:
        with _obeying(policy):
            yield _run_here
        return
    with local_superlink(home, policy) as environment:

        def run(
            app: Path, clients: int, config: Mapping[str, str], *, verbose: bool = False
        ) -> None:
            submit(app, environment, clients, config, verbose=verbose)

        yield run


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


def _run_here(app: Path, clients: int, config: Mapping[str, str], *, verbose: bool = False) -> None:
    # Flower's log of every configuration key and metric is for --verbose: apps print their rounds.
    logging.getLogger("flwr").setLevel(logging.INFO if verbose else logging.ERROR)
    settings = read_settings([f"{name}={value}" for name, value in config.items()])
    loaded = load_folder(app, settings)
    run_in_process(loaded.server, loaded.client, clients, run_config=loaded.run_config)

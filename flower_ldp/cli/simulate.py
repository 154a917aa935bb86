"""``flower-ldp simulate``: an app's folder, run in this process.

The rest of the package is imported inside the function: Flower takes a second, and who asks for
help does not need it.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import JsonOption, epilog, reporting

#: The end of the help text.
EPILOG = epilog(
    "flower-ldp simulate examples/signds --nodes 50 --run-config num-server-rounds=3 "
    "--policy configs/simulation_policy.yaml"
)
#: What a shell expects of a command that Ctrl-C ended.
STOPPED = 130


class Contexts(str, Enum):
    """Where a node's state is between two messages."""

    MEMORY = "memory"
    DISK = "disk"
    DROP = "drop"


def simulate(
    app_dir: Annotated[
        Path,
        typer.Argument(
            metavar="APP_DIR", exists=True, file_okay=False, help="With the app's pyproject.toml."
        ),
    ],
    superlink: Annotated[
        str | None,
        typer.Argument(
            metavar="[SUPERLINK]",
            help="Name of the connection that sets the federation, as for flwr run.",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Simulated nodes; by default as flwr run has it.")
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config",
            "-c",
            help="KEY=VALUE of the app's configuration, the value as in TOML, or a .toml file.",
        ),
    ] = None,
    federation_config: Annotated[
        list[str] | None,
        typer.Option(
            help="As of flwr run: num-supernodes=N; what is about its engine is not used."
        ),
    ] = None,
    node_config: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE of every node's configuration.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="The clients' policy, in place of the variable FLOWER_LDP_POLICY."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes for the clients; with 1, all is in this one.")
    ] = 1,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict/--fast", help="Whether messages go through Flower's bytes, as over a network."
        ),
    ] = True,
    contexts: Annotated[
        Contexts, typer.Option(help="Where a node's state is between two messages.")
    ] = Contexts.MEMORY,
    faults: Annotated[
        list[str] | None,
        typer.Option(
            help="What goes wrong, KEY=VALUE: probabilities away, slow, lost and leaving; "
            "slow-seconds; seed."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a Flower app in this process: no SuperLink, no Ray, no copy of the app.

    The folder, its configuration and the size of the federation are read as flwr run reads them,
    and no file of Flower's is written. Output of the app is printed as it comes. With one worker
    a breakpoint in the app works, and an exception has its own traceback.

    Ctrl-C ends the run at once with exit code 130; what the app has written by then is kept.
    """
    try:
        from flower_ldp.cli.simulate_run import Asked, run

        asked = Asked(
            folder=app_dir,
            connection=superlink,
            nodes=nodes,
            run_config=tuple(run_config or ()),
            federation_config=tuple(federation_config or ()),
            node_config=tuple(node_config or ()),
            policy=policy,
            workers=workers,
            strict=strict,
            contexts=contexts.value,
            faults=tuple(faults or ()),
        )
        with reporting(as_json) as report:
            run(asked, report, as_json=as_json)
    except KeyboardInterrupt:
        typer.echo("stopped by Ctrl-C; what the app has written is kept", err=True)
        raise typer.Exit(STOPPED) from None

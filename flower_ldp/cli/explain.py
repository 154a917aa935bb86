"""``flower-ldp explain``: what a setting of other software gives, by the exact curve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting

_LOCAL = (
    "flower-ldp explain localdp --clipping-norm 1 --sensitivity 1e-4 --epsilon 10 --delta 1e-5",
)
_CENTRAL = (
    "flower-ldp explain central --noise-multiplier 1 --sampled-clients 20 --delta 1e-5 --rounds 50",
)
_MINDSPORE = ("flower-ldp explain mindspore dp_encrypt.yaml --rounds 100",)

app = typer.Typer(
    help="Say what a present setting of other software gives: the true epsilon of the noise that "
    "it adds.",
    epilog=epilog(*_LOCAL, *_CENTRAL, *_MINDSPORE),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("localdp", cls=Command, epilog=epilog(*_LOCAL))
def localdp(
    clipping_norm: Annotated[float, typer.Option(help="As to LocalDpMod, in [1e-30, 1e30].")],
    sensitivity: Annotated[float, typer.Option(help="As to LocalDpMod: 0, or in [1e-30, 1e30].")],
    epsilon: Annotated[float, typer.Option(help="As to LocalDpMod, in [1e-30, 1e30].")],
    delta: Annotated[float, typer.Option(help="As given to LocalDpMod, in [1e-18, 1).")],
    rounds: Annotated[int, typer.Option(help="Messages of one client, in all.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say what Flower's LocalDpMod gives: its noise, and the epsilon that this noise has.

    LocalDpMod makes its noise from the sensitivity that it is told, which does not follow from the
    clip. Two clipped updates may be 2 clipping norms apart.
    """
    from flower_ldp.cli.explain_answers import LocalDp, local_dp

    options = LocalDp(clipping_norm, sensitivity, epsilon, delta, rounds)
    with reporting(as_json) as report:
        local_dp(options, report)


@app.command("central", cls=Command, epilog=epilog(*_CENTRAL))
def central(
    noise_multiplier: Annotated[float, typer.Option(help="As to the wrapper, in [1e-30, 1e30].")],
    sampled_clients: Annotated[int, typer.Option(help="num_sampled_clients of the wrapper.")],
    delta: Annotated[float, typer.Option(help="Of all rounds together, in [1e-18, 1).")],
    rounds: Annotated[int, typer.Option(help="Rounds that the client takes part in.")] = 1,
    clients: Annotated[
        int | None, typer.Option(help="Clients that there are; without it those of a round.")
    ] = None,
    largest_share: Annotated[
        float | None,
        typer.Option(
            help="Share of a round's examples that the largest client has, in (0, 1]; without it "
            "all have as many. FedAvg weighs by examples."
        ),
    ] = None,
    adaptive: Annotated[
        bool, typer.Option("--adaptive", help="The wrapper is one with adaptive clipping.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what Flower's central wrappers give: DifferentialPrivacyServerSideFixedClipping etc.

    They protect the model that is handed out, not what a client sends: the server sees each update.
    Sampling amplifies nothing here, since the server sees who takes part.
    """
    from flower_ldp.cli.explain_answers import Central
    from flower_ldp.cli.explain_answers import central as answer

    options = Central(
        noise_multiplier, sampled_clients, delta, rounds, clients, largest_share, adaptive
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("mindspore", cls=Command, epilog=epilog(*_MINDSPORE))
def mindspore(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with the encrypt section.")
    ],
    rounds: Annotated[int, typer.Option(help="Rounds of one client, in all.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say what an encrypt section gives when MindSpore Federated runs it.

    What this package makes of the same file is told by config check.
    """
    from flower_ldp.cli.costs import check_count
    from flower_ldp.cli.explain_mindspore import answer

    check_count("--rounds", rounds)
    with reporting(as_json) as report:
        report.facts["file"] = str(file)
        answer(file, rounds, report)

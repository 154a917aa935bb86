"""``flower-ldp plan``: what a training run costs and what it can learn, before it starts.

A group with a command for each mechanism. ``plan --params ...`` without a mechanism's name is
``plan signds --params ...``, so that another mechanism adds a command with options of its own
and changes nothing here.
"""

from __future__ import annotations

from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting


class _SignDSByDefault(TyperGroup):
    """A group whose command ``signds`` is meant where options come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["signds", *args]
        return super().parse_args(ctx, args)


_EXAMPLES = (
    "flower-ldp plan --params 61706 --epsilon 8 --rounds 80 --clients 100",
    "flower-ldp plan --params 61706 --total-epsilon 8 --rounds 3 --clients 100",
)

app = typer.Typer(
    cls=_SignDSByDefault,
    help="Say what a run costs and what it can learn, before it starts. Without a "
    "mechanism's name the mechanism is signds: see 'flower-ldp plan signds --help'.",
    epilog=epilog(*_EXAMPLES),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("signds", cls=Command, epilog=epilog(*_EXAMPLES))
def signds(
    params: Annotated[int | None, typer.Option(help="Number of weights of the model, d.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Of the selection, per round and client, in (0, 100].")
    ] = None,
    total_epsilon: Annotated[
        float | None,
        typer.Option(
            help="What all rounds may cost a client. Without --epsilon: ask which epsilon a "
            "round may have. With it: ask whether the rounds fit."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Clients that are available.")] = None,
    participation: Annotated[
        float, typer.Option(help="Fraction of the clients that a round asks, in (0, 1].")
    ] = 1.0,
    k: Annotated[
        float, typer.Option(help="Fraction of weights in the top set, in (0, 0.25].")
    ] = 0.2,
    threshold_ratio: Annotated[
        float, typer.Option(help="Least expected fraction of true top weights, in [0.5, 1].")
    ] = 0.6,
    dim_out: Annotated[
        int, typer.Option(help="Weights in a report, up to 4096; 0: as many as the ratio allows.")
    ] = 0,
    magnitude_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of the magnitude bit (MagRR), per round and client, in (0, 100]; without it "
            "no bit is asked for."
        ),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Of the bound by privacy loss distributions, in (0, 1).")
    ] = 1e-5,
    as_json: JsonOption = False,
) -> None:
    """Plan a SignDS run: sizes, bytes, epsilon per round and in total, signal to noise.

    All costs are per client, replace-one, and a client is taken to be asked in every round:
    the server sees who takes part, so asking fewer clients a round amplifies nothing.
    """
    from flower_ldp.cli.signds_plan import Wishes, answer

    wishes = Wishes(
        params=params,
        epsilon=epsilon,
        total_epsilon=total_epsilon,
        rounds=rounds,
        clients=clients,
        participation=participation,
        k=k,
        threshold_ratio=threshold_ratio,
        dim_out=dim_out,
        magnitude_epsilon=magnitude_epsilon,
        delta=delta,
    )
    with reporting(as_json) as report:
        answer(wishes, report)

"""``flower-ldp plan``: what a training run costs and what it can learn, before it starts.

A group with a command for each mechanism, and ``advice``, which chooses one. Without a command's
name, ``plan --params ...`` is ``plan advice`` where a total is given with clients and weights, and
neither rounds nor an epsilon; anything else is ``plan signds``.
"""

from __future__ import annotations

from typing import Any

import click
from typer.core import TyperGroup

from flower_ldp.cli.output import command, group
from flower_ldp.cli.plan_noise import LaplaceNoise, RandomizedLabels
from flower_ldp.cli.plan_run import AdviceAsked, PrivateTraining
from flower_ldp.cli.plan_signds import SignDSRun
from flower_ldp.cli.plan_updates import CodewordRun, GaussianRun

#: Options with which advice is asked for, and those that it takes besides.
_ASKS = frozenset({"--params", "--clients", "--total-epsilon"})
_TAKES = _ASKS | {"--answers-per-client", "--mechanism", "--json"}


class _ByOptions(TyperGroup):
    """A group whose command ``advice`` or ``signds`` is meant where options come first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            named = {word.partition("=")[0] for word in args if word.startswith("--")}
            advice = "--answers-per-client" in named or _ASKS <= named <= _TAKES
            args = ["advice" if advice else "signds", *args]
        return super().parse_args(ctx, args)


#: What each command is made of, and an example.
_COMMANDS: dict[str, tuple[type[Any], str]] = {
    "advice": (AdviceAsked, "--clients 1000 --params 2010 --total-epsilon 8"),
    "signds": (SignDSRun, "--params 61706 --epsilon 8 --rounds 80 --clients 100"),
    "codeword": (CodewordRun, "codeword --epsilon 8 --params 2010 --clients 25"),
    "laplace": (LaplaceNoise, "laplace --noise-below 1e-5 --probability 0.9"),
    "labels": (RandomizedLabels, "labels --epsilon 1 --classes 10 --labels 60000"),
    "gaussian": (GaussianRun, "gaussian --epsilon 1 --delta 1e-6 --rounds 50"),
    "dpsgd": (
        PrivateTraining,
        "dpsgd --epsilon 1 --delta 1e-5 --rounds 20 --steps 5 --rate 0.05 --examples 1200",
    ),
}

app = group(
    "Say what a run costs and what it can learn, before it starts. With --clients, --params "
    "and --total-epsilon alone it says how to train: see 'flower-ldp plan advice --help'. "
    "Otherwise, without a mechanism's name, the mechanism is signds: see 'flower-ldp plan signds "
    "--help'.",
    *(f"flower-ldp plan {example}" for _, example in _COMMANDS.values()),
    cls=_ByOptions,
)
for name, (options, example) in _COMMANDS.items():
    command(app, name, f"flower-ldp plan {example}")(options)

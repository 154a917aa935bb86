"""``flower-ldp plan``: what a training run costs and what it can learn, before it starts.

A group with a command for each mechanism, and ``advice``, which chooses one. Without a command's
name, ``plan --params ...`` is ``plan advice`` where a total is given with clients and weights, and
neither rounds nor an epsilon; anything else is ``plan signds``. Another mechanism adds a command
with options of its own and changes nothing here.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting


class Mechanism(str, Enum):
    """What ``plan advice --mechanism`` takes."""

    signds = "signds"
    codeword = "codeword"


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


_EXAMPLES = (
    "flower-ldp plan --params 61706 --epsilon 8 --rounds 80 --clients 100",
    "flower-ldp plan --params 61706 --total-epsilon 8 --rounds 3 --clients 100",
)
_ADVICE = ("flower-ldp plan --clients 1000 --params 2010 --total-epsilon 8",)
_CODEWORD = ("flower-ldp plan codeword --epsilon 8 --params 2010 --clients 25",)
_LAPLACE = (
    "flower-ldp plan laplace --noise-below 1e-5 --probability 0.9",
    "flower-ldp plan laplace --epsilon 4 --classes 10 --rounds 5 --clients 1000",
)
_LABELS = ("flower-ldp plan labels --epsilon 1 --classes 10 --labels 60000",)
_GAUSSIAN = ("flower-ldp plan gaussian --epsilon 1 --delta 1e-6 --rounds 50",)
_DPSGD = (
    "flower-ldp plan dpsgd --epsilon 1 --delta 1e-5 --rounds 20 --steps 5 --rate 0.05 "
    "--examples 1200",
)

app = typer.Typer(
    cls=_ByOptions,
    help="Say what a run costs and what it can learn, before it starts. With --clients, --params "
    "and --total-epsilon alone it says how to train: see 'flower-ldp plan advice --help'. "
    "Otherwise, without a mechanism's name, the mechanism is signds: see 'flower-ldp plan signds "
    "--help'.",
    epilog=epilog(*_ADVICE, *_EXAMPLES, *_CODEWORD, _LAPLACE[0], *_LABELS, *_GAUSSIAN, *_DPSGD),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("advice", cls=Command, epilog=epilog(*_ADVICE))
def advice(
    clients: Annotated[int, typer.Option(help="Clients that there are.")],
    params: Annotated[int, typer.Option(help="Number of weights of the model, d.")],
    total_epsilon: Annotated[
        float, typer.Option(help="What a client may spend in the whole run, pure.")
    ],
    answers_per_client: Annotated[
        int | None,
        typer.Option(help="How often a client is asked; without it what is worth most."),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="Rounds; without it 40, or as many as have 5 reports each."),
    ] = None,
    mechanism: Annotated[
        Mechanism | None, typer.Option(help="Without it the one whose answers are worth more.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say how to train with a total for each client, what comes of it, and what would help.

    Each client is asked once, or a few times, over the whole run. The verdict is that of clients
    that agree: those that differ learn less.
    """
    from flower_ldp.cli.advice_plan import PlanOptions, answer

    options = PlanOptions(
        clients=clients,
        params=params,
        total_epsilon=total_epsilon,
        answers_per_client=answers_per_client,
        rounds=rounds,
        mechanism=None if mechanism is None else mechanism.value,
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("signds", cls=Command, epilog=epilog(*_EXAMPLES))
def signds(
    params: Annotated[
        int | None,
        typer.Option(help="Number of weights that are trained, d; in a subspace, its dimensions."),
    ] = None,
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
        float | None,
        typer.Option(
            help="Fraction of weights in the top set, in (0, 0.25]; without it this and the "
            "weights in a report are chosen by what a report is worth."
        ),
    ] = None,
    threshold_ratio: Annotated[
        float,
        typer.Option(help="With --k: least expected fraction of true top weights, in [0.5, 1]."),
    ] = 0.6,
    dim_out: Annotated[
        int,
        typer.Option(
            help="Weights in a report, up to 4096; 0: with --k, as many as the ratio allows."
        ),
    ] = 0,
    magnitude_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of the magnitude bit (MagRR), per round and client, in (0, 100]; without it "
            "no bit is asked for."
        ),
    ] = None,
    health_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Of the health bit, per round and client, in [0.01, 100]; without it no bit is "
            "asked for."
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
    from flower_ldp.cli.signds_plan import PlanOptions, answer

    options = PlanOptions(
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
        health_epsilon=health_epsilon,
        delta=delta,
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("codeword", cls=Command, epilog=epilog(*_CODEWORD))
def codeword(
    epsilon: Annotated[float, typer.Option(help="Per round and client, in (0, 100].")],
    params: Annotated[
        int,
        typer.Option(help="Number of weights that are trained, d; in a subspace, its dimensions."),
    ],
    favoured: Annotated[
        int, typer.Option(help="Codewords that are favoured; 0 chooses what is worth most.")
    ] = 0,
    rotations: Annotated[
        int, typer.Option(help="Codes that a round's reports are spread over, in [1, 4096].")
    ] = 64,
    blocks: Annotated[
        int, typer.Option(help="Equal parts of the update with rows of their own, in [1, 65536].")
    ] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds, each of which asks the client.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Clients of a round.")] = None,
    delta: Annotated[
        float, typer.Option(help="Of the bound by privacy loss distributions, in (0, 1).")
    ] = 1e-5,
    as_json: JsonOption = False,
) -> None:
    """Plan codewords: the code's size, bytes, what a report is worth, and what it costs.

    A report's efficiency is the number of weights whose noise it outweighs: N reports of clients
    that agree have about the cosine sqrt(x / (1 + x)) with their direction, x being N times the
    efficiency over the weights. Beside it stands SignDS's, at the same epsilon.
    """
    from flower_ldp.cli.codeword_plan import PlanOptions, answer

    options = PlanOptions(
        epsilon=epsilon,
        params=params,
        favoured=favoured,
        rotations=rotations,
        blocks=blocks,
        rounds=rounds,
        clients=clients,
        delta=delta,
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("laplace", cls=Command, epilog=epilog(*_LAPLACE))
def laplace(
    epsilon: Annotated[
        float | None, typer.Option(help="True epsilon, per row and client, in [1e-6, 1e6].")
    ] = None,
    noise_below: Annotated[
        float | None,
        typer.Option(help="In place of it: bound on the noise, kept with --probability."),
    ] = None,
    published_epsilon: Annotated[
        float | None,
        typer.Option(help="In place of it: one over the noise's scale, as texts publish it."),
    ] = None,
    probability: Annotated[
        float, typer.Option(help="How often noise is below the bound, in (0, 1).")
    ] = 0.9,
    classes: Annotated[
        int | None, typer.Option(help="Probabilities in a row; for the bytes.")
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows that a client sends in a round.")] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds, each of which asks the client.")] = 1,
    clients: Annotated[int | None, typer.Option(help="Clients of a round.")] = None,
    delta: Annotated[
        float, typer.Option(help="Of the bound by privacy loss distributions, in (0, 1).")
    ] = 1e-5,
    as_json: JsonOption = False,
) -> None:
    """Plan Laplace noise on rows of probabilities: which noise gives which epsilon, and back.

    A row may change in any way, by up to 2 in the sum of its changes: the true epsilon is
    twice the one that is published for the same noise.
    """
    from flower_ldp.cli.laplace_plan import PlanOptions, answer

    options = PlanOptions(
        epsilon=epsilon,
        published_epsilon=published_epsilon,
        noise_below=noise_below,
        probability=probability,
        classes=classes,
        rows=rows,
        rounds=rounds,
        clients=clients,
        delta=delta,
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("labels", cls=Command, epilog=epilog(*_LABELS))
def labels(
    classes: Annotated[int, typer.Option(help="Number of different labels, in [2, 2^31].")],
    epsilon: Annotated[float | None, typer.Option(help="Per label, once, in (0, 100].")] = None,
    keep_probability: Annotated[
        float | None, typer.Option(help="In place of it: how often a label stays true.")
    ] = None,
    labels: Annotated[
        int | None, typer.Option(help="Labels of a client, or of all of them.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan randomized labels: how many stay true, and what that costs each of them.

    K-ary randomized response, which needs no prior, and what sets of labels would tell at the
    same price. Each label is randomized once, and what it costs does not grow with the training.
    """
    from flower_ldp.cli.labels_plan import PlanOptions, answer

    options = PlanOptions(
        epsilon=epsilon, keep_probability=keep_probability, classes=classes, labels=labels
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("gaussian", cls=Command, epilog=epilog(*_GAUSSIAN))
def gaussian(
    epsilon: Annotated[float, typer.Option(help="Per round and client, in [0.001, 100].")],
    delta: Annotated[float, typer.Option(help="Per round and client, in [1e-18, 0.5].")],
    clip_norm: Annotated[
        float, typer.Option(help="Length to which longer updates are scaled, C.")
    ] = 1.0,
    rounds: Annotated[int, typer.Option(help="Rounds, each of which asks the client.")] = 1,
    total_delta: Annotated[
        float | None,
        typer.Option(help="Of all rounds together, in [1e-12, 1); the sum if left out."),
    ] = None,
    params: Annotated[
        int | None,
        typer.Option(help="Weights that are trained, or a subspace's dimensions; for the bytes."),
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients of a round.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan normal noise on clipped updates: how much, and what rounds come to together.

    The noise is that of the exact curve, for updates up to 2 C apart. Beside it stands the
    textbook's formula, with the delta that it really has.
    """
    from flower_ldp.cli.gaussian_plan import PlanOptions, answer

    options = PlanOptions(
        epsilon=epsilon,
        delta=delta,
        clip_norm=clip_norm,
        rounds=rounds,
        total_delta=total_delta,
        params=params,
        clients=clients,
    )
    with reporting(as_json) as report:
        answer(options, report)


@app.command("dpsgd", cls=Command, epilog=epilog(*_DPSGD))
def dpsgd(
    epsilon: Annotated[float, typer.Option(help="Of the whole plan, per example: [0.01, 30].")],
    delta: Annotated[
        float, typer.Option(help="Of the whole plan, in [1e-10, 0.5]; below 1 / examples.")
    ],
    rounds: Annotated[int, typer.Option(help="Models that leave a site.")],
    steps: Annotated[int, typer.Option(help="Noisy steps of a round.")],
    rate: Annotated[float, typer.Option(help="Probability that an example takes part in a step.")],
    examples: Annotated[int, typer.Option(help="Rows or patients of a site; public.")],
    clip: Annotated[float, typer.Option(help="Length to which gradients are clipped.")] = 1.0,
    as_json: JsonOption = False,
) -> None:
    """Plan rounds of private training: the noise, and the policy's line for it.

    One example is replaced by any other; all models of all rounds are covered together.
    """
    from flower_ldp.cli.dpsgd_plan import PlanOptions, answer

    options = PlanOptions(epsilon, delta, rounds, steps, rate, examples, clip)
    with reporting(as_json) as report:
        answer(options, report)

"""``flower-ldp config``: the check of a training configuration, and what it means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, Report, epilog, reporting

app = typer.Typer(
    help="Check a SignDS configuration.",
    epilog=epilog("flower-ldp config check signds.yaml"),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(cls=Command, epilog=epilog("flower-ldp config check signds.yaml"))
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")],
    as_json: JsonOption = False,
) -> None:
    """Say what a SignDS configuration means and what a round of it costs."""
    with reporting(as_json) as report:
        report.facts["file"] = str(file)
        _answer(file, report)


def _answer(file: Path, report: Report) -> None:
    from flower_ldp.config import FixedLengthConfig, load_config
    from flower_ldp.privacy import Unit, compose, meaning
    from flower_ldp.strategies import LearnedStep

    encrypt = load_config(file).encrypt
    signds = encrypt.signds
    mechanism, step, optimizer = signds.mechanism(), signds.step(), signds.server_optimizer()
    learned = isinstance(step, LearnedStep)
    events = mechanism.events() + (step.magnitude.events() if isinstance(step, LearnedStep) else ())
    spent = compose(events)[Unit.CLIENT]
    parts = " + ".join(f"{event.mechanism} {event.epsilon:.15g}" for event in events)
    below = f", below {signds.sign_min_participation:.0%} of the clients fixed" if learned else ""
    size = "learned by MagRR" if learned else "fixed"
    described = None if optimizer is None else optimizer.describe()
    report.facts.update(
        encrypt_train_type=encrypt.encrypt_train_type,
        mechanism="signds",
        parameters=signds.model_dump(),
        step="learned" if learned else "fixed",
        server_optimizer=described,
        epsilon={"unit": "client", "round": spent.epsilon},
        meaning={"round": meaning(spent)},
    )
    report.line(f"{file}: {encrypt.encrypt_train_type}")
    h = signds.sign_dim_out
    report.pairs(
        [
            ("top set", f"{signds.sign_k:.15g} of the weights"),
            (
                "report",
                f"{h} weights" if h else f"as many as keep {signds.sign_thr_ratio:.15g} in it",
            ),
            ("step", f"{size} ({signds.sign_scaling} scaling){below}"),
            ("fixed rate", f"{signds.sign_global_lr:.15g}"),
            ("server optimizer", described or "none"),
            ("epsilon a round", f"{spent.epsilon:.15g} per client, pure ({parts}); rounds add up"),
        ]
    )
    report.line(f"One round: {meaning(spent)}")
    if encrypt.encrypt_train_type == "NOT_ENCRYPT":
        report.warn("encrypt_train_type is NOT_ENCRYPT: the file asks for no protection")
    if learned and isinstance(signds.sign_server_optimizer, FixedLengthConfig):
        report.warn("steps of fixed length ignore the learned size: sign_mag_eps buys nothing")

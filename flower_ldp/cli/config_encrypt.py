"""What ``flower-ldp config check`` says of an ``encrypt`` section: training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from flower_ldp.cli.output import Report, number
from flower_ldp.config import (
    CodewordConfig,
    DPEncryptConfig,
    EncryptConfig,
    SignDSConfig,
    UnsupervisedConfig,
    UpdateSection,
    load_config,
)
from flower_ldp.mechanisms.base import row_of
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose, meaning
from flower_ldp.wire.health import health_events
from flower_ldp.yaml_source import Section

_OFTEN = 0.9
#: Models for which a codeword's bits and worth are said: a head, and a small network.
_SIZES = (2_000, 60_000)
#: Of JSON, and of the lines that a person reads.
Facts: TypeAlias = dict[str, object]
Pairs: TypeAlias = list[tuple[str, str]]


def encrypt(file: Path, report: Report) -> None:
    """Answer for training with SignDS or normal noise, and for protected evaluation."""
    config = load_config(file)
    chosen = config.encrypt
    report.facts["encrypt_train_type"] = chosen.encrypt_train_type
    report.facts["privacy_eval_type"] = chosen.privacy_eval_type
    report.line(f"{file}: {chosen.encrypt_train_type}")
    section = chosen.training()
    if section is None:
        report.facts["mechanism"] = None
    else:
        _training(chosen, section, report)
    if chosen.encrypt_train_type == "NOT_ENCRYPT":
        report.warn(
            "encrypt_train_type is NOT_ENCRYPT: the file asks for no protection in training"
        )
    if chosen.privacy_eval_type == "LAPLACE":
        _evaluation(chosen, config.unsupervised, report)


def _training(chosen: EncryptConfig, section: UpdateSection, report: Report) -> None:
    """Say how updates are protected, and what a round costs."""
    events = (*section.events(), *health_events(chosen.health_eps))
    spent = compose(events)[Unit.CLIENT]
    facts, pairs = row_of(TRAINING, section)(section)
    report.facts.update(
        mechanism=events[0].mechanism,
        parameters=section.model_dump(),
        **facts,
        epsilon={"unit": "client", "round": spent.epsilon}
        | ({"delta": spent.delta} if spent.delta else {}),
        meaning={"round": meaning(spent)},
    )
    report.pairs([*pairs, *_part(section), ("epsilon a round", _cost(spent, events))])
    report.line(f"One round: {meaning(spent)}")
    if spent.delta:
        report.line(f"With a probability of up to {spent.delta:g} not even that holds.")


def _part(section: UpdateSection) -> Pairs:
    """Say which part of a model is trained, if the section says so."""
    said: Pairs = []
    if section.trainable is not None:
        said.append(("arrays", ", ".join(section.trainable)))
    if section.subspace is not None:
        within = f"{section.subspace.dimension:,} public dimensions, seed {section.subspace.seed}"
        said.append(("subspace", f"{within}; reports are about these numbers, not weights"))
    return said


def _cost(spent: PrivacySpent, events: tuple[PrivacyEvent, ...]) -> str:
    if not spent.delta:
        return f"{spent.epsilon:.15g} per client, pure ({_parts(events)}); rounds add up"
    parts = f" ({_parts(events)})" if len(events) > 1 else ""
    return f"{spent.epsilon:.15g}, delta {spent.delta:g}, per client{parts}; rounds add up, both"


def _signds(signds: SignDSConfig) -> tuple[Facts, Pairs]:
    learned, optimizer = signds.magnitude() is not None, signds.server_optimizer()
    below = f", below {signds.sign_min_participation:.0%} of the clients fixed" if learned else ""
    size = "learned by MagRR" if learned else "fixed"
    described = None if optimizer is None else optimizer.describe()
    k, h = signds.sign_k, signds.sign_dim_out
    report_of = (
        "chosen with it" if k is None else f"as many as keep {signds.sign_thr_ratio:.15g} in it"
    )
    facts: Facts = {"step": "learned" if learned else "fixed", "server_optimizer": described}
    return facts, [
        ("top set", "by what a report is worth" if k is None else f"{k:.15g} of the weights"),
        ("report", f"{h} weights" if h else report_of),
        ("step", f"{size} ({signds.sign_scaling} scaling){below}"),
        ("fixed rate", f"{signds.sign_global_lr:.15g}"),
        ("server optimizer", described or "none"),
    ]


def _gaussian(chosen: DPEncryptConfig) -> tuple[Facts, Pairs]:
    deviation = chosen.mechanism().deviation
    return {"noise": {"deviation": deviation}}, [
        ("update", f"clipped to length {chosen.dp_norm_clip:.15g}, one byte for each weight"),
        ("noise", f"deviation {number(deviation)} for each weight"),
    ]


def _codeword(codeword: CodewordConfig) -> tuple[Facts, Pairs]:
    mechanism, optimizer = codeword.mechanism(), codeword.server_optimizer()
    sizes = _SIZES if codeword.subspace is None else (max(codeword.subspace.dimension, 2),)
    least = max(mechanism.favoured, mechanism.blocks)
    examples = {size: mechanism.plan(size) for size in sizes if least <= size}
    facts: Facts = {
        "reports": {
            str(size): {"bits": plan.bits, "favoured": plan.favoured, "efficiency": plan.efficiency}
            for size, plan in examples.items()
        },
        "server_optimizer": optimizer.describe(),
    }
    chosen = f"{mechanism.favoured:,}" if mechanism.favoured else "by what a report is worth"
    return facts, [
        ("codewords favoured", chosen),
        ("codes of a round", f"{mechanism.rotations:,}"),
        ("blocks of a code", f"{mechanism.blocks:,}"),
        *(
            (f"   of {size:,} weights", f"{plan.bits} bits, efficiency {number(plan.efficiency)}")
            for size, plan in examples.items()
        ),
        ("server optimizer", optimizer.describe()),
    ]


def _fields(section: UpdateSection) -> tuple[Facts, Pairs]:
    return {}, [(name, str(value)) for name, value in section.model_dump().items()]


#: What is said of a section that training goes by, apart from its cost: its fields, if no more.
TRAINING: Mapping[type, Callable[[Any], tuple[Facts, Pairs]]] = MappingProxyType(
    {
        SignDSConfig: _signds,
        CodewordConfig: _codeword,
        DPEncryptConfig: _gaussian,
        Section: _fields,
    }
)


def _evaluation(chosen: EncryptConfig, asked: UnsupervisedConfig, report: Report) -> None:
    laplace = chosen.laplace_eval
    plan = LaplacePlan(laplace.epsilon)
    metrics = laplace.metric_mechanisms()
    rows = PrivacyEvent("laplace", plan.epsilon, count=laplace.rows)
    scalars = (event for metric in metrics.values() for event in metric.events())
    events = (rows, *scalars, *health_events(chosen.health_eps))
    spent = compose(events)[Unit.CLIENT]
    report.facts["evaluation"] = {
        "parameters": laplace.model_dump(),
        "row": {"epsilon": plan.epsilon, "published_epsilon": plan.published_epsilon},
        "noise": {
            "scale": plan.scale,
            "below": plan.noise_below(_OFTEN),
            "probability": _OFTEN,
        },
        "epsilon": {"unit": "client", "round": spent.epsilon},
        "meaning": {"round": meaning(spent)},
        "cluster_client_num": asked.cluster_client_num,
        "eval_type": asked.eval_type,
    }
    report.line()
    report.line("Evaluation: LAPLACE")
    noise = f"{100 * _OFTEN:g} % of it below {number(plan.noise_below(_OFTEN))}"
    report.pairs(
        [
            ("score", f"{asked.eval_type}, of at most {asked.cluster_client_num:,} clients"),
            ("noise on a probability", f"scale {number(plan.scale)}, {noise}"),
            (
                "epsilon a row",
                f"{plan.epsilon:,.15g} per client, pure; published as "
                f"{plan.published_epsilon:,.15g}, which names half",
            ),
            ("rows a client", f"{laplace.rows:,}"),
            *(
                (f"metric {name}", f"epsilon {m.epsilon:.15g}, clipped to [{m.lower}, {m.upper}]")
                for name, m in metrics.items()
            ),
            (
                "epsilon an evaluation",
                f"{spent.epsilon:.15g} per client, pure ({_parts(events)}); evaluations add up",
            ),
        ]
    )
    report.line(f"One evaluation: {meaning(spent)}")


def _parts(events: tuple[PrivacyEvent, ...]) -> str:
    return " + ".join(
        f"{event.mechanism} {'' if event.count == 1 else f'{event.count} x '}{event.epsilon:.15g}"
        for event in events
    )

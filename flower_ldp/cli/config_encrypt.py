"""What ``flower-ldp config check`` says of an ``encrypt`` section: training and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flower_ldp.cli.output import Report
from flower_ldp.cli.plan_costs import caveat_of, laplace_noise, named
from flower_ldp.config import (
    CodewordConfig,
    DPEncryptConfig,
    EncryptConfig,
    SignDSConfig,
    UnsupervisedConfig,
    UpdateSection,
    load_config,
)
from flower_ldp.facts import Fact, note, number
from flower_ldp.mechanisms.base import row_of
from flower_ldp.mechanisms.codeword import CodewordPlan
from flower_ldp.mechanisms.laplace import LaplacePlan
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose, meaning
from flower_ldp.wire.proposal import health_events
from flower_ldp.yaml_source import Section

_OFTEN = 0.9
#: Models for which a codeword's bits and worth are said: a head, and a small network.
_SIZES = (2_000, 60_000)


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
    delta = [Fact("epsilon.delta", spent.delta)] if spent.delta else []
    report.tell(
        Fact("mechanism", events[0].mechanism),
        Fact("parameters", section.model_dump()),
        *row_of(TRAINING, section)(section),
        *_part(section),
        Fact("epsilon.unit", "client"),
        Fact("epsilon.round", spent.epsilon, "epsilon a round", text=_cost(spent, events)),
        *delta,
        Fact("meaning.round", meaning(spent), "one round"),
        *caveat_of(spent),
    )


def _part(section: UpdateSection) -> list[Fact]:
    """Say which part of a model is trained, if the section says so."""
    found = []
    if section.trainable is not None:
        found.append(note("arrays", ", ".join(section.trainable)))
    if section.subspace is not None:
        within = f"{section.subspace.dimension:,} public dimensions, seed {section.subspace.seed}"
        told = f"{within}; reports are about these numbers, not weights"
        found.append(note("subspace", told))
    return found


def _cost(spent: PrivacySpent, events: tuple[PrivacyEvent, ...]) -> str:
    parts = " + ".join(map(named, events))
    if not spent.delta:
        return f"{spent.epsilon:.15g} per client, pure ({parts}); rounds add up"
    several = f" ({parts})" if len(events) > 1 else ""
    return f"{spent.epsilon:.15g}, delta {spent.delta:g}, per client{several}; rounds add up, both"


def _signds(signds: SignDSConfig) -> list[Fact]:
    learned, optimizer = signds.magnitude() is not None, signds.server_optimizer()
    below = f", below {signds.sign_min_participation:.0%} of the clients fixed" if learned else ""
    size = "learned by MagRR" if learned else "fixed"
    step = f"{size} ({signds.sign_scaling} scaling){below}"
    k, h = signds.sign_k, signds.sign_dim_out
    top = "by what a report is worth" if k is None else f"{k:.15g} of the weights"
    sized = "chosen with it" if k is None else f"as many as keep {signds.sign_thr_ratio:.15g} in it"
    return [
        note("top set", top),
        note("report", f"{h} weights" if h else sized),
        Fact("step", "learned" if learned else "fixed", "step", text=step),
        note("fixed rate", f"{signds.sign_global_lr:.15g}"),
        Fact("server_optimizer", optimizer and optimizer.describe(), "server optimizer"),
    ]


def _gaussian(chosen: DPEncryptConfig) -> list[Fact]:
    deviation = chosen.mechanism().deviation
    clipped = f"clipped to length {chosen.dp_norm_clip:.15g}, one byte for each weight"
    return [
        note("update", clipped),
        Fact("noise.deviation", deviation, "deviation of the noise", " for each weight"),
    ]


def _codeword(codeword: CodewordConfig) -> list[Fact]:
    mechanism, optimizer = codeword.mechanism(), codeword.server_optimizer()
    sizes = _SIZES if codeword.subspace is None else (max(codeword.subspace.dimension, 2),)
    least = max(mechanism.favoured, mechanism.blocks)
    chosen = f"{mechanism.favoured:,}" if mechanism.favoured else "by what a report is worth"
    return [
        note("codewords favoured", chosen),
        note("codes of a round", f"{mechanism.rotations:,}"),
        note("blocks of a code", f"{mechanism.blocks:,}"),
        Fact("reports", {}),
        *(_size_of_report(size, mechanism.plan(size)) for size in sizes if least <= size),
        Fact("server_optimizer", optimizer.describe(), "server optimizer"),
    ]


def _size_of_report(weights: int, plan: CodewordPlan) -> Fact:
    facts = {"bits": plan.bits, "favoured": plan.favoured, "efficiency": plan.efficiency}
    told = f"{plan.bits} bits, efficiency {number(plan.efficiency)}"
    return Fact(f"reports.{weights}", facts, f"   of {weights:,} weights", text=told)


def _fields(section: UpdateSection) -> list[Fact]:
    return [note(name, str(value)) for name, value in section.model_dump().items()]


#: What is said of a section that training goes by, apart from its cost: its fields, if no more.
TRAINING: Mapping[type, Callable[[Any], list[Fact]]] = MappingProxyType(
    {SignDSConfig: _signds, CodewordConfig: _codeword, DPEncryptConfig: _gaussian, Section: _fields}
)


def _evaluation(chosen: EncryptConfig, asked: UnsupervisedConfig, report: Report) -> None:
    laplace = chosen.laplace_eval
    metrics = laplace.metric_mechanisms()
    bounded = [
        note(f"metric {name}", f"epsilon {one.epsilon:.15g}, clipped to [{one.lower}, {one.upper}]")
        for name, one in metrics.items()
    ]
    rows = PrivacyEvent("laplace", laplace.epsilon, count=laplace.rows)
    scalars = (event for metric in metrics.values() for event in metric.events())
    events = (rows, *scalars, *health_events(chosen.health_eps))
    spent = compose(events)[Unit.CLIENT]
    parts = " + ".join(map(named, events))
    once = f"{spent.epsilon:.15g} per client, pure ({parts}); evaluations add up"
    report.tell(
        Fact("evaluation.parameters", laplace.model_dump(), "evaluation", text="LAPLACE"),
        Fact("evaluation.eval_type", asked.eval_type, "score"),
        Fact("evaluation.cluster_client_num", asked.cluster_client_num, "   of clients, at most"),
        *laplace_noise(LaplacePlan(laplace.epsilon), _OFTEN, "evaluation."),
        note("rows a client", f"{laplace.rows:,}"),
        *bounded,
        Fact("evaluation.epsilon.unit", "client"),
        Fact("evaluation.epsilon.round", spent.epsilon, "epsilon an evaluation", text=once),
        Fact("evaluation.meaning.round", meaning(spent), "one evaluation"),
    )

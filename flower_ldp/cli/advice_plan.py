"""The answer of ``flower-ldp plan`` to a total alone: how to train, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from flower_ldp.advice import Advice, advise
from flower_ldp.advice.efficiency import Kind
from flower_ldp.cli.costs import wrong
from flower_ldp.cli.output import Report
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.privacy import PrivacySpent, Unit, meaning

_KINDS: Mapping[str, Kind] = MappingProxyType({"signds": SignDS, "codeword": Codeword})
# What parameters of the function are called as options.
_OPTIONS = MappingProxyType({"weights": "params"})


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan advice`` say it."""

    clients: int
    params: int
    total_epsilon: float
    answers_per_client: int | None
    rounds: int | None
    mechanism: str | None


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    advice = _advice(options)
    outlook = advice.outlook
    total = PrivacySpent(Unit.CLIENT, advice.total_epsilon)
    report.facts.update(
        mechanism="codeword" if isinstance(advice.mechanism, Codeword) else "signds",
        parameters=asdict(options),
        advice={
            "epsilon_answer": advice.mechanism.epsilon,
            "answers_per_client": advice.answers_per_client,
            "rounds": outlook.rounds,
            "clients_per_round": outlook.clients_per_round,
            "efficiency": advice.plan.efficiency,
        },
        selection=_sizes(advice),
        bytes_up={
            "per_round": advice.bytes_up,
            "total": advice.bytes_up * advice.answers_per_client,
            "dense_float32_per_round": 4 * options.params,
        },
        outlook=outlook.facts(),
        meaning={"total": meaning(total)},
    )
    report.pairs(advice.rows())
    report.line()
    report.line(f"In all: {meaning(total)}")


def _advice(options: PlanOptions) -> Advice:
    try:
        return advise(
            clients=options.clients,
            weights=options.params,
            total_epsilon=options.total_epsilon,
            answers_per_client=options.answers_per_client,
            rounds=options.rounds,
            mechanism=None if options.mechanism is None else _KINDS[options.mechanism],
        )
    except ValueError as error:
        name, _, rest = str(error).partition(" ")
        option = f"--{_OPTIONS.get(name, name)}".replace("_", "-")
        raise wrong(option, rest) from error


def _sizes(advice: Advice) -> dict[str, Any]:
    plan = advice.plan
    if isinstance(plan, CodewordPlan):
        return {"favoured": plan.favoured, "rotations": plan.rotations, "n": plan.order}
    return {"top_size": plan.top_size, "h": plan.dim_out, "v_th": plan.threshold}

"""A plan of private training in the configuration that any strategy of Flower's sends along.

Flower's own strategies send one ConfigRecord with the model and take what it holds from
``start(train_config=...)``. A plan travels there, in fields of its own beside the others::

    strategy.start(grid, arrays, train_config=ConfigRecord(plan_fields(plan)))

A server that proposes no plan sends none of them; then the owner's policy has to set one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.wire.fields import in_domain

_PREFIX = "ldp-"
_INTEGERS, _FLOATS = ("rounds", "steps"), ("rate", "noise", "clip", "epsilon", "delta")
_NAME = f"{_PREFIX}plan"
#: FedProx's own field: the weight of its proximal term.
PROXIMAL = "proximal-mu"


def plan_fields(plan: TrainingPlan) -> dict[str, int | float | str]:
    """Return the fields that propose a plan, for ``train_config``."""
    fields = {f"{_PREFIX}{name}": value for name, value in plan.terms().items() if name != "name"}
    return {**fields, **({_NAME: plan.name} if plan.name else {})}


def read_plan(fields: Mapping[str, object]) -> TrainingPlan | None:
    """Return the plan that a configuration proposes, or None if it proposes none.

    Raises
    ------
    WireError
        ``"fields"`` if some fields of a plan are missing, unknown or ill-typed, ``"domain"`` for
        values outside their intervals.
    """
    found = {name for name in fields if name.startswith(_PREFIX)}
    if not found:
        return None
    wanted = {f"{_PREFIX}{name}" for name in (*_INTEGERS, *_FLOATS)}
    if found - {_NAME} != wanted:
        odd = quoted(sorted((found - {_NAME}) ^ wanted))
        raise WireError("fields", f"missing or unknown fields of a plan: {odd}")
    values: list[Any] = [typed(fields, f"{_PREFIX}{name}", int) for name in _INTEGERS]
    values += [typed(fields, f"{_PREFIX}{name}", float) for name in _FLOATS]
    values.append(typed(fields, _NAME, str) if _NAME in found else "")
    with in_domain():
        return TrainingPlan(*values)


def read_proximal(fields: Mapping[str, object]) -> float:
    """Return the weight of FedProx's proximal term; 0 where there is none.

    Raises
    ------
    WireError
        If it is no number in [0, 1e6].
    """
    if PROXIMAL not in fields:
        return 0.0
    value = fields[PROXIMAL]
    if type(value) not in (int, float) or not 0 <= float(value) <= 1e6:  # type: ignore[arg-type]
        raise WireError("fields", f"{PROXIMAL} must be a number in [0, 1e6], got {quoted(value)}")
    return math.fabs(float(value))  # type: ignore[arg-type]

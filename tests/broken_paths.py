"""Planted broken paths: gates that tell by refusing, careless labels, trainings that are none.

Each is the shipped code but for the one thing that it does wrong. None is reachable from the
package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
from flwr.app import Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.audit_paths.cases import AsDeployed, LabelSet
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.release import single_model
from flower_ldp.clients.reports import OpenUpdate
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import RandomSource


@dataclass(frozen=True)
class RefusesLongUpdates(SignDSRelease):
    """A release that gives no report of an update above some length."""

    longest: float

    def open(self, content: RecordDict) -> OpenUpdate[Any]:
        opened = super().open(content)
        return _OpenUnlessLong(opened.proposal, opened.layout, opened.sent, self.longest)


@dataclass(frozen=True)
class _OpenUnlessLong(OpenUpdate[Any]):
    longest: float

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        update = self.layout.difference(single_model(reply), self.sent)
        if np.linalg.norm(update) > self.longest:
            raise ReleaseError("the update is too long")
        return super().privatize(reply, rng)


def refuses_long_updates(longest: float) -> LdpMod:
    """Return a gate whose answer is missing where the data moves the model far."""
    return LdpMod(train=RefusesLongUpdates(longest))


@dataclass(frozen=True)
class LongerWithoutAnUpdate(SignDSRelease):
    """A release whose reports are one byte longer where no update could be read."""

    def open(self, content: RecordDict) -> OpenUpdate[Any]:
        opened = super().open(content)
        return _OpenLonger(opened.proposal, opened.layout, opened.sent)


@dataclass(frozen=True)
class _OpenLonger(OpenUpdate[Any]):
    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        update = self.layout.difference(single_model(reply), self.sent)
        return super().privatize(reply, rng) + bytes(int(not np.isfinite(update).all()))


class SaysHowMany:
    """A gate around the gate, which adds a metric of the data's to a reply that is not finite."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        trained: list[Message] = []

        def watched(message: Message, context: Context) -> Message:
            trained.append(call_next(message, context))
            return trained[-1]

        reply = LdpMod(train=SignDSRelease(), authorizer=AsDeployed())(message, context, watched)
        arrays = single_model(trained[-1].content).values()
        if not all(np.isfinite(array).all() for array in arrays):
            reply.content["extra"] = MetricRecord({"entries": 1})
        return reply


class SaysHowLong:
    """A gate around the gate, which fails always, and says of what: each reason is the data's."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        trained = single_model(call_next(message, context).content)
        length = sum(float(np.abs(array).sum()) for array in trained.values())
        return Message(Error(code=1000, reason=f"ldp:failed:{length:.0f}"), reply_to=message)


def clips_at_twice_the_length(context: Context, *given: Any, **settings: Any) -> RecordDict:
    """Train for the gate with patients that weigh twice what was accounted for."""
    from flower_ldp.training import private
    from flower_ldp.training.gradients import StepSum

    def longer(model: Any, clip: float, unit: float) -> StepSum:
        return StepSum(model, 2 * clip, unit)

    with patch.object(private, "StepSum", longer):
        return private.private_training(context, *given, **settings)


def drops_the_step_of_a_row_that_fails(
    context: Context, *given: Any, **settings: Any
) -> RecordDict:
    """Train for the gate with steps that count as zero as a whole if one of their rows does."""
    from flower_ldp.training import private
    from flower_ldp.training.gradients import RowModel, StepSum

    row, call = RowModel.row, StepSum.__call__
    failed: list[bool] = []

    def watched(self: RowModel, *asked: Any) -> Any:
        found = row(self, *asked)
        failed.append(found is None or not found.isfinite().all())
        return found

    def whole(self: StepSum, *asked: Any) -> Any:
        failed.clear()
        total = call(self, *asked)
        return total * (not any(failed))

    with patch.object(RowModel, "row", watched), patch.object(StepSum, "__call__", whole):
        return private.private_training(context, *given, **settings)


def stacks_rows(context: Context, *given: Any, **settings: Any) -> RecordDict:
    """Train for the gate with all rows of a step as one batch."""
    import torch

    from flower_ldp.training import private
    from flower_ldp.training.gradients import ClippedSum, StepSum

    def together(self: StepSum, weights: Any, examples: Any) -> torch.Tensor:
        asked = self._model
        learning = [asked._learns[name] for name in weights]
        clipped = ClippedSum(asked._gradient.numel(), self._clip, self._unit)
        table = [asked._rows.read(row) for rows in examples for row in rows]
        with asked.passes() as passes:
            passes.begin({**asked._fixed, **weights})
            outputs = asked._model(torch.stack([features for (features,) in table]))
            for rows in filter(None, examples):
                own, outputs = outputs[: len(rows)], outputs[len(rows) :]
                value = sum(asked._measure(torch.nn.Identity(), (one[None],)).sum() for one in own)
                found = torch.autograd.grad(value, learning, retain_graph=True)
                clipped.add(torch.cat([one.reshape(-1) for one in found]))
        return clipped.total

    with patch.object(StepSum, "__call__", together):
        return private.private_training(context, *given, **settings)


#: How often :func:`repeats_each_step` takes a step. Of two times many more draws tell.
REPEATS = 9


def repeats_each_step(context: Context, *given: Any, **settings: Any) -> RecordDict:
    """Train for the gate with steps that are taken many times, of which one was charged."""
    from flower_ldp.clients.session import TrainingSession, current_session
    from flower_ldp.training import private
    from flower_ldp.training.gradients import StepSum

    session = current_session(TrainingSession)
    plan = session.granted.plan
    more = replace(plan, steps=REPEATS * plan.steps)
    session.granted = replace(session.granted, plan=more)
    summed = StepSum.__call__
    # Gradients of a linear model are the same after a step.
    kept: list[Any] = []

    def once(self: Any, *asked: Any) -> Any:
        if not kept:
            kept.append(summed(self, *asked))
        return kept[0]

    with patch.object(StepSum, "__call__", once):
        return private.private_training(context, *given, **settings)


def labels_drawn_at_every_ask(
    given: LabelSet, count: int, rng: RandomSource
) -> list[tuple[object, ...]]:
    """Randomize each stage whenever it is asked for, as a store does that keeps nothing."""
    return _label_outcomes(given, count, lambda: rng)


def labels_with_one_noise(
    given: LabelSet, count: int, rng: RandomSource
) -> list[tuple[object, ...]]:
    """Randomize each label once, and every stage with the same noise."""
    seed = rng.bits(64)
    return _label_outcomes(given, count, lambda: RandomSource.seeded(seed))


def _label_outcomes(
    given: LabelSet, count: int, source: Callable[[], RandomSource]
) -> list[tuple[object, ...]]:
    """Return what the label store would of so many sets alike, but for the noise.

    Each ask draws for all sets in one call, and no ledger is kept: it takes no time.
    """
    told, last = [], len(given.stages.mechanisms) - 1
    for stage in (*range(last), *[last] * given.asks):
        mechanism = given.stages.mechanism(stage)
        members = given.stages.members(stage, len(given.labels))
        true = np.tile(np.array(given.labels)[members], (count, 1))
        reports = mechanism.randomize_array(true, source(), given.prior)
        held = tuple(members.tolist())
        told.append([(held, tuple(row)) for row in reports.tolist()])
    return list(zip(*told, strict=True))

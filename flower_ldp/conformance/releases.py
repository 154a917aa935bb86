"""Checks of a release of one's own, at the gate with an owner's policy and ledger of a deployment.

They are about examples, of which the owner's policy states how many, or about clients. What the app
hands over is taken as the rows: that a row is of one example alone, its author has to show.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
from flwr.app import Context, Message, Metadata, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.audit import audit
from flower_ldp.audit.auditing import claim
from flower_ldp.clients import LdpMod, Permit, Release, ReplyTiming
from flower_ldp.conformance import FAILURE, SEED, ConformanceError
from flower_ldp.errors import quoted
from flower_ldp.mechanisms.random import Floats, RandomSource
from flower_ldp.policy.files import no_environment
from flower_ldp.privacy import Unit

#: Reports of each input that weigh the numbers of a report, before an audit.
_WEIGHED = 100
_BUDGET = {"life": {"epsilon": 1e6, "delta": 0.5}}
_POLICY: dict[str, Any] = {
    "data_id": "own",
    "ledger": "ledger.sqlite",
    "mode": "deployment",
    "messages": {},
    "unlisted_messages": "answer",
    "budgets": {"example": _BUDGET, "client": _BUDGET},
}


@dataclass(frozen=True)
class ReleaseCase:
    """A release, and what it is tried on.

    Parameters
    ----------
    name : str
        For the names of the tests.
    release : Release
        Under test.
    reply : callable
        Maps rows to the app's reply, a RecordDict.
    rows, others : sequence
        Ten rows or so; and what one of them may be replaced by, far away or unreadable.
    read : callable
        Maps the content of the gate's reply to all of its numbers, a 1-D array of one length; it
        raises for another form.
    question : RecordDict
        Content of the server's message.
    kind : {"query", "evaluate", "train"}
        Its type.
    example : {"row", "patient"}
        What one of ``rows`` is.
    draws : int
        Reports of each input of an audit.
    """

    name: str
    release: Release
    reply: Callable[[Sequence[Any]], RecordDict]
    rows: Sequence[Any]
    others: Sequence[Any]
    read: Callable[[RecordDict], Any]
    question: RecordDict = field(default_factory=RecordDict)
    kind: str = "query"
    example: str = "row"
    draws: int = 1_000

    def settings(self) -> Iterator[_Site]:
        """Yield a client with a policy and a ledger, in a folder."""
        with TemporaryDirectory() as folder:
            yield _Site(self, Path(folder))


class _Site:
    """A client that is asked through the gate."""

    def __init__(self, case: ReleaseCase, folder: Path) -> None:
        self.case, self.folder = case, folder
        self._lengths: set[int] = set()
        self.opened = case.release.open(case.question)
        self.events = self.opened.request(self._metadata(1, "first")).events
        self.is_about_examples = any(event.unit is Unit.EXAMPLE for event in self.events)
        Ledger.open(folder / "ledger.sqlite", create=True).close()
        policy = _POLICY | {"example": case.example, "examples": len(case.rows)}
        (folder / "policy.yaml").write_text(json.dumps(policy))
        (folder / "policy.yaml").chmod(0o600)

    def _metadata(self, run: int, message: str) -> Metadata:
        return Metadata(run, message, 1, 2, "", "", time.time(), 60.0, self.case.kind)

    def charges(self) -> int:
        """Return the number of charges."""
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            return ledger.mark().entries

    def ask(self, run: int, message: str, answer: Callable[[], RecordDict]) -> RecordDict | None:
        """Return what leaves in answer to a message of a run; None for an error."""
        gate = LdpMod(actions={self.case.kind: self.case.release})
        sent = cast(Any, Message)(content=self.case.question, metadata=self._metadata(run, message))
        named: Any = {"ldp-policy": str(self.folder / "policy.yaml")}
        context = Context(run, 2, named, RecordDict(), {})
        with no_environment():
            found = gate(sent, context, lambda sent, _: Message(answer(), reply_to=sent))
        return None if found.has_error() else found.content

    def check(self, run: int, message: str, answer: Callable[[], RecordDict], where: str) -> None:
        """Raise ConformanceError unless a report of one length leaves, and what ``read`` raises."""
        found = self.ask(run, message, answer)
        if found is None:
            raise ConformanceError(f"where {where}, no report leaves")
        self.case.read(found)
        self._lengths.add(sum(one.count_bytes() for one in found.values()))
        if len(self._lengths) > 1:
            raise ConformanceError(f"where {where}, lengths are {sorted(self._lengths)} bytes")

    def own(self) -> RecordDict:
        """Return the app's reply."""
        return self.case.reply(self.case.rows)

    def others(self) -> Iterator[tuple[str, RecordDict]]:
        """Yield replies with another row, and which it is."""
        rows = self.case.rows
        for place, other in zip(itertools.cycle(range(len(rows))), self.case.others, strict=False):
            reply = self.case.reply([*rows[:place], other, *rows[place + 1 :]])
            yield f"row {place} is {quoted(other)}", reply


def all_is_charged_before_the_app_runs(site: _Site) -> None:
    """Look at the ledger while the app runs and afterwards: there must be one charge."""
    seen: list[int] = []

    def answer() -> RecordDict:
        seen.append(site.charges())
        return site.own()

    site.check(1, "first", answer, "no row is other")
    if [*seen, site.charges()] != [1, 1]:
        raise ConformanceError(f"charges in the app and afterwards: {[*seen, site.charges()]}")


def one_row_ends_nothing(site: _Site) -> None:
    """Replace one row by another: a report leaves, and the run goes on."""
    for run, (where, reply) in enumerate(site.others(), 1):
        site.check(run, "first", lambda: reply, where)  # noqa: B023
        site.check(run, "next", site.own, f"earlier {where}")


def a_failing_app_ends_the_claim_about_examples(site: _Site) -> None:
    """Let the app fail: a report like any leaves, and then none about examples in this run."""
    for run, what in enumerate(("raises", "replies with nothing"), 1):
        site.check(run, "first", _raise if what == "raises" else RecordDict, f"the app {what}")
        if (site.ask(run, "next", site.own) is None) != site.is_about_examples:
            must = "end (per_example=True)" if site.is_about_examples else "go on (neutral law)"
            raise ConformanceError(f"after the app {what}, the run must {must}")


def _raise() -> RecordDict:
    raise ValueError("an app that fails")


def epsilon_is_kept(site: _Site) -> None:
    """Audit one row's replacement: the report must not tell by more than what is charged."""
    case, spent, rng = site.case, claim(site.events), RandomSource.seeded(SEED)
    permit = Permit(ReplyTiming(), lambda *_: None, examples=len(case.rows), example=case.example)
    opened, tried = site.opened.with_permit(permit), [*site.others()]
    if not site.is_about_examples:
        tried.append(("there is no reply", RecordDict()))

    def draw(reply: RecordDict, rng: RandomSource) -> Any:
        return case.read(opened.content(opened.privatize(reply, rng)))

    if not np.array_equal(*(draw(site.own(), RandomSource.seeded(SEED)) for _ in range(2))):
        raise ConformanceError("the noise is not of privatize's rng alone")
    terms: dict[str, Any] = {"delta": spent.delta, "confidence": 1 - FAILURE / len(tried)}
    for where, other in tried:
        pair = site.own(), other
        one, two = (np.array([draw(reply, rng) for _ in range(_WEIGHED)]) for reply in pair)
        weights = (one.mean(axis=0) - two.mean(axis=0)) / (one.var(axis=0) + two.var(axis=0) + 1e-9)
        score = partial(_weighed, weights)
        found = audit(draw, pair, score, spent.epsilon, case.draws, sources=lambda: rng, **terms)
        if found.refuted:
            told = f"epsilon is at least {found.lower_bound:.3g}, {spent.epsilon:g} is charged"
            raise ConformanceError(f"where {where}, {told}")


def _weighed(weights: Floats, numbers: Sequence[Any]) -> Floats:
    return np.asarray(np.array(numbers) @ weights)


_CHECKS = (
    all_is_charged_before_the_app_runs,
    one_row_ends_nothing,
    a_failing_app_ends_the_claim_about_examples,
    epsilon_is_kept,
)
#: Every test of a release, by its name.
RELEASE_CHECKS = {one.__name__: one for one in _CHECKS}

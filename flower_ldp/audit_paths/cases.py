"""Audit cases of the gate and of labels, with a data owner whose policy and ledger are real.

**The gate**: everything that arrives at the server under two data sets. Data decides what an app
trains and whether it fails, so an outcome is a report, or an error with its code and reason.
Everything between is as in a deployment: ``ClientApp``, ``LdpMod``, policy, ledger, packed report
and strict decoding.

**Labels**: what an app gets to train on when one label of the set differs: policy, charge, draw,
stored reports and the same reports again. A label is requested eight times, so that a store that
draws anew shows within some hundred sets. The first of two stages is compared with the second, so
that shared noise shows.
"""

import itertools
import logging
import shutil
import tempfile
import weakref
import zlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from flower_ldp.audit import Case, Contrast
from flower_ldp.audit.auditing import Statistic, claim
from flower_ldp.clients import LdpMod, OwnerAuthorizer, Permit, ReleaseRequest, SignDSRelease
from flower_ldp.clients.charging import account_of
from flower_ldp.clients.labels import PrivateLabels
from flower_ldp.clients.permit import ReplyTiming
from flower_ldp.errors import LedgerError, RefusalError, ReleaseError, WireError
from flower_ldp.labels.stages import LabelStages
from flower_ldp.mechanisms import MagRR, RRWithPrior, SignDS
from flower_ldp.mechanisms.base import NO_REPORT
from flower_ldp.mechanisms.labels import LABEL_METHODS, label_mechanisms, reports_are_labels
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.policy import Policy, load_policy
from flower_ldp.policy.files import NODE_CONFIG_KEY, no_environment
from flower_ldp.privacy import Unit
from flower_ldp.simulation.flower_api import over_the_wire
from flower_ldp.strategies.replies import payload_of
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal

_POLICY = """\
data_id: audit
ledger: ledger.sqlite
mode: simulation
messages: {}
unlisted_messages: answer
least_epsilon: 1.0e-9
releases: {life: 1000000000}
repeats: 1000000000
budgets:
  client: {life: {epsilon: 1000000.0, delta: 0.5}}
  example: {life: {epsilon: 1000000.0, delta: 0.5}}
  label: {life: {epsilon: 1000000.0, delta: 0.5}}
"""
_RUN, _NODE = 1, 1
#: What arrived, by its kind: a report or model, or whatever else.
Outcome = tuple[str, Hashable]


@dataclass(frozen=True)
class AsDeployed(OwnerAuthorizer):
    """The owner's authorizer, with errors answered as in a deployment.

    The ledger is a simulation's, which is fast; a simulation would also report that an app fails.
    """

    def authorize(self, request: ReleaseRequest, context: Context) -> Permit:
        """Authorize as the owner does."""
        # One gate may serve many audits' nodes.
        permit = OwnerAuthorizer().authorize(request, context)
        timing = replace(permit.timing, is_simulation=False)
        if permit.granted is None:  # else a plan ends where its app fails
            timing = ReplyTiming(answer_after=timing.answer_after)  # thousands of times: no count
        return replace(permit, timing=timing)


class AuditOwner:
    """Allows every release, and charges each to a ledger that is deleted afterwards.

    Parameters
    ----------
    more : str
        Further fields of its policy, as YAML.
    """

    def __init__(self, more: str = "") -> None:
        folder = tempfile.mkdtemp(prefix="flower-ldp-audit-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._path = Path(folder) / "policy.yaml"
        self._path.write_text(_POLICY + more, encoding="utf-8")
        self._numbers = itertools.count()

    @property
    def policy(self) -> Policy:
        """The owner's policy."""
        return load_policy(self._path)

    def new_name(self) -> str:
        """Return a new name for a message or a set of labels."""
        return f"audit-{next(self._numbers)}"

    def answer(self, app: ClientApp, content: RecordDict, partition: int = 0) -> Message:
        """Return an app's reply to a request on this node, both as bytes of the network."""
        where = Metadata(
            _RUN, self.new_name(), _NODE + 1, _NODE, "", "audit", 0.0, 3_600.0, "train"
        )
        # Flower's own processes make messages so; its signature names what apps may give.
        make = cast(Callable[..., Message], Message)
        sent = over_the_wire(make(content=content, metadata=where))
        with self.at_home():
            return over_the_wire(app(sent, self.context(partition)))

    def context(self, partition: int = 0) -> Context:
        """Return a client app's context on this owner's node; a partition has an account."""
        return Context(
            run_id=_RUN,
            node_id=_NODE,
            node_config={NODE_CONFIG_KEY: str(self._path), "partition-id": partition},
            state=RecordDict(),
            run_config={},
        )

    @contextmanager
    def at_home(self) -> Iterator[None]:
        """Hide other policies and the gate's log: an audit makes apps fail often."""
        log = logging.getLogger("flower_ldp")
        was_disabled, log.disabled = log.disabled, True
        try:
            with no_environment():
                yield
        finally:
            log.disabled = was_disabled


def error_of(reply: Message) -> Outcome:
    """Return the outcome of a reply that is an error: all of its text."""
    return "error", (reply.error.code, reply.error.reason)


def scores(kind: type[Any], score: Callable[[Any], float]) -> Statistic:
    """Return the scores of outcomes: ``score`` of expected payloads, large numbers for all else."""

    def of_one(outcome: Outcome) -> float:
        if isinstance(outcome[1], kind):
            return score(outcome[1])
        return NO_REPORT + zlib.crc32(repr(outcome).encode())

    return lambda outcomes: np.array([of_one(one) for one in outcomes])


#: Examples in rows; the app trains to their mean.
DataSet = NDArray[np.float32]

DIMENSION = 300
#: What magnitudes are compared with: one between those of the two updates.
_THRESHOLD = 1.35
#: Pairs of data sets for which the package claims the epsilon of the proposal.
CLAIMED = (
    "opposite data",
    "data that is not finite",
    "another model",
    "data that makes the app raise",
)


def gate(
    selection: SignDS,
    magnitude: MagRR,
    *,
    mod: Mod | None = None,
    checks: Sequence[str] = CLAIMED,
) -> Case:
    """Return the case of a round of SignDS and MagRR through the gate.

    Parameters
    ----------
    selection, magnitude : SignDS and MagRR
        The server's proposal; their sum is the claim.
    mod : Flower mod, optional
        The app's guard; by default :class:`~flower_ldp.clients.LdpMod`.
    checks : sequence of str
        Names of pairs, of :data:`CLAIMED`.
    """
    proposed = SignDSRound(selection, magnitude.epsilon, _THRESHOLD)
    sampled = proposed.audit_pairs(DIMENSION)[0]
    slope, steeper = sampled.pair
    one = np.stack([slope, slope])
    others = (
        np.stack([steeper, steeper]),
        np.where(np.arange(DIMENSION) == 7, np.nan, one),
        one[:, 1:],
        one[:0],
    )
    pairs = {check: (one, other) for check, other in zip(CLAIMED, others, strict=True)}
    unknown = set(checks) - pairs.keys()
    if unknown or not checks:
        raise ValueError(f"checks must be some of {sorted(pairs)}, got {list(checks)}")
    proposal = UpdateProposal(proposed)
    served = _Round(proposal, mod or LdpMod(train=SignDSRelease(), authorizer=AsDeployed()))

    def log_ratio(report: bytes) -> float:
        return float(sampled.statistic([proposed.decode(report, DIMENSION)])[0])

    score = scores(bytes, log_ratio)
    return Case(
        f"gate (ClientApp, LdpMod, ledger, wire; signds {selection.epsilon:g} + magrr "
        f"{magnitude.epsilon:g})",
        claim(proposal.events()).epsilon,
        served.answer,
        tuple(Contrast(name, pairs[name], score, "log-ratio, or an error") for name in checks),
        [pairs[name] for name in checks],
        draws=300,
        differing=0.5,
    )


class _Round:
    """One server and one client."""

    def __init__(self, proposal: UpdateProposal[SignDSRound], mod: Mod) -> None:
        self._proposal = proposal
        self._owner = AuditOwner()
        self._data: DataSet = np.zeros((1, DIMENSION), dtype=np.float32)
        self._app = ClientApp(mods=[mod])
        self._app.train()(self._train)

    def answer(self, data: DataSet, rng: RandomSource) -> Outcome:
        """Return what arrives from one round; the gate uses its own randomness, not ``rng``."""
        self._data = data
        model = ArrayRecord({"weights": Array(np.zeros(DIMENSION, dtype=np.float32))})
        fields = ConfigRecord({**self._proposal.to_fields()})
        content = RecordDict({"model": model, PROPOSAL_KEY: fields})
        reply = self._owner.answer(self._app, content)
        if reply.has_error():
            return error_of(reply)
        try:
            payload = payload_of(reply.content)
            self._proposal.mechanism.decode(payload, DIMENSION)
        except WireError as error:
            return "no report", (error.reason, repr(reply.content))
        return "report", payload

    def _train(self, message: Message, context: Context) -> Message:
        if not len(self._data):
            raise ZeroDivisionError("no examples to train on")
        trained = ArrayRecord({"weights": Array(self._data.mean(axis=0))})
        return Message(RecordDict({"model": trained}), reply_to=message)


#: Place of the label that is changed, the last: in the second stage, if of two.
CHANGED = 5
#: How often the reports of one stage are asked for.
ASKS = 8
_CLASSES = 3
# What a report of the first stage adds to a score: less than one of the changed label's.
_OF_FIRST = 0.1
_PRIOR = (0.5, 0.4, 0.1)
#: Methods that the answers of an audit call otherwise than a configuration.
_TITLES = {"kary_response": "k-ary response", "subset_selection": "subset selection"}


@dataclass(frozen=True)
class LabelSet:
    """A label set of an app, and its randomizers.

    Parameters
    ----------
    labels : tuple of int
        True labels.
    stages : LabelStages
        The randomizers; the changed label is in the last stage.
    prior : tuple of float, optional
        Public, for every stage.
    asks : int
        How often the last stage's reports are requested.
    """

    labels: tuple[int, ...]
    stages: LabelStages
    prior: tuple[float, ...] | None = None
    asks: int = 1


def labels(epsilon: float) -> Case:
    """Return the case of a set of labels: by each method, and in two stages with a prior."""
    with_prior = RRWithPrior(epsilon, _CLASSES, unit=Unit.LABEL)
    two = LabelStages((with_prior, with_prior), (1, 1))
    alone = {}
    for method in LABEL_METHODS:
        mechanism, *more = label_mechanisms(method, epsilon, _CLASSES)
        if not more and not mechanism.needs_prior:
            alone[method] = LabelStages((mechanism,), (1,))
    claimed = max(claim(each.events()).epsilon for each in (*alone.values(), two))
    pairs = {
        f"{_TITLES.get(method, method)}, asked {ASKS} times": _pair(LabelSet((), stages, asks=ASKS))
        for method, stages in alone.items()
    }
    pairs["second of two stages, with a prior"] = _pair(LabelSet((), two, _PRIOR))
    once = _pair(LabelSet((), alone["kary_response"]))
    owner = AuditOwner()
    store = PrivateLabels(owner.policy, account_of(owner.policy, owner.context()))
    return Case(
        f"labels (policy, ledger, store; epsilon {epsilon:g})",
        claimed,
        partial(_all_reports, owner, store),
        tuple(
            Contrast(f"one label changed, {way}", pair, _scores(pair[0]), "reports as 0, less as 1")
            for way, pair in pairs.items()
        ),
        [once],
        draws=300,
    )


def _pair(given: LabelSet) -> tuple[LabelSet, LabelSet]:
    """Return two sets that differ in one label."""
    same = (0,) * CHANGED
    return replace(given, labels=(*same, 0)), replace(given, labels=(*same, 1))


def _all_reports(
    owner: AuditOwner, store: PrivateLabels, given: LabelSet, rng: RandomSource
) -> Hashable:
    """Return all reports of a set under a new name, stage by stage; the last ones repeatedly.

    The store uses its own randomness, not ``rng``.
    """
    last, name = len(given.stages.mechanisms) - 1, owner.new_name()
    told: list[Any] = []
    try:
        with owner.at_home():
            for stage in (*range(last), *[last] * given.asks):
                found = store.randomize(
                    given.labels, given.stages, stage, name=name, prior=given.prior
                )
                told.append((tuple(found.members.tolist()), tuple(found.reports.tolist())))
    except (RefusalError, ReleaseError, LedgerError, ValueError) as error:
        told.append(type(error).__name__)
    return tuple(told)


def _scores(given: LabelSet) -> Callable[[Sequence[Any]], NDArray[np.float64]]:
    """Return how often the changed label was reported as 0, less as 1.

    With two stages, plus a tenth of the first stage's report at the same place.
    """
    is_label = reports_are_labels(given.stages.mechanisms[-1])

    def side(told: int) -> int:
        held = [told == 0, told == 1] if is_label else [told & 1, told >> 1 & 1]
        return held[0] - held[1]

    def score(outcome: tuple[Any, ...]) -> float:
        if any(isinstance(part, str) for part in outcome):
            return 10.0 * ASKS  # a refusal tells, too
        place = next(members.index(CHANGED) for members, _ in outcome if CHANGED in members)
        found = 0.0
        for members, reports in outcome:
            told = reports[place]
            found += side(told) if CHANGED in members else _OF_FIRST * told
        return found

    return lambda outcomes: np.array([score(one) for one in outcomes])

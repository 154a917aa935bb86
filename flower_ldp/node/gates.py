"""The node's gates, which are Flower mods: the allowlist of apps, and the reports that may leave.

**The allowlist** (:class:`AppListGate`, before the gate of ``--ldp-gate``). A claim about the
client holds whatever the app computes, since the gate adds its noise here. A claim about an example
or a label, or one that is declared post-processing, depends on the app: the policy must list its
bundle with that mechanism. The decision uses public data alone: the bundle's digest, the run's
configuration, the node's environment, the proposal.

Split learning, private training and its evaluation are answered by the app's own gate with the
site's ledger, and only under ``--ldp-gate reports``. Of split learning the app's reply leaves, in
its message's form and no other; of the others the ledger's content. A round of private training and
a count of right predictions have no proposal, since Flower's own strategies send a model and a
configuration. Their answers are about single examples, and no reply shows how it was made. The
owner's list therefore says which app may answer:

============  ================  ==================================================================
message       listed release    answer
============  ================  ==================================================================
``train``     ``dpsgd``         one ArrayRecord with the arrays that were sent, and one
                                MetricRecord with how many examples there are
``evaluate``  ``example_mean``  one MetricRecord: a share, and how many examples there are
============  ================  ==================================================================

The names are those that Flower's strategies look for. An evaluation costs what the policy allows
for it: the server proposes no price, and what an app asks for is unknown before it runs.

**Paid reports** (:class:`PaidReports`, ``--ldp-gate reports``): the app's own ``LdpMod`` draws the
report, charges the site's ledger and seals it there. The SuperNode's process sends the ledger's
bytes for this message and proposal, if they are a well-formed report. The ledger holds none
if the app failed, died or did not charge: then a neutral report is sealed and sent. In place of
malformed sealed bytes a neutral report is sent. **This trusts the app for the noise**: an app that
can write to the ledger can seal a report of its own, of the form and length of an honest one: some
hundred bytes of SignDS, but a byte for every weight of the Gaussian mechanism. The default,
privatizing in the SuperNode's process, does not.

**Where the node privatizes**, :class:`FormatChecked` checks its gate's answer once more.
"""

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from flower_ldp import refusals
from flower_ldp.app_digests import this_environment
from flower_ldp.clients import RELEASES, AccuracyRelease, DPSGDRelease, OwnerAuthorizer, release
from flower_ldp.clients.charging import policy_of
from flower_ldp.clients.diagnostics import cause_of, cut_middle
from flower_ldp.clients.permit import Permit, ReleaseRequest
from flower_ldp.clients.release import OpenRelease, Release, constant, content_of, open_proposal
from flower_ldp.clients.split_embedding import read_record
from flower_ldp.errors import ConfigError, RefusalError, ReleaseError, WireError
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.node.received_apps import ReceivedApp
from flower_ldp.policy import App, Policy, find_policy
from flower_ldp.privacy import Unit
from flower_ldp.wire import embedding
from flower_ldp.wire.embedding import EmbeddingProposal
from flower_ldp.wire.proposal import PAYLOAD_KEY, PROPOSAL_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")

_NodeConfig = Mapping[str, bool | float | int | str]
#: Messages of split learning: those that ask for a block's embeddings, and all.
_EMBEDDED = (embedding.FORWARD, embedding.EVALUATE)
_SPLIT = (*_EMBEDDED, embedding.ALIGN, embedding.PREPARE, embedding.BACKWARD, embedding.REWIND)
#: By type of message without a proposal, the mechanism that a claim about its answer has.
_UNPROPOSED = {MessageType.TRAIN: "dpsgd", MessageType.EVALUATE: "example_mean"}
#: What a party says of itself; public, and short.
_INTRODUCTION = {"name", "claim", "epsilon", "delta", "step", "earlier"}
_LONGEST_INTRODUCTION = 1 << 20
#: Of a block's embeddings: a party holds them several times over, as the node does in its place.
_MOST_ENTRIES = 1 << 26


@dataclass(frozen=True)
class AppListGate:
    """A gate behind the owner's allowlist of apps.

    Parameters
    ----------
    gate : Mod
        Judges and answers what the list permits.
    app_of : callable
        Returns a run's bundle; None if unknown.
    by_apps : bool
        Whether listed apps answer by their own gates, with the site's ledger.
    releases : mapping of str to Release
        Readers of proposals, by type of message.
    """

    gate: Mod
    app_of: Callable[[int], ReceivedApp | None]
    by_apps: bool = False
    releases: Mapping[str, Release] = field(default_factory=lambda: RELEASES)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer as the gate does, or with a constant refusal before it is asked."""
        try:
            policy = policy_of(context)
            app = self._app(policy, message.metadata.run_id)
            if message.metadata.message_type in _SPLIT:
                return self._split(app, message, partial(call_next, message, context))
            mechanism = _unproposed(message) if self.by_apps else None
            if mechanism is not None:
                _check_listed(app, mechanism)
                paid = PaidReports(releases=_unproposed_releases(policy, message))
                return paid(message, context, call_next)
            self._check_claims(policy, app, message)
        except Exception as error:
            return without_report(message, error)
        return self.gate(message, context, call_next)

    def _app(self, policy: Policy, run_id: int) -> App | None:
        """Return the listed app of a run; None for another, if the owner runs others."""
        found = self.app_of(run_id)
        if found is not None and found.fault:
            raise _refusal(f"{found.digest}: {found.fault}")
        if not policy.apps and policy.unlisted_apps == "answer":
            return None
        if found is None:
            raise _refusal("the run's bundle could not be fetched")
        app = policy.apps.get(found.digest)
        if app is None:
            if policy.unlisted_apps == "refuse":
                raise _refusal(f"the policy does not list {found.digest}")
            return None
        fault = app.misfit(found.overrides)
        if fault:
            raise _refusal(f"{found.digest}: {fault}")
        if not found.listed:
            raise _refusal(f"{found.digest} was listed after the run began: begin another run")
        if app.environment is not None and app.environment != this_environment().digest:
            raise _refusal(f"{found.digest} is listed for another environment of this node")
        return app

    def _check_claims(self, policy: Policy, app: App | None, message: Message) -> None:
        """Refuse a claim that depends on an app that is not listed for it."""
        kind = message.metadata.message_type
        if kind not in self.releases:
            return  # the gate's own affair
        declared = policy.waived(kind)
        for event in open_proposal(self.releases, message).events:
            if event.unit is not Unit.CLIENT or event.mechanism in declared:
                _check_listed(app, event.mechanism)

    def _split(self, app: App | None, message: Message, ask: Callable[[], Message]) -> Message:
        """Let a listed party answer by itself."""
        kind = message.metadata.message_type
        if not self.by_apps:
            raise RefusalError(refusals.REFUSED_MESSAGE, f"{kind}: only under --ldp-gate reports")
        proposal = _proposal(message.content) if kind in _EMBEDDED else None
        if app is None or not _may_answer(app, kind, proposal):
            raise _refusal(f"{kind} rests on an app that is not listed for it")
        return _as_replied(message, proposal, ask)


def listed_apps(node_config: _NodeConfig) -> frozenset[str]:
    """Return the digests that the policy lists now; none without a readable policy."""
    policy = _readable(node_config)
    return frozenset() if policy is None else frozenset(policy.apps)


def fixed_moment(node_config: _NodeConfig, kind: str) -> float | None:
    """Return the seconds after which a type of message is answered, if the policy fixes them."""
    policy = _readable(node_config)
    return None if policy is None else policy.answer_after.get(kind)


def _readable(node_config: _NodeConfig) -> Policy | None:
    with suppress(ConfigError):  # each message is refused for it
        return find_policy(node_config)
    return None


def _unproposed(message: Message) -> str | None:
    """Return the mechanism that may answer a message without a proposal.

    None if it has a proposal, not exactly one model, or another type.
    """
    content = message.content
    if PROPOSAL_KEY in content or len(content.array_records) != 1:
        return None
    return _UNPROPOSED.get(message.metadata.message_type)


def _unproposed_releases(policy: Policy, message: Message) -> dict[str, Release]:
    """Return the release of such a message, by its type.

    It is refused with ``REFUSED_POLICY`` if the policy states no price of an evaluation.
    """
    kind = message.metadata.message_type
    if kind == MessageType.TRAIN:
        return {kind: DPSGDRelease()}
    name = _UNPROPOSED[kind]
    try:
        return {kind: AccuracyRelease(policy.messages[kind][name].epsilon)}
    except KeyError:
        told = f"{name} may not answer a {kind!r} message"
        raise RefusalError(refusals.REFUSED_POLICY, told) from None
    except ValueError as error:
        raise RefusalError(refusals.REFUSED_POLICY, f"the price of {name}: {error}") from error


def _check_listed(app: App | None, mechanism: str) -> None:
    if app is None or not app.may_release(mechanism):
        raise _refusal(f"{mechanism} rests on an app that is not listed for it")


def _may_answer(app: App, kind: str, proposal: EmbeddingProposal | None) -> bool:
    if proposal is not None:
        return app.may_embed(proposal.mechanism.events()[0].mechanism)
    if kind == embedding.ALIGN:
        return any(map(app.may_embed, embedding.EMBEDDINGS))
    return app.may_learn(gradients=kind != embedding.PREPARE)


def _as_replied(
    message: Message, proposal: EmbeddingProposal | None, ask: Callable[[], Message]
) -> Message:
    """Answer with the bytes of the app's gate, if they have the form of such an answer."""
    kind = message.metadata.message_type
    try:
        reply = ask()
        if reply.has_error() and (reason := str(reply.error.reason)) in refusals.MEANINGS:
            return constant(reason, message)  # public facts, or that it failed
        payload = report_of(content_of(reply))
        _check_form(kind, payload, proposal)
    except Exception as error:
        _log.error("the app gave no answer to %s: %s", kind, cause_of(error))
        if kind == embedding.ALIGN:
            return release.failed(message, error)
        payload = b"" if proposal is None else _neutral(proposal)
    return release.report(payload, message)


def _check_form(kind: str, payload: bytes, proposal: EmbeddingProposal | None) -> None:
    if proposal is not None:
        if len(payload) != _length(proposal):
            raise WireError("length", "the report is of another length than its proposal's")
    elif kind == embedding.ALIGN:
        if len(payload) > _LONGEST_INTRODUCTION or set(json.loads(payload)) != _INTRODUCTION:
            raise WireError("fields", "the party says something else of itself than it should")
    elif payload:
        raise WireError("length", "an acknowledgement that is not empty")


def _proposal(content: RecordDict) -> EmbeddingProposal:
    try:
        proposal = EmbeddingProposal.from_fields(read_record(content, PROPOSAL_KEY))
        records, width = proposal.shape
        if records < 1:
            raise ValueError(f"block {proposal.block} is not in the table")
        if records * width > _MOST_ENTRIES:
            raise ValueError(f"a block of more than {_MOST_ENTRIES:,} entries")
        if not proposal.mechanism.events():
            raise ValueError("a release that costs nothing")
        release.check_storable(_length(proposal))
        return proposal
    except (WireError, ValueError) as error:
        raise RefusalError(refusals.REFUSED_PROPOSAL, str(error)) from error


def _length(proposal: EmbeddingProposal) -> int:
    return embedding.embeddings_length(proposal.mechanism, proposal.shape[0])


def _neutral(proposal: EmbeddingProposal) -> bytes:
    """Return a block by the neutral law, for an app that died."""
    drawn = proposal.mechanism.randomize(None, RandomSource.from_os(), proposal.shape)
    return embedding.encode_embeddings(drawn, proposal.mechanism)


def _refusal(detail: str) -> RefusalError:
    return RefusalError(refusals.REFUSED_APP, detail)


@dataclass(frozen=True)
class PaidReports:
    """Sends the ledger's report, or a neutral one where it holds none.

    Every message that the app saw is charged when this returns, by the app or here. Types of
    message without a release are refused before the app sees them.

    Parameters
    ----------
    releases : mapping of str to Release
        Readers of proposals, by type of message.
    """

    releases: Mapping[str, Release] = field(default_factory=lambda: RELEASES)
    #: One for all messages: the policy that was named first stays the only one.
    authorizer: OwnerAuthorizer = field(default_factory=OwnerAuthorizer, init=False)

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer with the sealed report, or with a constant error."""
        try:
            return Message(self._sealed(message, context, call_next), reply_to=message)
        except Exception as error:
            return without_report(message, error)

    def _sealed(self, message: Message, context: Context, app: ClientAppCallable) -> RecordDict:
        opened = open_proposal(self.releases, message)
        if opened.request(message.metadata).analyzer_key is not None:
            told = "of a ciphertext nobody here sees what an app sealed: start --ldp-gate privatize"
            raise RefusalError(refusals.REFUSED_PROPOSAL, told)
        text = "the app gave no report: %s"
        replied = release.or_none(lambda: content_of(app(message, context)), text)
        request = opened.request(message.metadata)
        # First the charge: if the app was refused, so is this, with the same constant.
        with closing(self._permit(request, context)) as permit:
            going_on = opened.with_permit(permit)
            content = going_on.content(self._settled(permit, going_on))
        if replied is not None and replied != content:
            _log.warning("the app's reply is not what the ledger holds, which leaves in its place")
        return content

    def _settled(self, permit: Permit, opened: OpenRelease) -> bytes:
        """Return the stored report, or a neutral one that is stored first."""
        stored = permit.stored
        if stored is None:
            _log.error("the ledger holds no report of the app's")
        else:
            try:
                opened.check_form(stored)
                return stored
            except WireError as error:
                _log.error("the ledger holds what is no report: %s", error)
        if permit.timing.is_simulation:
            raise ReleaseError("simulation: the app failed, or did not charge its report")
        permit.timing.failed()
        payload = opened.neutral(RandomSource.from_os())
        if stored is None:
            # What ends with the answer does so for messages that are underway, too.
            permit.keep(payload, True)
        return payload

    def _permit(self, request: ReleaseRequest, context: Context) -> Permit:
        """Find or make the charge; continue one that the app's gate left without a report.

        Otherwise a refusal would show that the app was killed. Nothing that it drew has left.
        """
        try:
            return self.authorizer.authorize(request, context)
        except RefusalError as refusal:
            if refusal.code != refusals.REFUSED_REPEAT:
                raise
        return self.authorizer.resume(request, context)


def without_report(message: Message, error: Exception) -> Message:
    """Return the constant answer of a gate that refused or failed; the log says why."""
    if not isinstance(error, RefusalError):
        return release.failed(message, error)
    _log.warning("refused: %s", cut_middle(str(error)))
    return constant(error.code, message)


def report_of(content: RecordDict) -> bytes:
    """Return the report of a reply that is one report and nothing else; ReleaseError otherwise."""
    record = content.get(REPORT_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord) or set(record) != {PAYLOAD_KEY}:
        raise ReleaseError("the app's reply is not one report and nothing else")
    payload = record[PAYLOAD_KEY]
    if not isinstance(payload, bytes):
        raise ReleaseError("the app's report is not bytes")
    return payload


@dataclass(frozen=True)
class FormatChecked:
    """A gate whose answers are checked once more before they leave.

    Parameters
    ----------
    gate : Mod
        Builds the answers.
    """

    gate: Mod

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Answer as the gate does, or with the constant failure."""
        opened = None
        with suppress(RefusalError):  # before the gate: what it makes of it is its own
            opened = open_proposal(RELEASES, message)
        answer = self.gate(message, context, call_next)
        if answer.has_error():
            return answer
        try:
            if opened is None:
                raise WireError("record", "a report that answers no proposal")
            opened.check_form(report_of(answer.content))
        except Exception:
            _log.exception("no report leaves: the gate's answer is none")
            return constant(refusals.FAILED, message)
        return answer

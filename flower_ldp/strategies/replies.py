"""Reply validation: each reply is judged by itself; a bad one is counted and left out."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flower_ldp import refusals
from flower_ldp.errors import WireError, one_line, quoted
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

_log = logging.getLogger("flower_ldp")
_flwr_log = logging.getLogger("flwr")
_REJECTED = "rejected-"

#: Refusals that a gate sends before anything is charged.
UNCHARGED = frozenset(one for one in refusals.HINTS if refusals.MEANINGS[one].stage == "before")
#: How much of what a client sent is quoted in a log line.
_MOST_QUOTED = 300
ReportT = TypeVar("ReportT")
Metrics: TypeAlias = dict[str, int | float]


class OnceLogger:
    """Logs each kind of complaint once per run."""

    def __init__(self) -> None:
        self.learned = False
        self._said: set[str] = set()

    def say(self, kind: str, text: str) -> None:
        """Warn, unless of this kind before."""
        if kind in self._said:
            _log.debug("%s", text)
            return
        self._said.add(kind)
        _log.warning("%s (what is like it is counted, and not logged again)", text)

    def hint(self, kind: str, text: str) -> None:
        """Log a hint to Flower's log once."""
        if f"hint {kind}" not in self._said:
            self._said.add(f"hint {kind}")
            _flwr_log.warning(text)


class ReplyValidator:
    """Decodes replies one by one and counts the rejected ones by reason.

    ``uncharged`` lists nodes that refused before the charge, ``raw`` nodes without a gate.
    """

    def __init__(self, expected_nodes: Iterable[int], complaints: OnceLogger | None = None) -> None:
        self._waiting = set(expected_nodes)
        self.asked = len(self._waiting)
        self.complaints = OnceLogger() if complaints is None else complaints
        self.accepted = 0
        self.rejected: Counter[str] = Counter()
        self.uncharged: list[int] = []
        self.raw: list[int] = []
        self.rehearsed: Counter[str] = Counter()

    def decode(
        self, replies: Iterable[Message], decoder: Callable[[bytes], ReportT]
    ) -> Iterator[ReportT]:
        """Yield the decoded reports of good replies."""

        def opened(reply: Message) -> ReportT:
            if is_raw(reply.content):
                self.raw.append(reply.metadata.src_node_id)
            return decoder(payload_of(reply.content))

        return self.read(replies, opened)

    def read(
        self, replies: Iterable[Message], reader: Callable[[Message], ReportT]
    ) -> Iterator[ReportT]:
        """Yield results of replies without a WireError."""
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                self._check(reply)
                report = reader(reply)
            except WireError as error:
                self.rejected[error.reason] += 1
                kind = "raw" if node in self.raw else error.reason
                self.complaints.say(kind, f"reply of node {node} left out: {error}")
                continue
            self.accepted += 1
            self.complaints.learned = True
            yield report

    def metrics(self) -> Metrics:
        """Return ``accepted``, ``rejected`` and ``rejected-<reason>``."""
        rejected = {f"{_REJECTED}{one}": count for one, count in sorted(self.rejected.items())}
        return {"accepted": self.accepted, "rejected": self.rejected.total(), **rejected}

    def _check(self, reply: Message) -> None:
        node = reply.metadata.src_node_id
        if node in self._waiting:
            self._waiting.discard(node)
            if reply.has_error():
                raise self._error(node, reply.error.reason or "")
        elif reply.has_error():  # the SuperLink answers so, in its own name, for a lost node
            raise WireError("error", one_line(reply.error.reason or "", _MOST_QUOTED))
        else:
            raise WireError("sender", "not asked this round, or has answered before")

    def _error(self, node: int, text: str) -> WireError:
        reason, detail = text, one_line(text, _MOST_QUOTED)
        if text == refusals.NO_PROPOSAL:
            reason = refusals.REFUSED_PROPOSAL
        elif text.startswith(f"{refusals.REFUSED_REHEARSAL}:"):
            reason = refusals.REFUSED_REHEARSAL
            detail = one_line(text.removeprefix(f"{reason}:").strip(), _MOST_QUOTED)
            self.rehearsed[detail] += 1
        if reason in UNCHARGED:
            self.uncharged.append(node)
        if reason not in refusals.HINTS:
            return WireError("error", detail)
        return WireError(reason, "" if detail == reason else detail)


def is_raw(content: RecordDict) -> bool:
    """Return whether no gate made a reply: it has content and no report."""
    return len(content) > 0 and REPORT_KEY not in content


def payload_of(content: RecordDict) -> bytes:
    """Return the packed report; WireError if the reply holds anything else."""
    if is_raw(content):
        raise WireError(
            "record",
            f"a raw reply, {quoted(list(content))}: its app has no LdpMod (mods=[LdpMod(...)]), "
            "so nothing of it is private",
        )
    record = content.get(REPORT_KEY)
    if len(content) != 1 or not isinstance(record, ConfigRecord):
        raise WireError(
            "record",
            f"expected one {REPORT_KEY!r} record and no other, found {quoted(list(content))}: "
            "LdpMod must be the first of the app's mods",
        )
    payload = record.get(PAYLOAD_KEY)
    if len(record) != 1 or not isinstance(payload, bytes):
        raise WireError("record", f"expected one bytes field {PAYLOAD_KEY!r}")
    return payload


class RunStopped(RuntimeError):  # noqa: N818  # a decision about the run
    """Further rounds would be useless. The text says why and what to do."""


def raise_if_unproductive(replies: ReplyValidator, server_round: int) -> None:
    """Raise RunStopped for a run that is set up wrongly; else log hints.

    A run stops if raw replies outnumber reports and refusals, or if nothing was learned and clients
    refuse with one code. Either needs more than half of the asked clients.
    """
    codes = filter(refusals.is_code, replies.rejected)
    refused = Counter({code: replies.rejected[code] for code in codes})
    half = replies.asked / 2
    if len(replies.raw) > max(replies.accepted + refused.total(), half):
        raise RunStopped(
            f"round {server_round}: {len(replies.raw)} clients answered with raw replies and "
            f"{replies.accepted} with private reports. {raw_hint(replies.raw)} The run stops so "
            "that no more raw models cross the network"
        )
    if not replies.complaints.learned and max(refused.values(), default=0) > half:
        causes = _causes(Counter(dict(refused.most_common(1))))
        said = [text for text, count in replies.rehearsed.items() if count > half]
        raise RunStopped(f"round {server_round}: no report came. {': '.join([causes, *said])}")
    if replies.raw:
        _flwr_log.error(raw_hint(replies.raw))
    for reason in replies.rejected:
        if replies.accepted == 0 and reason in refusals.HINTS:
            replies.complaints.hint(reason, f"clients answer {reason}: {refusals.HINTS[reason]}")


def raw_hint(nodes: list[int]) -> str:
    """Return a text on raw replies and their remedy."""
    first = ", ".join(map(str, nodes[:5])) + (", ..." if len(nodes) > 5 else "")
    return (
        f"The app of clients {first} has no LdpMod: write ClientApp(mods=[LdpMod(...)]). What they "
        "sent is not private, and no epsilon is counted for it."
    )


def check_result(result: Result, asked: Mapping[str, int]) -> None:
    """Raise RunStopped for a run without a model or a usable report."""
    trains, evaluates = asked.get(MessageType.TRAIN, 0), asked.get(MessageType.EVALUATE, 0)
    trained, evaluated = result.train_metrics_clientapp, result.evaluate_metrics_clientapp
    if rejected := _counts(trained) + _counts(evaluated):
        _flwr_log.warning("replies rejected in this run: %s", _listed(rejected, {}, ", "))
    if trains and not result.arrays:
        causes = _causes(_counts(trained))
        raise RunStopped(f"no round gave a model, and there is none to save. {causes}")
    # What a strategy of another package returns counts as usable: it has no such number.
    if evaluates and not any(metrics.get("accepted", 1) for metrics in evaluated.values()):
        text = f"no evaluation had a usable report. {_causes(_counts(evaluated))}"
        if not trains:
            raise RunStopped(text)
        _flwr_log.error(text)


def _causes(found: Counter[str]) -> str:
    if not found:
        return "No reply was rejected, and none was of use."
    return f"Replies rejected: {_listed(found, refusals.HINTS, '; ')}"


def _counts(rounds: Mapping[int, MetricRecord]) -> Counter[str]:
    found: Counter[str] = Counter()
    for metrics in rounds.values():
        for name, count in metrics.items():
            if name.startswith(_REJECTED) and isinstance(count, int | float):
                found[name.removeprefix(_REJECTED)] += int(count)
    return found


def _listed(found: Counter[str], hints: Mapping[str, str], between: str) -> str:
    return between.join(
        f"{reason} {count:,} times" + (f": {hints[reason]}" if reason in hints else "")
        for reason, count in found.most_common()
    )

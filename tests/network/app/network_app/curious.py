"""Strategies that write down what they ask for and all that they receive."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flower_ldp.strategies import LaplaceEvalStrategy, SignDSStrategy


@dataclass
class Transcript:
    """Replies as text, and reports with the proposals that they answer."""

    replies: list[str] = field(default_factory=list)
    exchanges: list[dict[str, Any]] = field(default_factory=list)

    def ask(self, messages: Iterable[Message]) -> list[Message]:
        """Write down what is asked of all nodes alike."""
        kept = list(messages)
        if kept and "ldp.proposal" in kept[0].content:
            fields = dict(kept[0].content["ldp.proposal"])
            kind = kept[0].metadata.message_type
            exchange = {"type": kind, "proposal": fields, "payloads": []}
            self.exchanges.append(json.loads(json.dumps(exchange)))
        return kept

    def hear(self, server_round: int, replies: Iterable[Message]) -> list[Message]:
        """Write down the replies."""
        kept, reports = list(replies), 0
        for reply in kept:
            content = f"{reply.error}" if reply.has_error() else f"{dict(reply.content)!r}"
            kind = reply.metadata.message_type
            self.replies.append(f"round {server_round} {kind} {vars(reply.metadata)} {content}")
            if not reply.has_error() and "ldp.report" in reply.content:
                payload = reply.content["ldp.report"]["payload"]
                self.exchanges[-1]["payloads"].append(payload.hex())
                reports += 1
        if kept:
            kind = kept[0].metadata.message_type
            print(f"round {server_round} {kind}: {reports} reports", flush=True)
        return kept


class CuriousSignDS(SignDSStrategy):
    """Keeps a transcript of training."""

    transcript: Transcript
    insists = False

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write the proposal down."""
        self._forget()
        return self.transcript.ask(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write the replies down, then aggregate them."""
        found = super().aggregate_train(server_round, self.transcript.hear(server_round, replies))
        self._forget()
        return found

    def _forget(self) -> None:
        """Forget who answered raw: a server need not keep to what the package does."""
        if self.insists:
            self.proposals._raw.clear()


class CuriousEvaluation(LaplaceEvalStrategy):
    """Keeps a transcript of the evaluations."""

    transcript: Transcript

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Write the proposal down."""
        return self.transcript.ask(super().configure_evaluate(server_round, arrays, config, grid))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Write the replies down, then score them."""
        return super().aggregate_evaluate(server_round, self.transcript.hear(server_round, replies))


class CuriousFedAvg(FedAvg):
    """Keeps a transcript of training."""

    transcript: Transcript

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Write the replies down, then aggregate them."""
        return super().aggregate_train(server_round, self.transcript.hear(server_round, replies))

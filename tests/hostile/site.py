"""A site with planted secrets, an app that is made to show them, and the server that asks.

The data is a row of bits. The server's model says which bit to look at and in which way the app
is to show it, as a crafted model makes an honest app overflow on one client's data and not on
another's. Everything between is as in a deployment: ``ClientApp``, ``LdpMod``, the owner's policy
and a ledger on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from scipy.stats import binom

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.mechanisms import SignDS
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.privacy import Unit
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY
from tests.fixtures import context, message, proposal

#: Probability that a sound gate is called unsound.
CHANCE = 1e-6
DIMENSION = 300
POLICY = """
data_id: ward-7
ledger: spent.sqlite
mode: deployment
messages:
  train:
    signds: {{epsilon: 1.0}}
budgets:
  client:
    life: {{epsilon: {life}}}
"""


class Stop(BaseException):
    """What an app may raise past every ``except Exception``."""


def _raise(error: BaseException) -> NoReturn:
    raise error


def _reply(sent: Message, update: Any) -> Message:
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(update)})}), reply_to=sent)


def _honest(sent: Message, told: bool) -> Message:
    return _reply(sent, np.full(DIMENSION, 1.0 if told else -1.0, dtype=np.float32))


def _regrouped(sent: Message) -> Message:
    sent.metadata.group_id = "the bit is set"
    return _honest(sent, True)


def _emptied(sent: Message) -> Message:
    sent.content.clear()
    return _honest(sent, True)


#: What the app does where the bit is set; elsewhere it answers as it should.
WAYS: dict[str, Callable[[Message], Any]] = {
    "an exception": lambda _: _raise(ZeroDivisionError("of this client's data")),
    "an exit": lambda _: _raise(SystemExit(3)),
    "an exception of no Exception": lambda _: _raise(Stop()),
    "an error reply": lambda sent: Message(Error(code=7, reason="the bit"), reply_to=sent),
    "no message": lambda _: None,
    "no content": lambda sent: Message(RecordDict(), reply_to=sent),
    "not a number": lambda sent: _reply(sent, np.full(DIMENSION, np.nan, dtype=np.float32)),
    "another shape": lambda sent: _reply(sent, np.zeros(DIMENSION + 1, dtype=np.float32)),
    "another type": lambda sent: _reply(sent, np.zeros(DIMENSION, dtype=np.int64)),
    "the message's group": _regrouped,
    "the message's content": _emptied,
    "the update": lambda sent: _honest(sent, True),
}


@dataclass
class Site:
    """One client of a deployment.

    Parameters
    ----------
    folder : Path
        Of the policy and the ledger.
    bits : sequence of bool
        The data.
    life : float
        The budget.
    mod : Mod
        Guards the app.
    """

    folder: Path
    bits: Sequence[bool]
    life: float = 1.0
    mod: Mod = field(default_factory=lambda: LdpMod(train=SignDSRelease()))
    called: int = 0

    def __post_init__(self) -> None:
        (self.folder / "policy.yaml").write_text(POLICY.format(life=self.life))
        Ledger.open(self.folder / "spent.sqlite", create=True).close()
        self._app = ClientApp(mods=[self.mod])
        self._app.train()(self._train)

    def ask(self, name: str, epsilon: float, bit: int, way: int) -> Message:
        """Return what arrives when the server asks about a bit, in one of the ways."""
        model = {"w": np.zeros(DIMENSION, dtype=np.float32)}
        model["w"][:2] = bit, way
        sent = message(proposal(model, SignDS(epsilon=epsilon, k=0.2)), message_id=name)
        return self._app(sent, self.context())

    def context(self) -> Context:
        """Return the node's context, which names the policy."""
        found = context()
        found.node_config["ldp-policy"] = str(self.folder / "policy.yaml")
        return found

    def _train(self, sent: Message, _: Context) -> Any:
        self.called += 1
        asked = next(iter(sent.content.array_records.values()))["w"].numpy()
        told = self.bits[int(asked[0])]
        return list(WAYS.values())[int(asked[1])](sent) if told else _honest(sent, told)

    def spent(self) -> float:
        """Return the ledger's total for the client."""
        with Ledger.open(self.folder / "spent.sqlite") as ledger:
            return float(ledger.totals("ward-7")[Unit.CLIENT].epsilon_text)

    def counts(self) -> dict[str, int]:
        """Return the ledger's counters."""
        with Ledger.open(self.folder / "spent.sqlite") as ledger:
            return ledger.counts("ward-7")


def seen(reply: Message) -> tuple[object, ...]:
    """Return all that arrives but the report's bytes, the time and the reply's own identity."""
    where = reply.metadata
    around = (where.run_id, where.group_id, where.message_type, where.src_node_id, where.ttl > 0)
    if reply.has_error():
        return ("error", reply.error.code, reply.error.reason, *around)
    held = tuple((key, *sorted(record)) for key, record in sorted(reply.content.items()))
    return ("content", held, len(report(reply)), *around)


def report(reply: Message) -> bytes:
    """Return the bytes of a report."""
    payload = reply.content.config_records[REPORT_KEY][PAYLOAD_KEY]
    if not isinstance(payload, bytes):
        raise TypeError(f"a report is bytes, got {type(payload).__name__}")
    return payload


def guesses(replies: Sequence[Sequence[Message]]) -> list[bool]:
    """Return the server's guess of each bit from all replies to questions about it.

    Bits whose replies ever look other than most are set; where all look alike, the signs decide.
    """
    usual = Counter(seen(reply) for row in replies for reply in row).most_common(1)[0][0]
    unlike = [any(seen(reply) != usual for reply in row) for row in replies]
    return unlike if any(unlike) else [sum(map(_sign, row)) > 0 for row in replies]


def _sign(reply: Message) -> int:
    dim_out = SignDS(epsilon=0.001, k=0.2).plan(DIMENSION).dim_out
    return int(decode_report(report(reply), dimension=DIMENSION, dim_out=dim_out, has_bit=False)[1])


def most_right(epsilon: float, bits: int) -> int:
    """Return how many uniform bits can be guessed from a release, but for a chance of 1e-6.

    If a release is epsilon-LDP, it is epsilon-close to one that does not depend on the data, from
    which any guess is right in a half of the bits, independently: k or more are with probability
    at most exp(epsilon) P(Binomial(bits, 1/2) >= k).
    """
    k = np.arange(bits + 1)
    bound = np.exp(epsilon) * binom.sf(k - 1, bits, 0.5)
    return int(k[bound >= CHANCE].max())

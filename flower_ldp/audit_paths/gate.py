"""The case of the gate: what arrives at the server, whatever it is, under two data sets.

A client's data decides what its app does: what it trains, whether it fails. So the inputs here
are two data sets, and the outcome is the whole of what a server gets: a report, or an error
with its code and its reason. An event may be that an error came at all, which an app that raises
must not lead to. Everything between is as in a deployment: a ``ClientApp`` behind ``LdpMod``, the
owner's policy and ledger, the packed report, and the server's strict decoding of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from numpy.typing import NDArray

from flower_ldp.audit import Case, Contrast
from flower_ldp.audit.cases import claim
from flower_ldp.audit_paths.owner import (
    AsDeployed,
    AuditOwner,
    Outcome,
    error_of,
    score_of_else,
)
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.errors import WireError
from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.strategies.replies import payload_of
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal

#: Examples in rows; the app trains to their mean.
DataSet = NDArray[np.float32]

#: Entries of the model.
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
        What the server proposes; their sum is the claim.
    mod : Flower mod, optional
        What guards the app; :class:`~flower_ldp.clients.LdpMod`, as in a deployment, if left out.
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
    served = _Round(proposal, mod or LdpMod(train=SignDSRelease(), admission=AsDeployed()))
    score = _scores(sampled.statistic, proposed)
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
    """One server and one client, and all that lies between them."""

    def __init__(self, proposal: UpdateProposal[SignDSRound], mod: Mod) -> None:
        self._proposal = proposal
        self._owner = AuditOwner()
        self._data: DataSet = np.zeros((1, DIMENSION), dtype=np.float32)
        self._app = ClientApp(mods=[mod])
        self._app.train()(self._train)

    def answer(self, data: DataSet, rng: RandomSource) -> Outcome:
        """Return what arrives of one round; the gate draws for itself, not from ``rng``."""
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


def _scores(
    statistic: Callable[[Sequence[Any]], Any], mechanism: SignDSRound
) -> Callable[[Sequence[Outcome]], Any]:
    """Return the scores of reports as they are, and those of all else far above them."""

    def score(outcome: Outcome) -> float:
        kind, payload = outcome
        if not isinstance(payload, bytes) or kind != "report":
            return score_of_else(outcome)
        return float(statistic([mechanism.decode(payload, DIMENSION)])[0])

    return lambda outcomes: np.array([score(one) for one in outcomes])

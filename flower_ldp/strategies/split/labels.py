"""Labels for the parties: randomized once, sent once, and all that bottoms are trained on.

Parties then train where their features are, and no feature leaves them for it. A label costs
the epsilon of its randomizer, in all: what is randomized lies in the ledger of the labels'
holder, beside its charge, and is given to every party and run alike. Randomizing again would
pay again. It protects labels from the parties; their holder, which runs the top, has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flower_ldp.labels.stages import RandomizedLabels
from flower_ldp.mechanisms.randomized_response import KaryResponse, check_labels
from flower_ldp.strategies.split.align import AlignedParty
from flower_ldp.strategies.split.exchange import Exchange, payloads
from flower_ldp.wire.embedding import CHANNEL_KEY, LABELS_KEY, PREPARE, TableTerms
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.records import Records


@dataclass(frozen=True)
class NoisyLabels:
    """Labels as parties get them, and as anyone may have them.

    Parameters
    ----------
    private : RandomizedLabels
        What :func:`~flower_ldp.clients.private_labels` returned for all labels of the training
        table, in the order of the ids: randomized once, charged to the ledger of whoever holds
        the labels, and the same in every run.
    """

    private: RandomizedLabels

    @property
    def response(self) -> KaryResponse:
        """The channel, which parties correct for. Its epsilon is what a label costs.

        Raises
        ------
        ValueError
            If another mechanism made the labels.
        """
        mechanism = self.private.mechanism
        # Parties are sent an epsilon and a number of categories, and make the channel of them.
        channel = KaryResponse(
            mechanism.epsilon, mechanism.categories, mechanism.name, mechanism.unit
        )
        if channel != mechanism:
            raise ValueError(f"parties correct for KaryResponse, not for {mechanism!r}")
        return channel

    def check(self, records: int) -> None:
        """Raise ValueError unless all records have a label, by a response parties correct for."""
        labels = check_labels("labels", self.private.reports, self.response.categories)
        if labels.shape != (records,):
            raise ValueError(f"labels must be {records}, got shape {labels.shape}")
        if not np.array_equal(self.private.members, np.arange(records)):
            raise ValueError("labels must be of all records, in the order of the ids")

    def statement(self) -> str:
        """Say what a label costs, and where that stands."""
        paid = self.private.account
        return f"labels: epsilon {self.response.epsilon:g} per label, in all; " + (
            f"charged to {paid}" if paid else "charged in no ledger"
        )


#: The first name of :class:`NoisyLabels`: the same class, for good.
ToldLabels = NoisyLabels


def send_labels(
    exchange: Exchange,
    parties: Sequence[AlignedParty],
    terms: TableTerms,
    records: Records,
    noisy: NoisyLabels,
) -> None:
    """Send the labels to all parties whose bottoms are not frozen, and wait until they trained.

    Raises
    ------
    PartyError
        If a party refuses or fails.
    """
    labels = noisy.private.reports.astype(np.int64)[records.order]
    channel = {"epsilon": float(noisy.response.epsilon), "categories": noisy.response.categories}
    content: dict[str, ConfigRecord | ArrayRecord] = {
        PROPOSAL_KEY: ConfigRecord({**terms.to_fields()}),
        CHANNEL_KEY: ConfigRecord({**channel}),
        LABELS_KEY: ArrayRecord({LABELS_KEY: Array(labels)}),
    }
    names = {party.node: party.name for party in parties if party.claim.kind != "public"}
    if names:
        payloads(exchange.ask(PREPARE, {node: RecordDict({**content}) for node in names}), names)

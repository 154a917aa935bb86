"""Labels for the parties: randomized once, sent once, and all that bottoms are trained on.

Parties then train where their features are, and no feature leaves them for it. A label costs
the epsilon of its randomizer, in all: what is randomized is kept by the label's holder and
given to every party and run alike. Randomizing again would pay again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flower_ldp.mechanisms.kary_response import KaryResponse, check_labels
from flower_ldp.strategies.split_align import AlignedParty
from flower_ldp.strategies.split_exchange import Exchange, payloads
from flower_ldp.wire.embedding import CHANNEL_KEY, LABELS_KEY, PREPARE, TableTerms
from flower_ldp.wire.proposal import PROPOSAL_KEY
from flower_ldp.wire.records import Records


@dataclass(frozen=True)
class ToldLabels:
    """Labels as they are told to parties.

    Parameters
    ----------
    labels : ndarray of int64, shape (records,)
        What ``response`` made of the true ones, in the order of the ids.
    response : KaryResponse
        The channel, which parties correct for. Its epsilon is what a label costs.
    """

    labels: NDArray[np.int64]
    response: KaryResponse

    def check(self, records: int) -> None:
        """Raise ValueError unless there is a label that the response can give, for each record."""
        if check_labels("labels", self.labels, self.response.categories).shape != (records,):
            raise ValueError(f"labels must be {records}, got shape {self.labels.shape}")


def tell(
    exchange: Exchange,
    parties: Sequence[AlignedParty],
    terms: TableTerms,
    records: Records,
    told: ToldLabels,
) -> None:
    """Send the labels to all parties whose bottoms are not frozen, and wait until they trained.

    Raises
    ------
    PartyError
        If a party refuses or fails.
    """
    labels = told.labels.astype(np.int64)[records.order]
    channel = {"epsilon": float(told.response.epsilon), "categories": told.response.categories}
    content: dict[str, ConfigRecord | ArrayRecord] = {
        PROPOSAL_KEY: ConfigRecord({**terms.to_fields()}),
        CHANNEL_KEY: ConfigRecord({**channel}),
        LABELS_KEY: ArrayRecord({LABELS_KEY: Array(labels)}),
    }
    names = {party.node: party.name for party in parties if party.claim.kind != "public"}
    if names:
        payloads(exchange.ask(PREPARE, {node: RecordDict({**content}) for node in names}), names)

"""Batches of sealed codewords, as honest clients and others make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flower_ldp.mechanisms import Codeword, RandomSource
from flower_ldp.shuffle.batch import Batch
from flower_ldp.shuffle.sealing import KEY_FIELD, RoundKey
from flower_ldp.wire.proposal import UpdateProposal, append_health, canonical

ENTRIES = 50
MECHANISM = Codeword(4.0, rotations=4).sized(ENTRIES)
RUN = 2**63 + 5


def text_of(
    key: RoundKey,
    *,
    mechanism: Codeword = MECHANISM,
    health: float | None = None,
    changed: Mapping[str, object] | None = None,
) -> str:
    """Return a proposal as client and strategy write it."""
    fields = UpdateProposal(mechanism, health).to_fields()
    stated = {KEY_FIELD: key.to_bytes().hex()}
    return canonical({**fields, "dimension": ENTRIES, **stated, **(changed or {})})


def reports_of(number: int, mechanism: Codeword = MECHANISM, seed: int = 0) -> list[bytes]:
    """Return reports of clients that agree."""
    rng, update = RandomSource.seeded(seed), np.arange(1.0, ENTRIES + 1.0)
    drawn = (mechanism.randomize(update, rng, ENTRIES) for _ in range(number))
    return [mechanism.encode(one, ENTRIES) for one in drawn]


def sealed(reports: Sequence[bytes], key: RoundKey, text: str) -> list[bytes]:
    return [key.seal(one, text) for one in reports]


def batch_of(key: RoundKey, number: int, **proposal: Any) -> Batch:
    """Return an honest batch; of proposals with a health bit, half of the bits are 1."""
    text = text_of(key, **proposal)
    reports = reports_of(number, proposal.get("mechanism", MECHANISM))
    if proposal.get("health") is not None:
        reports = [append_health(one, place % 2) for place, one in enumerate(reports)]
    return Batch(text, tuple(sealed(reports, key, text)))

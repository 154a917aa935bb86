"""Split (vertical) learning with torch: the extra ``torch`` is needed here."""

from __future__ import annotations

from flower_ldp.split.embedding import EmbeddingDP
from flower_ldp.split.party import TorchParty, weights_digest
from flower_ldp.split.top import ForwardCorrected, TorchTop

__all__ = ["EmbeddingDP", "ForwardCorrected", "TorchParty", "TorchTop", "weights_digest"]

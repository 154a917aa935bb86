"""Split (vertical) learning with torch: the extra ``torch`` is needed here."""

from __future__ import annotations

from flower_ldp.split.modules import EmbeddingDP, ForwardCorrected, TorchTop
from flower_ldp.split.party import TorchParty, weights_digest

__all__ = ["EmbeddingDP", "ForwardCorrected", "TorchParty", "TorchTop", "weights_digest"]

"""Split (vertical) learning with torch: the extra ``torch`` is needed here."""

from __future__ import annotations

from flower_ldp.split.embedding import EmbeddingDP

__all__ = ["EmbeddingDP"]

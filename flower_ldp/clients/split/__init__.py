"""Split learning on a client: embeddings of records, and the app of a feature party."""

from __future__ import annotations

from flower_ldp.clients.split.app import split_client_app
from flower_ldp.clients.split.embedding import EmbeddingRelease, Party

__all__ = ["EmbeddingRelease", "Party", "split_client_app"]

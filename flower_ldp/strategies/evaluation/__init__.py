"""Protected evaluation on the server: noisy rows or codes in, scores and their trust out."""

from __future__ import annotations

from flower_ldp.strategies.evaluation.codebooks import (
    ProxySupport,
    confidence_codebook,
    kmeans_codebook,
)
from flower_ldp.strategies.evaluation.rows import ProxyCodebook
from flower_ldp.strategies.evaluation.score_trust import (
    ScoreTrust,
    UntrustedScoreWarning,
    score_trust,
    warn_if_near_uniform,
)
from flower_ldp.strategies.evaluation.scores import (
    CALINSKI_HARABASZ_SCORE,
    SILHOUETTE_SCORE,
    ClusterScore,
)
from flower_ldp.strategies.evaluation.strategy import LaplaceEvalStrategy, ProtectedEvalStrategy

__all__ = [
    "CALINSKI_HARABASZ_SCORE",
    "SILHOUETTE_SCORE",
    "ClusterScore",
    "LaplaceEvalStrategy",
    "ProtectedEvalStrategy",
    "ProxyCodebook",
    "ProxySupport",
    "ScoreTrust",
    "UntrustedScoreWarning",
    "confidence_codebook",
    "kmeans_codebook",
    "score_trust",
    "warn_if_near_uniform",
]

"""Server side: Flower strategies that learn from private reports."""

from __future__ import annotations

from flower_ldp.strategies.codebooks import ProxySupport, confidence_codebook, kmeans_codebook
from flower_ldp.strategies.eval_rows import ProxyCodebook
from flower_ldp.strategies.evaluation import LaplaceEvalStrategy
from flower_ldp.strategies.gaussian import GaussianStrategy
from flower_ldp.strategies.score_trust import (
    ScoreTrust,
    UntrustedScoreWarning,
    score_trust,
    warn_if_near_uniform,
)
from flower_ldp.strategies.scores import (
    CALINSKI_HARABASZ_SCORE,
    SILHOUETTE_SCORE,
    ClusterScore,
)
from flower_ldp.strategies.server_optimizer import FixedLength, Momentum, ServerOptimizer
from flower_ldp.strategies.signds import SignDSStrategy
from flower_ldp.strategies.step_size import FixedStep, LearnedStep

__all__ = [
    "CALINSKI_HARABASZ_SCORE",
    "SILHOUETTE_SCORE",
    "ClusterScore",
    "FixedLength",
    "FixedStep",
    "GaussianStrategy",
    "LaplaceEvalStrategy",
    "LearnedStep",
    "Momentum",
    "ProxyCodebook",
    "ProxySupport",
    "ScoreTrust",
    "ServerOptimizer",
    "SignDSStrategy",
    "UntrustedScoreWarning",
    "confidence_codebook",
    "kmeans_codebook",
    "score_trust",
    "warn_if_near_uniform",
]

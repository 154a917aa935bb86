"""Server side: Flower strategies that learn from private reports."""

from flower_ldp.strategies.count_tables import CountTable, Estimate
from flower_ldp.strategies.counts import CountsQuery, CountTables
from flower_ldp.strategies.deadlines import NodesUnavailableError, grid_with_deadlines
from flower_ldp.strategies.dpsgd import DPSGDStrategy
from flower_ldp.strategies.evaluation import (
    BestModel,
    LaplaceEvalStrategy,
    ProtectedEvalStrategy,
    ProxyCodebook,
)
from flower_ldp.strategies.evaluation_scores import (
    CALINSKI_HARABASZ_SCORE,
    SILHOUETTE_SCORE,
    ClusterScore,
    ProxySupport,
    ScoreTrust,
    UntrustedScoreWarning,
    confidence_codebook,
    kmeans_codebook,
    score_trust,
    warn_if_near_uniform,
)
from flower_ldp.strategies.named import (
    CodewordStrategy,
    ExtensionStrategy,
    FixedStep,
    GaussianStrategy,
    LearnedStep,
    SignDSStrategy,
)
from flower_ldp.strategies.optimizers import (
    Adagrad,
    Adam,
    AgreedLength,
    FixedLength,
    Momentum,
    ServerOptimizer,
    Yogi,
)
from flower_ldp.strategies.replies import RunStopped
from flower_ldp.strategies.rounds import Health
from flower_ldp.strategies.sampling import ClientPool
from flower_ldp.strategies.split import SplitResult, SplitStrategy
from flower_ldp.strategies.split_exchange import (
    AlignedParty,
    GridExchange,
    LocalExchange,
    NoisyLabels,
    PartyError,
    ToldLabels,
)
from flower_ldp.strategies.split_query import EmbeddingQuery
from flower_ldp.strategies.split_tops import CodeTop
from flower_ldp.strategies.survival import LogRank, SurvivalCurve, log_rank, survival
from flower_ldp.strategies.training import TrainingStrategy

__all__ = [
    "CALINSKI_HARABASZ_SCORE",
    "SILHOUETTE_SCORE",
    "Adagrad",
    "Adam",
    "AgreedLength",
    "AlignedParty",
    "BestModel",
    "ClientPool",
    "ClusterScore",
    "CodeTop",
    "CodewordStrategy",
    "CountTable",
    "CountTables",
    "CountsQuery",
    "DPSGDStrategy",
    "EmbeddingQuery",
    "Estimate",
    "ExtensionStrategy",
    "FixedLength",
    "FixedStep",
    "GaussianStrategy",
    "GridExchange",
    "Health",
    "LaplaceEvalStrategy",
    "LearnedStep",
    "LocalExchange",
    "LogRank",
    "Momentum",
    "NodesUnavailableError",
    "NoisyLabels",
    "PartyError",
    "ProtectedEvalStrategy",
    "ProxyCodebook",
    "ProxySupport",
    "RunStopped",
    "ScoreTrust",
    "ServerOptimizer",
    "SignDSStrategy",
    "SplitResult",
    "SplitStrategy",
    "SurvivalCurve",
    "ToldLabels",
    "TrainingStrategy",
    "UntrustedScoreWarning",
    "Yogi",
    "confidence_codebook",
    "grid_with_deadlines",
    "kmeans_codebook",
    "log_rank",
    "score_trust",
    "survival",
    "warn_if_near_uniform",
]

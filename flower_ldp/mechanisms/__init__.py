"""Local randomizers and their estimators: numpy only, no Flower, torch or YAML.

:data:`MECHANISMS` names every mechanism of the package. The other layers' tables (codecs,
releases, audits, plans, sections of a configuration) are joined by these names.
"""

from __future__ import annotations

from flower_ldp.mechanisms.base import MECHANISMS, Mechanism
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan, NamedCodeword
from flower_ldp.mechanisms.embeddings import (
    BottomClaim,
    CodebookEmbedding,
    UnaryEncoding,
    best_accuracy,
)
from flower_ldp.mechanisms.example_sums import BoundedMean, ExampleCounts, ExampleMean
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.laplace import (
    Laplace,
    LaplacePlan,
    NoProtectionWarning,
    project_to_simplex,
)
from flower_ldp.mechanisms.magrr import MagRR, StepEstimate
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse, KaryResponse, RRWithPrior
from flower_ldp.mechanisms.signds import Selection, SelectionPlan, SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.subset_selection import SubsetSelection
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.mechanisms.training_plan import TrainingPlan

__all__ = [
    "MECHANISMS",
    "BinaryResponse",
    "BottomClaim",
    "BoundedMean",
    "CodebookEmbedding",
    "CodebookResponse",
    "Codeword",
    "CodewordPlan",
    "ExampleCounts",
    "ExampleMean",
    "Gaussian",
    "KaryResponse",
    "Laplace",
    "LaplacePlan",
    "MagRR",
    "Mechanism",
    "NamedCodeword",
    "NoProtectionWarning",
    "RRWithPrior",
    "RandomSource",
    "Selection",
    "SelectionPlan",
    "SignDS",
    "SmallTopSetWarning",
    "StepEstimate",
    "SubsetSelection",
    "Subspace",
    "TrainingPlan",
    "UnaryEncoding",
    "best_accuracy",
    "project_to_simplex",
]

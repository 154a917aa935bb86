"""Local randomizers and their estimators: numpy only, no Flower, torch or YAML."""

from __future__ import annotations

from flower_ldp.mechanisms.base import Mechanism
from flower_ldp.mechanisms.bounded_mean import BoundedMean
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.kary_response import KaryResponse
from flower_ldp.mechanisms.laplace import Laplace, NoProtectionWarning
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.mechanisms.magrr import MagRR, StepEstimate
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse
from flower_ldp.mechanisms.rr_with_prior import RRWithPrior
from flower_ldp.mechanisms.selection import Selection
from flower_ldp.mechanisms.signds import SelectionPlan, SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.simplex import project_to_simplex

__all__ = [
    "BinaryResponse",
    "BoundedMean",
    "CodebookResponse",
    "Gaussian",
    "KaryResponse",
    "Laplace",
    "LaplacePlan",
    "MagRR",
    "Mechanism",
    "NoProtectionWarning",
    "RRWithPrior",
    "RandomSource",
    "Selection",
    "SelectionPlan",
    "SignDS",
    "SmallTopSetWarning",
    "StepEstimate",
    "project_to_simplex",
]

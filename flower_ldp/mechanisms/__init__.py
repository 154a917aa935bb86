"""Local randomizers and their estimators: numpy only, no Flower, torch or YAML.

:data:`MECHANISMS` names every mechanism of the package; the other layers' tables use these names.
An extension's name (:func:`name_complaint`) must not resemble any of them, since policies and
ledgers hold it. It is plain ASCII, without a second form in Unicode.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from flower_ldp.errors import quoted
from flower_ldp.mechanisms.base import Mechanism, NoProtectionWarning, UpdateMechanism
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.codeword import Codeword, CodewordPlan, CodewordReport
from flower_ldp.mechanisms.embeddings import (
    BottomModelClaim,
    CodebookEmbedding,
    UnaryEncoding,
    best_accuracy,
)
from flower_ldp.mechanisms.example_sums import BoundedMean, ExampleMean
from flower_ldp.mechanisms.gaussian import Gaussian
from flower_ldp.mechanisms.gaussian_means import GaussianMeans
from flower_ldp.mechanisms.hadamard import Subspace
from flower_ldp.mechanisms.joint_counts import JointCounts
from flower_ldp.mechanisms.labels import LABEL_METHODS, RRWithPrior, SubsetSelection
from flower_ldp.mechanisms.laplace import (
    Laplace,
    LaplacePlan,
    project_to_simplex,
)
from flower_ldp.mechanisms.magrr import MagRR, StepEstimate
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.randomized_response import BinaryResponse, KaryResponse
from flower_ldp.mechanisms.regression_labels import RROnBins
from flower_ldp.mechanisms.signds import Selection, SelectionPlan, SignDS, SmallTopSetWarning
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.mechanisms.training_outlook import TrainingOutlook
from flower_ldp.mechanisms.training_plan import TrainingPlan

__all__ = [
    "MECHANISMS",
    "BinaryResponse",
    "BottomModelClaim",
    "BoundedMean",
    "CodebookEmbedding",
    "CodebookResponse",
    "Codeword",
    "CodewordPlan",
    "CodewordReport",
    "ExampleMean",
    "Gaussian",
    "GaussianMeans",
    "JointCounts",
    "KaryResponse",
    "Laplace",
    "LaplacePlan",
    "MagRR",
    "Mechanism",
    "NoProtectionWarning",
    "RROnBins",
    "RRWithPrior",
    "RandomSource",
    "Selection",
    "SelectionPlan",
    "SignDS",
    "SmallTopSetWarning",
    "StepEstimate",
    "SubsetSelection",
    "Subspace",
    "TrainingOutlook",
    "TrainingPlan",
    "UnaryEncoding",
    "UpdateMechanism",
    "best_accuracy",
    "project_to_simplex",
]

#: What randomizes a whole update: proposals, releases and the guarded node know these.
UPDATE_MECHANISMS: tuple[type[UpdateMechanism], ...] = (SignDSRound, Codeword, Gaussian)

#: Names in the events of the package's releases, and so in policies and ledgers; to each, what
#: else the same thing is called: a release, a section of a configuration, a proposal's field.
MECHANISMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys((kind.name for kind in UPDATE_MECHANISMS), ()),
        **{name: () for name, stages in LABEL_METHODS.items() if len(stages) == 1},
        **dict.fromkeys(("health", "bounded_mean", "example_mean"), ()),
        "counts": ("jointcounts",),
        **dict.fromkeys(("label_stages", "central_histograms", "codebook_embedding"), ()),
        **dict.fromkeys(("dpsgd", "bottom_training", "binary_response", "rr_on_bins"), ()),
        "gaussian": ("dpencrypt",),
        "magrr": ("magnitude",),
        "laplace": ("laplaceeval",),
        "codebook_response": ("codebook",),
        "kary_response": ("labeldp",),
        "embedding_dp": ("unary",),
    }
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


def name_complaint(name: object) -> str | None:
    """Return the reason why an extension may not have a name; None if it may."""
    if type(name) is not str or not _NAME.fullmatch(name):
        return (
            f"{quoted(name)} is no name of an extension: a letter, then letters, digits and '_', "
            "lower case, 64 at most"
        )
    plain = name.replace("_", "")
    for known, others in MECHANISMS.items():
        rest = name.removeprefix(known)
        # A variant, as laplace_2, would be read as the package's own.
        is_variant = rest != name and not rest[:1].isalpha()
        if is_variant or plain in (known.replace("_", ""), *others):
            return f"{quoted(name)} is a built-in mechanism's name: an extension overrides none"
    return None

"""Private training with torch and Opacus: the extra ``dpsgd``. Nothing else imports this."""

from __future__ import annotations

from flower_ldp.training.accuracy import private_accuracy
from flower_ldp.training.dpsgd import PrivateTraining, make_private
from flower_ldp.training.optimizer import ExactDPOptimizer
from flower_ldp.training.private import private_training
from flower_ldp.training.sampling import PoissonBatches

__all__ = [
    "ExactDPOptimizer",
    "PoissonBatches",
    "PrivateTraining",
    "make_private",
    "private_accuracy",
    "private_training",
]

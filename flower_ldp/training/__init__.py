"""Private training and evaluation with torch, for the gate. Nothing else imports this."""

from flower_ldp.training.auc import private_auc
from flower_ldp.training.estimators import private_fit, private_score
from flower_ldp.training.losses import Collated, fastai, hugging_face, lightning, supervised
from flower_ldp.training.private import private_accuracy, private_training
from flower_ldp.training.public_rows import public_agreement

__all__ = [
    "Collated",
    "fastai",
    "hugging_face",
    "lightning",
    "private_accuracy",
    "private_auc",
    "private_fit",
    "private_score",
    "private_training",
    "public_agreement",
    "supervised",
]

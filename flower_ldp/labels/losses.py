"""Losses for training on randomized labels: torch functions without state.

All are post-processing of reports that are already paid for. Arguments whose shapes differ raise
ValueError.
"""

import torch
from torch import Tensor
from torch.nn import functional


def plain_loss(logits: Tensor, reports: Tensor) -> Tensor:
    """Return the mean cross-entropy with the reports taken as labels; biased towards the uniform.

    Parameters
    ----------
    logits : Tensor of float, shape (n, k)
    reports : Tensor of int64, shape (n,)
        Labels, not sets of labels.
    """
    return functional.cross_entropy(logits, reports)


def forward_loss(logits: Tensor, likelihood: Tensor) -> Tensor:
    r"""Return :math:`-\log \sum_y p(y | x) P(\mathrm{report} | y)`, the mean over the reports.

    Its minimizer over all p is the true :math:`P(y | x)`, at any epsilon (Patrini et al. 2017,
    Theorem 2).

    Parameters
    ----------
    logits : Tensor of float, shape (n, k)
    likelihood : Tensor of float, shape (n, k)
        P(report | label y) in column y, from the mechanism's ``likelihood``, up to a positive
        factor for each row.
    """
    _same_shape("likelihood", likelihood, logits)
    joint = functional.log_softmax(logits, dim=1) + likelihood.log()
    return -torch.logsumexp(joint, dim=1).mean()


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with distributions as targets.

    Parameters
    ----------
    logits, targets : Tensor of float, shape (n, k)
        Rows of the targets add up to 1, as those of :func:`flower_ldp.labels.posterior`.
    """
    _same_shape("targets", targets, logits)
    return functional.cross_entropy(logits, targets)


def _same_shape(name: str, given: Tensor, logits: Tensor) -> None:
    if logits.ndim != 2 or given.shape != logits.shape:
        shapes = f"{tuple(given.shape)} and {tuple(logits.shape)}"
        raise ValueError(f"{name} must have the shape of two-dimensional logits, got {shapes}")

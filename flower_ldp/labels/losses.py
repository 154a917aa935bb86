r"""Losses for training on randomized labels: torch functions without state.

- :func:`plain_loss` takes the report for the label, and is biased towards the uniform.
- :func:`forward_loss` is :math:`-\log \sum_y p(y | x) P(\mathrm{report} | y)` (Patrini et al. 2017,
  Theorem 2). Its minimizer over all p is the true :math:`P(y | x)`, at any epsilon.
- :func:`soft_target_loss` takes posteriors as targets (:func:`flower_ldp.labels.posterior`).

All are post-processing of reports that are already paid for.
"""

import torch
from torch import Tensor
from torch.nn import functional


def plain_loss(logits: Tensor, reports: Tensor) -> Tensor:
    """Return the mean cross-entropy with the reports taken as labels.

    Parameters
    ----------
    logits : Tensor of float, shape (n, k)
    reports : Tensor of int64, shape (n,)
        Labels, not sets of labels.
    """
    return functional.cross_entropy(logits, reports)


def forward_loss(logits: Tensor, likelihood: Tensor) -> Tensor:
    """Return the mean negative log-probability of the reports.

    Parameters
    ----------
    logits : Tensor of float, shape (n, k)
    likelihood : Tensor of float, shape (n, k)
        P(report | label y) in column y, from the mechanism's ``likelihood``. A positive factor of a
        row only adds a constant to the loss.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    _same_shape("likelihood", likelihood, logits)
    joint = functional.log_softmax(logits, dim=1) + likelihood.log()
    return -torch.logsumexp(joint, dim=1).mean()


def soft_target_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy with distributions as targets.

    Parameters
    ----------
    logits, targets : Tensor of float, shape (n, k)
        Rows of the targets add up to 1.

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    _same_shape("targets", targets, logits)
    return functional.cross_entropy(logits, targets)


def _same_shape(name: str, given: Tensor, logits: Tensor) -> None:
    if logits.ndim != 2 or given.shape != logits.shape:
        shapes = f"{tuple(given.shape)} and {tuple(logits.shape)}"
        raise ValueError(f"{name} must have the shape of two-dimensional logits, got {shapes}")

r"""DP-SGD on a client's own data: paid for in the owner's ledger before it begins.

Abadi et al., "Deep Learning with Differential Privacy" (2016): each example's gradient is
clipped, their sum is noised, and only that moves the model. So the trained model, every step
of it and all that is made of it are (epsilon, delta)-differentially private for **one example
of the client's data, replaced by any other**. Nothing is promised about a client's data as
a whole. The release of the model at client level is a second charge to each example, unless the
owner's policy declares it post-processing.

The owner's policy governs, by the name ``dpsgd`` at unit example::

    messages:
      train:
        dpsgd: {epsilon: 1.0, delta: 1.0e-5, unit: example}
    budgets:
      example:
        life: {epsilon: 1.0, delta: 1.0e-5}

Each call is another training and is charged anew. docs/dpsgd.md says what is proved, what is
taken on trust and which accounting gives which noise.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context
from torch.utils.data import DataLoader, IterableDataset

from flower_ldp.accounting.dpsgd import SampledGaussian, noise_multiplier
from flower_ldp.clients.admission import Admission, ReleaseRequest
from flower_ldp.clients.owner import OwnerAdmission
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.training.batches import PoissonLoader, check_items_differ
from flower_ldp.training.draws import Draws
from flower_ldp.training.guard import GuardedModel, problems
from flower_ldp.training.optimizer import ExactDPOptimizer
from flower_ldp.training.sampling import PoissonBatches

_log = logging.getLogger("flower_ldp")

#: The policy's section for train messages governs.
MESSAGE_TYPE = "train"

# Clipping lengths whose squares, and whose grid of noise, doubles hold to all their digits.
_SHORTEST, _LONGEST = 1e-100, 1e100


@dataclass(frozen=True)
class PrivateTraining:
    """What to train with instead of what was given, and what was charged for it.

    Parameters
    ----------
    model : GuardedModel
        The model, with the gradient of each example (Opacus's ``GradSampleModule``). Its
        parameters are the given model's. It takes each batch once, in training mode.
    optimizer : ExactDPOptimizer
        Takes as many steps as were paid for, one for each batch that is drawn.
    loader : PoissonLoader
        Poisson batches, some of which may be empty; one row for each item.
    event : PrivacyEvent
        The charge.
    plan : SampledGaussian
        Noise multiplier, sampling rate and number of steps.
    """

    model: GuardedModel
    optimizer: ExactDPOptimizer
    loader: PoissonLoader
    event: PrivacyEvent
    plan: SampledGaussian


def make_private(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    context: Context,
    epsilon: float,
    delta: float,
    epochs: int,
    max_grad_norm: float,
    admission: Admission | None = None,
) -> PrivateTraining:
    """Charge a training to the owner's ledger and return what to train with.

    Train as usual: for each batch of the returned loader ``zero_grad``, loss (the mean of the
    examples' losses), ``backward``, ``step``.

    Parameters
    ----------
    model : torch.nn.Module
        In training mode, without layers that mix examples or keep what they see (BatchNorm).
    optimizer : torch.optim.Optimizer
        Of the model's parameters. It steps no more by itself.
    loader : DataLoader
        Its data set, batch size (the mean size of a batch), workers and collating are used.
        Items are collated one by one and must have one shape.
    context : Context
        The client app's. The node's operator names the policy and with it the ledger.
    epsilon, delta : float
        Of the whole training, per example, in [0.01, 30] and [1e-10, 0.5].
    epochs : int
        How many times round(n / batch size) steps are paid for; at least 1.
    max_grad_norm : float
        Length that an example's gradient is clipped to; in [1e-100, 1e100].
    admission : Admission, optional
        By default the data owner's policy and ledger.

    Returns
    -------
    PrivateTraining

    Raises
    ------
    RefusalError
        If the policy does not allow it or the budget is gone.
    ValueError
        If a parameter is wrong or the model cannot be trained so. Nothing was charged.
    """
    examples, expected = _sizes(loader)
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"epochs must be an integer of at least 1, got {epochs!r}")
    if not _SHORTEST <= max_grad_norm <= _LONGEST:
        raise ValueError(
            f"max_grad_norm must be in [{_SHORTEST:g}, {_LONGEST:g}], got {max_grad_norm}"
        )
    errors = problems(model)
    if errors:
        raise ValueError("the model cannot be trained so: " + "; ".join(errors))
    check_items_differ(loader.dataset)
    _check_parameters(model, optimizer)
    batches = max(1, round(examples / expected))
    steps, rate = batches * epochs, expected / examples
    noise = noise_multiplier(epsilon, delta, sample_rate=rate, steps=steps)
    event = PrivacyEvent("dpsgd", epsilon, delta, Unit.EXAMPLE)
    terms = {
        "mechanism": "dpsgd",
        "epsilon": float(epsilon),
        "delta": float(delta),
        "examples": examples,
        "batch-size": expected,
        "steps": steps,
        "max-grad-norm": float(max_grad_norm),
        "noise-multiplier": noise,
    }
    # A name of its own: the same message delivered again would train again, and pays again.
    request = ReleaseRequest(
        run_id=context.run_id,
        message_id=f"dpsgd:{RandomSource.from_os().random_bytes(16).hex()}",
        message_type=MESSAGE_TYPE,
        events=(event,),
        parameters=json.dumps(terms, sort_keys=True, separators=(",", ":")),
    )
    draws = Draws()
    poisson = PoissonLoader(loader, PoissonBatches(examples, expected, batches), draws)
    wrapped = GuardedModel(model, draws)
    private = ExactDPOptimizer(
        optimizer,
        noise_multiplier=noise,
        max_grad_norm=max_grad_norm,
        expected_batch_size=expected,
        steps=steps,
        draws=draws,
        check=wrapped.check_unchanged,
    )
    try:
        (OwnerAdmission() if admission is None else admission).admit(request, context).close()
    except BaseException:
        private.release()
        wrapped.to_standard_module()  # the model is as it was
        raise
    _log.info(
        "DP-SGD: noise multiplier %.4f, %d steps, sampling rate %.4g: epsilon %g, delta %g per "
        "example",
        noise,
        steps,
        rate,
        epsilon,
        delta,
    )
    return PrivateTraining(
        model=wrapped,
        optimizer=private,
        loader=poisson,
        event=event,
        plan=SampledGaussian(noise, rate, steps),
    )


def _check_parameters(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer of other parameters than the model's, or of none that learns."""
    known = {id(p) for p in model.parameters()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if any(id(p) not in known for p in held):
        raise ValueError("optimizer must be of the model's parameters only")
    if not any(p.requires_grad for p in held):
        raise ValueError("optimizer must have a parameter that can be trained")


def _sizes(loader: DataLoader[Any]) -> tuple[int, int]:
    """Return the number of examples and the mean size of a batch."""
    if loader.batch_size is None:
        raise ValueError("loader must have a batch size")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError("loader must have a data set that is read by index, not a stream")
    if not hasattr(loader.dataset, "__len__"):
        raise ValueError("loader must have a data set of known length")
    examples = len(loader.dataset)
    if not 1 <= loader.batch_size <= examples:
        raise ValueError(
            f"loader must have a batch size in [1, {examples}], got {loader.batch_size}"
        )
    return examples, loader.batch_size

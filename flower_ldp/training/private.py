"""Private training and accuracy by torch, within the charge of the message.

The gate releases only the model that :func:`private_training` made from the model sent, and the
noisy count of :func:`private_accuracy` (docs/dpsgd_release.md).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import nn

from flower_ldp.clients.session import (
    UNKNOWN,
    Arrays,
    CountSession,
    Data,
    RankingSession,
    TrainingSession,
    current_session,
)
from flower_ldp.errors import ReleaseError, quoted
from flower_ldp.isolation import Tensors
from flower_ldp.mechanisms.example_sums import check_bounds
from flower_ldp.mechanisms.random import Ints, RandomSource
from flower_ldp.training.gradients import RowLoss, RowModel, StepSum, grid_unit, noised_whole
from flower_ldp.training.losses import is_right
from flower_ldp.training.rows import Examples, Rows, shared

#: Makes the optimizer of a round, which begins anew, of the parameters that learn.
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
#: Entries that noise is drawn for at a time.
_BLOCK = 1 << 18


def private_training(
    context: Context,
    model: nn.Module,
    rows: Data,
    loss: RowLoss,
    *,
    optimizer: MakeOptimizer,
    like: Any,
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
    workers: int = 1,
    public_base: bool = False,
) -> RecordDict:
    """Train one round by the charged plan, and return the app's reply.

    The round starts from the model that the server sent, not from the given weights.

    Parameters
    ----------
    context : Context
        The client app's.
    model : torch.nn.Module
        With the names and shapes of the arrays sent. It holds the trained weights afterwards.
    rows : Data
        Rows read by index: tensors, tuples, dicts or objects. It must keep no state, such as a
        random generator. With ``workers`` it must open files in ``__getitem__``.
    loss : callable
        ``loss(model, row)`` of one row in the form of ``like``, as a batch of one: tensors are
        copies with a first axis of 1, and text is in lists of one.
        :mod:`~flower_ldp.training.losses` makes it for several libraries.
    optimizer : callable
        Makes the optimizer, for example ``lambda weights: torch.optim.SGD(weights, lr=0.1)``.
    like : Any
        A **public** row. A row without its entries, or with other types or shapes, counts as zero.
        Entries that it lacks are not read.
    groups : iterable of hashable, optional
        The patient of each row, if an example is a patient. A row without one counts as zero.
    max_rows : int
        Rows of a patient per step, drawn anew; in [1, 1,000].
    workers : int
        Processes that compute examples in parallel; more than 1 needs fork.
    public_base : bool
        Whether the message may lack frozen weights and buffers, as adapters without their base.
        The model's own count then: **no private data** may be in them.

    Returns
    -------
    RecordDict
        For the app's reply. The gate builds its own.

    Raises
    ------
    ReleaseError
        If no round was charged for this message, its steps were used before, groups contradict the
        policy, or model, loss or rows kept state of a row.
    ValueError
        If the model does not match the arrays sent, is not on the CPU or has buffers that training
        changes, or a number is outside its interval.
    """
    del context  # the round is found by the gate's own means
    session = current_session(TrainingSession)
    session.begin()
    check_groups(session.granted.example, groups)
    training = _Training(session, model, optimizer, public_base)
    read = Rows(rows, like, strict=session.rehearsal)
    asked = RowModel(model, loss, read, training.fixed, training.learning)
    asked.check(training.first())
    rng = RandomSource.from_os()
    # Of its own noise: at a fixed moment it is made while the training runs.
    session.noise_alone = lambda: training.run(None, RandomSource.from_os())
    examples = Examples(len(rows), groups, max_rows, session.granted.examples)
    step = StepSum(asked, session.granted.plan.clip, training.unit)
    rate = float(session.granted.plan.rate)
    with shared(step, workers) as compute:
        trained = training.run(lambda now: compute(now, examples.drawn(rate, rng)), rng)
    session.trained = trained
    # Copies: what the app's model does with them does not reach what leaves.
    copies = {name: torch.tensor(array) for name, array in trained.items()}
    model.load_state_dict(copies, strict=not public_base)
    record = ArrayRecord({name: Array(array) for name, array in trained.items()})
    weight = MetricRecord({"num-examples": session.granted.examples})
    return RecordDict({"arrays": record, "metrics": weight})


def check_groups(example: str, groups: object) -> None:
    """Raise ReleaseError unless groups are given exactly if an example is a patient."""
    if example != UNKNOWN and (groups is None) == (example == "patient"):
        raise ReleaseError(
            f"an example is a {example} by the owner's policy: groups= says whose each row is, and "
            "is given where an example is a patient and only there"
        )


def sent_tensors(
    sent: Arrays, model: nn.Module, public_base: bool = False
) -> dict[str, torch.Tensor]:
    """Return a message's arrays as the model's tensors; shared parameters appear once.

    With ``public_base`` only weights that learn are required, each by its first name.
    """
    state, twins = model.state_dict(), _twins(model)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    needed = learning if public_base else state.keys()
    odd = (needed - sent.keys()) | (sent.keys() - state.keys())
    odd = odd or {name for name in sent if tuple(state[name].shape) != sent[name].shape}
    if odd:
        base = not (public_base or sent.keys() - state.keys())
        advice = ". Of adapters alone, over a base that is public, say public_base=True"
        raise ValueError(
            f"arrays of the model and of the message differ: {quoted(sorted(odd))}"
            f"{advice if base else ''}"
        )
    return {
        twins.get(name, name): torch.from_numpy(np.array(array)).to(state[name].dtype)
        for name, array in sent.items()
        if twins.get(name) not in sent
    }


def _twins(model: nn.Module) -> dict[str, str]:
    first: dict[int, str] = {}
    named = [
        (name, first.setdefault(id(p), name))
        for name, p in model.named_parameters(remove_duplicate=False)
    ]
    return {name: one for name, one in named if name != one}


class _Training:
    def __init__(
        self,
        session: TrainingSession,
        model: nn.Module,
        optimizer: MakeOptimizer,
        public_base: bool = False,
    ) -> None:
        found, plan = sent_tensors(session.sent, model, public_base), session.granted.plan
        self.learning = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        if not self.learning:
            raise ValueError("the model must have a parameter that can be trained")
        self.fixed = {name: value for name, value in found.items() if name not in self.learning}
        self._session, self._optimizer, self._twins = session, optimizer, _twins(model)
        self._size = sum(session.sent[name].size for name in self.learning)
        #: The grid of the noise: of public numbers alone, also where other examples are found.
        self.unit = grid_unit(float(plan.noise), plan.length, self._size)

    def run(
        self, summed: Callable[[Tensors], torch.Tensor] | None, rng: RandomSource
    ) -> dict[str, NDArray[Any]]:
        """Take all steps and return the model; without data, by noise alone.

        The optimizer sees noisy gradients, and neither the model nor rows.
        """
        plan, examples = self._session.granted.plan, self._session.granted.examples
        proximal = self._session.proximal
        first = self.first() if proximal else {}
        weights = {name: nn.Parameter(one) for name, one in self.first().items()}
        stepping = self._optimizer(list(weights.values()))
        groups = getattr(stepping, "param_groups", ())
        known = {id(one) for group in groups for one in group["params"]}
        # One of model.parameters() would move nothing.
        if known and known.isdisjoint(map(id, weights.values())):
            raise ValueError("optimizer must be made of the weights given: lambda weights: ...")
        mean, sizes = plan.mean_size(examples), [p.numel() for p in weights.values()]
        for _ in range(plan.steps):
            now = {name: p.detach() for name, p in weights.items()}
            total = torch.zeros(self._size, dtype=torch.int64) if summed is None else summed(now)
            for (name, p), part in zip(weights.items(), total.split(sizes), strict=True):
                blocks = (noised_whole(one, self.unit, rng) / mean for one in part.split(_BLOCK))
                p.grad = torch.cat([one.to(p.dtype) for one in blocks]).reshape(p.shape)
                # FedProx's proximal term comes after clipping and noise.
                if proximal:
                    p.grad += proximal * (p.detach() - first[name])
            del total, part  # memory that the next step needs
            stepping.step()
            for p in weights.values():
                p.grad = None
        trained = {name: p.detach().cpu().numpy().copy() for name, p in weights.items()}
        sent, twins = self._session.sent, self._twins
        return {name: trained.get(twins.get(name, name), array) for name, array in sent.items()}

    def first(self) -> dict[str, torch.Tensor]:
        sent = self._session.sent
        return {name: torch.from_numpy(np.array(sent[name])) for name in self.learning}


def private_accuracy(
    context: Context,
    model: nn.Module,
    rows: Data,
    *,
    like: Any,
    right: RowLoss = is_right,
    worst: float = 0.0,
    best: float = 1.0,
    groups: Iterable[Hashable] | None = None,
    max_rows: int = 1,
    workers: int = 1,
    public_base: bool = False,
) -> RecordDict:
    """Count right predictions of the model that the server sent, and return the app's reply.

    With ``worst`` and ``best`` it is the mean of any bounded score, sent as a share: 0 is the worst
    and 1 the best. :class:`~flower_ldp.strategies.DPSGDStrategy` gives it in the score's units.

    Parameters
    ----------
    context, rows, like, groups, max_rows, workers, public_base
        As for :func:`~flower_ldp.training.private_training`. A patient counts once, by the mean
        over its drawn rows; a row that fails is wrong, or has the worst score.
    model : torch.nn.Module
        With the arrays sent, in evaluation mode.
    right : callable
        ``right(model, row)``, a number of a batch of one row. By default the target's class must
        have the largest output.
    worst, best : float
        **Public** bounds that scores are clipped to, such as 300 and 0 of an absolute error.

    Returns
    -------
    RecordDict
        For the app's reply, without the count. The gate builds its own.

    Raises
    ------
    ReleaseError
        If no evaluation was charged for this message, it was counted before, groups contradict the
        policy, or model, measure or rows kept state of a row.
    ValueError
        As for :func:`~flower_ldp.training.private_training`.
    """
    del context  # the evaluation is found by the gate's own means
    session = current_session(CountSession)
    check_bounds(min(worst, best), max(worst, best))

    def weigh(scores: Sequence[float | None]) -> Ints:
        # What is not a number counts as 0.
        found = [0.0 if one is None else (one - worst) / (best - worst) for one in scores]
        shares = [min(max(0.0, one), 1.0) for one in found]
        return np.array([session.mechanism.rounded(sum(shares) / max(1, len(shares)))])

    data = model, rows, like, groups, max_rows, workers, public_base
    (total,) = example_total(session, right, weigh, *data)
    session.finish(int(total))
    return RecordDict({"metrics": MetricRecord({"num-examples": session.mechanism.examples})})


def example_total(
    session: CountSession | RankingSession,
    measure: RowLoss,
    weigh: Callable[[Sequence[float | None]], Ints],
    model: nn.Module,
    rows: Data,
    like: Any,
    groups: Iterable[Hashable] | None,
    max_rows: int,
    workers: int,
    public_base: bool,
) -> Ints:
    """Return the **private** sum of examples' integers, int64.

    ``weigh`` makes them of the measures of one example's rows, None for a row that fails. Without
    rows they must be zeros. The other parameters are those of :func:`private_accuracy`.
    """
    check_groups(session.example, groups)
    read = Rows(rows, like, strict=session.rehearsal)
    state = sent_tensors(session.sent, model, public_base)
    asked = RowModel(model, measure, read, {})
    asked.check(state)

    def count(state: Tensors, examples: Sequence[Sequence[int]]) -> torch.Tensor:
        total = weigh([])
        with asked.passes() as passes:
            for one in examples:
                found = [asked.row(passes, state, index) for index in one]
                total = total + weigh([None if row is None else float(row) for row in found])
            asked.check_nothing_kept(passes)
        asked.log_failed()
        return torch.from_numpy(total)

    examples, rng = Examples(len(rows), groups, max_rows), RandomSource.from_os()
    with shared(count, workers) as compute:
        looked_at = [examples.rows(one, rng).tolist() for one in range(len(examples))]
        return compute(state, looked_at).numpy()

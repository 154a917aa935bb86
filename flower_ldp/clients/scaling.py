"""Private scaling: means of columns, released once under a name and kept.

**Guarantee**: epsilon per example and delta 0, or the delta that the policy allows them.
It does not cover a failure of the whole (``len(rows)``, ``groups``, memory): it is sealed, and the
run's other scaling and evaluations are refused. A row that fails affects its own example alone. A
killed process uses up the name.

The owner's policy allows it by the name ``example_mean``, at unit example (docs/dpsgd_release.md).
Variances and quantiles are read from :class:`~flower_ldp.strategies.CountsQuery`'s tables.
"""

import io
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients import charging
from flower_ldp.clients.keys import locked_key
from flower_ldp.clients.session import Data, by_group
from flower_ldp.errors import RefusalError
from flower_ldp.generators import Generators
from flower_ldp.mechanisms.embeddings import double_at_most
from flower_ldp.mechanisms.example_sums import ExampleMean
from flower_ldp.mechanisms.gaussian_means import GaussianMeans
from flower_ldp.mechanisms.laplace import check_epsilon
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction
from flower_ldp.refusals import REFUSED_POLICY, REFUSED_REPEAT
from flower_ldp.wire.proposal import canonical


def private_means(
    context: Context,
    rows: Data,
    *,
    lower: Sequence[float],
    upper: Sequence[float],
    epsilon: float,
    name: str = "means",
    groups: Iterable[Hashable] | None = None,
) -> NDArray[np.float64]:
    """Return the noisy mean of each column, float64, or the stored result.

    Each column gets Laplace noise of its part of epsilon. Where the policy allows ``example_mean``
    a delta, all columns get normal noise at once, if that has the smaller deviation. The public
    numbers decide: columns, epsilon, delta and examples.

    Parameters
    ----------
    context : Context
        The client app's.
    rows : Data
        **Private**. A row that raises or has another shape counts as the lower bounds.
    lower, upper : sequence of float, shape (columns,)
        **Public** bounds; values are clipped to them.
    epsilon : float
        Per example, for all columns together. Normal noise costs the policy's delta too.
    name : str
        Another name costs again.
    groups : iterable of hashable, optional
        The patient of each row, if an example is a patient.

    Raises
    ------
    RefusalError
        If policy or budget do not allow it, the name was used otherwise or failed, or an app of the
        run failed as a whole.
    ValueError
        If a parameter is outside its interval. Nothing was charged.
    Exception
        Any error of ``len(rows)`` or ``groups``: a failure of the whole.
    """
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    if low.ndim != 1 or low.shape != high.shape or not low.size:
        raise ValueError("lower and upper must be two vectors of one length, at least 1")
    policy = charging.policy_of(context)
    part, examples = _part(epsilon, len(low)), _examples(policy, groups)
    ends = zip(low.tolist(), high.tolist(), strict=True)
    laws = [ExampleMean(part, examples, *pair) for pair in ends]
    joint = _joint(policy, laws, float(epsilon))

    def draw(rng: RandomSource) -> NDArray[np.int64]:
        columns = (map(_mean, column) for column in _columns(rows, groups, len(laws)))
        if joint is not None:
            return joint.randomize(columns, rng)
        each = zip(laws, columns, strict=True)
        return np.array([law.randomize(column, rng) for law, column in each], dtype=np.int64)

    laplace = PrivacyEvent("example_mean", float(epsilon), unit=Unit.EXAMPLE)
    (event,) = (laplace,) if joint is None else joint.events()
    terms = {"examples": examples, "lower": low.tolist(), "upper": high.tolist()}
    report = once(context, policy, event, name, terms, draw)
    if joint is not None:
        return joint.estimate(report)
    return np.array([law.estimate(one[None])[0] for law, one in zip(laws, report, strict=True)])


def once(
    context: Context,
    policy: Policy,
    event: PrivacyEvent,
    name: str,
    terms: Mapping[str, object],
    draw: Callable[[RandomSource], NDArray[np.int64]],
) -> NDArray[np.int64]:
    """Return the numbers of ``draw``, charged and stored under a name, or the stored ones.

    ``terms`` are public. An error of ``draw`` is a failure of the whole.
    """
    charging.check_name(name)
    kind, example, run = charging.NAMED_TYPE, policy.example, context.run_id
    price = {"mechanism": event.mechanism, "epsilon": event.epsilon, "example": example}
    if event.delta:  # stored numbers are read by the law that drew them
        price["delta"] = event.delta
    text = canonical({**terms, **price})
    account, under = charging.account_of(policy, context), (NO_RUN, f"scaling:{name}", kind)
    more = {"during": run, "example": example}
    charge = charging.charge_under(policy, account, under, (event,), text, **more)
    policy.check(kind, (event,), example=example)
    # Held until the numbers are stored: a second process waits for them.
    with locked_key(policy.ledger), charging.ledger_of(policy) as ledger:
        charging.check_going_on(ledger, charge, run)
        receipt = ledger.charge(charge, policy.limits(), numbers=policy.numbers())
        if receipt.report is not None:
            return _unpacked(receipt.report)
        _, ended = charging.run_marks(run)
        try:
            found = draw(RandomSource.from_os())
        except KeyboardInterrupt:
            raise
        except BaseException:  # no epsilon covers it, so it is the run's last
            ledger.seal(receipt, ended, last=ended, parts=True)
            raise
        stream = io.BytesIO()
        np.save(stream, found.astype("<i8"), allow_pickle=False)
        ledger.seal(receipt, stream.getvalue(), last=ended, parts=True)
        return found


def _examples(policy: Policy, groups: Iterable[Hashable] | None) -> int:
    examples = policy.examples_for(charging.NAMED_TYPE, "example_mean")
    if examples is None:
        raise RefusalError(REFUSED_POLICY, "the policy does not say how many examples there are")
    if (groups is None) == (policy.example == "patient"):
        raise ValueError(f"an example is a {policy.example}: groups= is given for patients alone")
    return examples


def _joint(policy: Policy, laws: Sequence[ExampleMean], epsilon: float) -> GaussianMeans | None:
    """Return one normal release of all columns if the policy has a delta and its noise is less."""
    allowance = policy.messages.get(charging.NAMED_TYPE, {}).get("example_mean")
    ends, laplace, examples = [(law.lower, law.upper) for law in laws], laws[0], laws[0].examples
    try:
        found = GaussianMeans(epsilon, allowance.delta if allowance else 0.0, examples, ends)
    except ValueError:  # a delta of 0, or a parameter beyond what normal noise is made for
        return None
    return found if found.deviation < laplace.noise.standard_deviation / laplace.steps else None


def _columns(
    rows: Data, groups: Iterable[Hashable] | None, columns: int
) -> Iterator[list[list[float]]]:
    generators = Generators()
    try:
        found = [_row(rows, index, columns, generators) for index in range(len(rows))]
    finally:
        generators.restore()
    examples = by_group(groups, len(found))
    readable = [[row for index in one if (row := found[index]) is not None] for one in examples]
    for place in range(columns):
        yield [[float(row[place]) for row in one] for one in readable]


def _row(
    rows: Data, index: int, columns: int, generators: Generators
) -> NDArray[np.float64] | None:
    try:
        generators.renew()
        with np.errstate(all="ignore"):
            row = np.array(rows[index], dtype=np.float64)  # a copy: it may be a buffer
        return row if row.shape == (columns,) else None
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever it is, it is this row's alone
        return None


def _mean(values: list[float]) -> float:
    finite = [one for one in values if not math.isnan(one)]
    with np.errstate(all="ignore"):
        return float(np.mean(finite)) if finite else math.nan


def _part(epsilon: float, columns: int) -> float:
    """Return an epsilon per column; sums of all, also in doubles, are at most ``epsilon``."""
    check_epsilon(epsilon)
    if columns == 1:
        return float(epsilon)
    return double_at_most(as_fraction(epsilon) * (1 - Fraction(columns + 1, 1 << 53)) / columns)


def _unpacked(stored: bytes) -> NDArray[np.int64]:
    if not stored.startswith(np.lib.format.MAGIC_PREFIX):
        raise RefusalError(REFUSED_REPEAT, "drawing under this name failed as a whole")
    return np.asarray(np.load(io.BytesIO(stored), allow_pickle=False), dtype=np.int64)

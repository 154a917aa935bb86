"""Scaling that is paid for: means and quantiles of columns, released once and kept.

Features that are scaled by what the private rows say (a ``StandardScaler``) leak: no noise covers
that choice. So the numbers that scale are a release of their own, private for an example, charged
to the owner's ledger under a name and kept beside the charge: later calls, of any round and run,
get the same numbers and cost nothing. docs/dpsgd_release.md says what that is worth; where public
ranges are known, they cost nothing.

**Guarantee**: epsilon per example and delta 0, but for a failure of the whole. A row that fails is
its example's alone. What fails for all rows (``len(rows)``, ``groups``, memory) is covered by no
epsilon. The charge is then sealed as failed, and the run's other scaling and evaluations are
refused. A killed process leaves a charge without a report: the name is used up, and the run goes
on.

The owner's policy governs, by the names ``example_mean`` and ``example_counts``::

    messages:
      train:
        example_counts: {epsilon: 0.2, unit: example}
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from flower_ldp.accounting.ledger import Charge
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients.charging import account_of, check_going_on, ledger_of, policy_of, run_marks
from flower_ldp.clients.keys import locked_key
from flower_ldp.clients.labels import MESSAGE_TYPE, check_name
from flower_ldp.clients.rows import Data, by_group
from flower_ldp.errors import RefusalError
from flower_ldp.labels.stages import canonical
from flower_ldp.mechanisms.example_sums import ExampleCounts, ExampleMean
from flower_ldp.mechanisms.laplace import check_epsilon
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.sampling.exact import double_at_most
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction
from flower_ldp.refusals import REFUSED_POLICY, REFUSED_REPEAT

#: Of one example: what its rows say of each column; None for a row that cannot be read.
_Values = list[NDArray[np.float64] | None]


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
    """Return the mean of each column over the examples, with noise; or what was returned before.

    Parameters
    ----------
    context : Context
        The client app's.
    rows : Data
        **Private**. A row that raises or has another shape counts as the lower bounds.
    lower, upper : sequence of float, shape (columns,)
        **Public** bounds that values are clipped into.
    epsilon : float
        Of all columns together, per example.
    name : str
        Of the release. Another name is another one, and costs anew.
    groups : iterable of hashable, optional
        Of each row, whose it is, where an example is a patient.

    Returns
    -------
    ndarray of float64, shape (columns,)

    Raises
    ------
    RefusalError
        If the policy does not allow it or the budget is gone, the name was used with other
        parameters, drawing under it failed before, or an app of the run failed as a whole.
    ValueError
        If a parameter is outside its interval. Nothing was charged.
    Exception
        What ``len(rows)`` or ``groups`` raises. That is a failure of the whole.
    """
    low, high = np.asarray(lower, dtype=np.float64), np.asarray(upper, dtype=np.float64)
    if low.ndim != 1 or low.shape != high.shape or not low.size:
        raise ValueError("lower and upper must be two vectors of one length, at least 1")
    policy, columns = policy_of(context), len(low)
    each, examples = _part(epsilon, columns), _examples(policy, "example_mean")
    bounds = zip(low.tolist(), high.tolist(), strict=True)
    laws = [ExampleMean(each, examples, one, other) for one, other in bounds]
    release = _Release(context, policy, "example_mean", epsilon, name, groups)
    terms = {"lower": low.tolist(), "upper": high.tolist()}

    def draw(examples: list[_Values], rng: RandomSource) -> NDArray[np.int64]:
        found = [
            law.noised(sum(law.rounded(_mean(one, place)) for one in examples), rng)
            for place, law in enumerate(laws)
        ]
        return np.array(found, dtype=np.int64)

    report = release.once(rows, columns, terms, draw)
    return np.array([law.estimate(one[None])[0] for law, one in zip(laws, report, strict=True)])


def private_quantiles(
    context: Context,
    rows: Data,
    *,
    edges: Sequence[Sequence[float]],
    shares: Sequence[float],
    epsilon: float,
    name: str = "quantiles",
    groups: Iterable[Hashable] | None = None,
) -> NDArray[np.float64]:
    """Return quantiles of each column, with noise; or what was returned before.

    Parameters
    ----------
    context : Context
        The client app's.
    rows : Data
        **Private**. A row that raises or has another shape counts nowhere.
    edges : sequence of sequence of float
        Of each column the **public** numbers that a quantile can be, ascending.
    shares : sequence of float
        Which quantiles, as ``(0.25, 0.5, 0.75)``; more cost no more.
    epsilon, name, groups
        As :func:`private_means`.

    Returns
    -------
    ndarray of float64, shape (shares, columns)

    Raises
    ------
    RefusalError, ValueError
        As :func:`private_means`.
    """
    policy, columns = policy_of(context), len(edges)
    if not columns or not len(shares):
        raise ValueError("edges and shares must be at least one")
    laws = [ExampleCounts(_part(epsilon, columns), tuple(map(float, one))) for one in edges]
    sizes = np.cumsum([len(law.edges) - 1 for law in laws])[:-1]
    release = _Release(context, policy, "example_counts", epsilon, name, groups)
    terms = {"edges": [list(law.edges) for law in laws]}

    def draw(examples: list[_Values], rng: RandomSource) -> NDArray[np.int64]:
        return np.concatenate(
            [
                law.randomize((_column(one, place) for one in examples), rng)
                for place, law in enumerate(laws)
            ]
        )

    counts = np.split(release.once(rows, columns, terms, draw), sizes)
    return np.array(
        [
            [law.quantile(one, share) for law, one in zip(laws, counts, strict=True)]
            for share in shares
        ]
    )


@dataclass(frozen=True)
class _Release:
    """Numbers that are drawn once under a name, and kept beside their charge."""

    context: Context
    policy: Policy
    mechanism: str
    epsilon: float
    name: str
    groups: Iterable[Hashable] | None

    def once(
        self,
        rows: Data,
        columns: int,
        terms: dict[str, Any],
        draw: Callable[[list[_Values], RandomSource], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Charge and draw, or return what was drawn."""
        charge = self._charge(terms)
        self.policy.check(MESSAGE_TYPE, charge.events, example=self.policy.example)
        # Held until the numbers are stored: a second process waits for them.
        with locked_key(self.policy.ledger), ledger_of(self.policy) as ledger:
            check_going_on(ledger, charge, self.context.run_id)
            receipt = ledger.charge(charge, self.policy.limits(), numbers=self.policy.numbers())
            if receipt.report is not None:
                return _unpacked(receipt.report)
            _, ended = run_marks(self.context.run_id)
            try:
                found = draw(self._read(rows, columns), RandomSource.from_os())
            except KeyboardInterrupt:
                raise
            except BaseException:  # no epsilon covers it, so it is the run's last
                ledger.seal(receipt, ended, last=ended)
                raise
            ledger.seal(receipt, _packed(found), last=ended)
            return found

    def _charge(self, terms: dict[str, Any]) -> Charge:
        check_name(self.name)
        if (self.groups is None) == (self.policy.example == "patient"):
            raise ValueError(
                f"an example is a {self.policy.example} by the owner's policy: groups= is given "
                "where it is a patient and only there"
            )
        text, fingerprint = canonical(
            {
                "mechanism": self.mechanism,
                "epsilon": float(self.epsilon),
                "example": self.policy.example,
                "examples": _examples(self.policy, self.mechanism),
                **terms,
            }
        )
        return Charge(
            data_id=account_of(self.policy, self.context),
            run_id=NO_RUN,
            message_id=f"scaling:{self.name}",
            message_type=MESSAGE_TYPE,
            fingerprint=fingerprint,
            events=(PrivacyEvent(self.mechanism, float(self.epsilon), unit=Unit.EXAMPLE),),
            parameters=text,
            waived=self.policy.waived(MESSAGE_TYPE),
            during=self.context.run_id,
            example=self.policy.example,
        )

    def _read(self, rows: Data, columns: int) -> list[_Values]:
        """Return what each example's rows say; a row that fails says nothing."""
        number = len(rows)
        found = [_row(rows, index, columns) for index in range(number)]
        if self.groups is None:
            return [[one] for one in found]
        return [[found[index] for index in group] for group in by_group(self.groups, number)]


def _row(rows: Data, index: int, columns: int) -> NDArray[np.float64] | None:
    try:
        with np.errstate(all="ignore"):
            row = np.array(rows[index], dtype=np.float64)  # a copy: it may be a buffer
        return row if row.shape == (columns,) else None
    except KeyboardInterrupt:
        raise
    except BaseException:  # whatever it is, it is this row's alone
        return None


def _mean(rows: _Values, place: int) -> float:
    """Return the mean of an example's rows in a column; NaN, which counts as lower, for none."""
    found = [float(row[place]) for row in rows if row is not None]
    finite = [one for one in found if not math.isnan(one)]
    with np.errstate(all="ignore"):
        return float(np.mean(finite)) if finite else math.nan


def _column(rows: _Values, place: int) -> list[float]:
    return [float(row[place]) for row in rows if row is not None]


def _examples(policy: Policy, mechanism: str) -> int:
    examples = policy.examples_for(MESSAGE_TYPE, mechanism)
    if examples is None:
        raise RefusalError(REFUSED_POLICY, "the policy does not say how many examples there are")
    return examples


def _part(epsilon: float, columns: int) -> float:
    """Return an epsilon of which so many add up to the whole at most.

    That holds of the noise's exact rates, which are made of its decimal, and of sums in doubles:
    each addition rounds up by a factor of 1 + 2^-53 at most, and so does the decimal.
    """
    check_epsilon(epsilon)
    if columns == 1:
        return float(epsilon)
    return double_at_most(as_fraction(epsilon) * (1 - Fraction(columns + 1, 1 << 53)) / columns)


def _packed(numbers: NDArray[np.int64]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, numbers.astype("<i8"), allow_pickle=False)
    return stream.getvalue()


def _unpacked(stored: bytes) -> NDArray[np.int64]:
    if not stored.startswith(np.lib.format.MAGIC_PREFIX):
        raise RefusalError(REFUSED_REPEAT, "drawing under this name failed as a whole")
    found: NDArray[np.int64] = np.load(io.BytesIO(stored), allow_pickle=False).astype(np.int64)
    return found

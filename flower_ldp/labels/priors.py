r"""Priors of labels, found from randomized labels, and the posteriors that they give.

**By groups** that public facts form, such as clusters of the features. The likelihood of a group's
reports

.. math:: \prod_i \sum_y p(y) P(\mathrm{report}_i | y)

is log-concave over its distribution p of labels. Expectation-maximization climbs to the maximum:
each step replaces p by the mean of the posteriors :math:`P(y | \mathrm{report}_i) \propto p(y)
P(\mathrm{report}_i | y)`.

**By neighbours**: examples with near features mostly have the same label. With every step of

.. math:: q_i \leftarrow \frac{1}{m} \sum_{j \in N(i)} P(\cdot \mid \mathrm{report}_j, q_j)

a report reaches one neighbour further.

Both read reports that are paid for and no true label, so they cost no further epsilon, and clients
may send counts of reports to a server. Features are not protected. A wrong argument raises a
ValueError that names it.

**From the true labels** (:class:`CentralHistograms`), by a trusted party that sees the labels of
all clients: **central** label privacy, not local. It is for comparison with published figures of
RRWithPrior, and for one owner whose own labels fill all histograms.

**Theorem.** Two label sets are neighbours if one label differs. All histograms together then change
by 1 in two entries, by 2 in L1, so adding discrete Laplace noise of rate epsilon / 2 to every entry
is epsilon-DP per label. The groups are public. A label that is randomized later with such a prior
costs both epsilons.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flower_ldp.mechanisms import RandomSource
from flower_ldp.mechanisms.inputs import check_labels
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.parameter_bounds import Bounded, Checked, check_in
from flower_ldp.privacy import PrivacyEvent, Unit, as_fraction

Floats = NDArray[np.float64]
# Entries of posteriors that are made at a time: 64 MB.
_AT_A_TIME = 1 << 23


def group_counts(
    reports: ArrayLike, groups: ArrayLike, n_groups: int, categories: int
) -> NDArray[np.int64]:
    """Count how often each group holds each report.

    Parameters
    ----------
    reports, groups : array_like of integers, shape (n,)
        In [0, categories) and [0, n_groups). Reports are labels; for sets of labels use
        :func:`priors_from_likelihoods`.

    Returns
    -------
    ndarray of int64, shape (n_groups, categories)
    """
    found = check_labels("reports", reports, categories)
    group = check_labels("groups", groups, n_groups)
    if found.ndim != 1 or found.shape != group.shape:
        got = f"{found.shape}, {group.shape}"
        raise ValueError(f"reports and groups must be vectors and as long, got {got}")
    flat = np.bincount(group * categories + found, minlength=n_groups * categories)
    return flat.reshape(n_groups, categories).astype(np.int64)


def priors_from_counts(
    counts: ArrayLike, transition: ArrayLike, *, steps: int = 200, smoothing: float = 0.0
) -> Floats:
    """Return the likeliest distribution of labels of each group, from counts of its reports.

    Parameters
    ----------
    counts : array_like of integers, shape (n_groups, k)
        Of :func:`group_counts`, or added up over clients.
    transition : array_like of float, shape (k, k)
        P(report j | label i) in row i and column j.
    steps : int
        Of expectation-maximization, from the uniform distribution; at least 1.
    smoothing : float
        Imagined examples per group, distributed as all labels together; at least 0.

    Returns
    -------
    ndarray of float64, shape (n_groups, k)
        Rows add up to 1; groups without reports get the distribution of all together.
    """
    found = np.asarray(counts)
    if found.ndim != 2 or found.dtype.kind not in "iu" or (found < 0).any():
        raise ValueError("counts must be a matrix of integers of at least 0")
    k = found.shape[1]
    law = np.asarray(transition, dtype=np.float64)
    if law.shape != (k, k) or not (law >= 0).all() or not np.allclose(law.sum(axis=1), 1):
        raise ValueError(f"transition must be a matrix ({k}, {k}) whose rows add up to 1")
    check_in("[1, inf)", "steps", steps, int)
    check_in("[0, inf)", "smoothing", smoothing)
    overall = _climb(found.sum(axis=0, keepdims=True), law, np.full(k, 1.0 / k), steps, 0.0)[0]
    return _climb(found, law, overall, steps, smoothing)


def _climb(
    counts: NDArray[np.int64], law: Floats, overall: Floats, steps: int, smoothing: float
) -> Floats:
    priors = np.full(counts.shape, 1.0 / counts.shape[1])
    for _ in range(steps):
        explained = priors @ law
        ratio = np.divide(counts, explained, out=np.zeros_like(explained), where=counts > 0)
        weights = priors * (ratio @ law.T) + smoothing * overall
        total = weights.sum(axis=1, keepdims=True)
        priors = np.divide(weights, total, out=np.tile(overall, (len(counts), 1)), where=total > 0)
    priors[counts.sum(axis=1) == 0] = overall
    return priors


def priors_from_likelihoods(
    likelihood: ArrayLike, groups: ArrayLike, n_groups: int, *, steps: int = 200
) -> Floats:
    """Return the likeliest distribution of labels of each group, from reports of several laws.

    With one law the same as :func:`priors_from_counts`.

    Parameters
    ----------
    likelihood : array_like of float, shape (n, k)
        P(report | label y) in column y, from the mechanisms' ``likelihood``, up to a positive
        factor for each row. A row of ones is an example without a report.
    groups : array_like of integers, shape (n,)
        In [0, n_groups).
    n_groups : int
    steps : int
        Of expectation-maximization, from the uniform distribution; at least 1.

    Returns
    -------
    ndarray of float64, shape (n_groups, k)
        Rows add up to 1; groups without examples get the mean of all examples' posteriors.
    """
    seen, group = _likelihood(likelihood), check_labels("groups", groups, n_groups)
    if not len(seen) or group.shape != (len(seen),):
        raise ValueError(f"likelihood must have a row for each of groups, got shape {seen.shape}")
    check_in("[1, inf)", "steps", steps, int)
    order = np.argsort(group, kind="stable")
    seen, group = seen[order] / seen[order].max(axis=1, keepdims=True), group[order]
    size = np.bincount(group, minlength=n_groups)
    held = np.flatnonzero(size)
    starts = np.cumsum(size)[held] - size[held]
    priors = np.full((n_groups, seen.shape[1]), 1.0 / seen.shape[1])
    for _ in range(steps):
        # No report is impossible: a label that alone explains one keeps a share of it.
        joint = _posteriors(seen, priors[group])
        priors[held] = np.add.reduceat(joint, starts, axis=0) / size[held, np.newaxis]
    priors[size == 0] = joint.mean(axis=0)
    return priors


def posterior(likelihood: ArrayLike, prior: ArrayLike) -> Floats:
    """Return P(label | report) for each report.

    Parameters
    ----------
    likelihood : array_like of float, shape (n, k)
        P(report | label y) in column y, from the mechanism's ``likelihood``.
    prior : array_like of float, shape (k,) or (n, k)
        Known before the reports; rows need not add up to 1.

    Returns
    -------
    ndarray of float64, shape (n, k)
        Rows add up to 1. A report that its prior makes impossible gets the posterior under a
        uniform one.
    """
    seen, before = _likelihood(likelihood), np.asarray(prior, np.float64)
    if before.shape not in (seen.shape, seen.shape[1:]):
        raise ValueError(f"prior must fit likelihood {seen.shape}, got {before.shape}")
    if not (np.isfinite(before) & (before >= 0)).all():
        raise ValueError("prior must be finite and at least 0")
    return _posteriors(seen, before)


def priors_from_neighbours(
    likelihood: ArrayLike, neighbours: ArrayLike, *, steps: int = 60
) -> Floats:
    """Return a prior for each example from the reports of its neighbours, and of theirs.

    Parameters
    ----------
    likelihood : array_like of float, shape (n, k)
        As for :func:`priors_from_likelihoods`.
    neighbours : array_like of integers, shape (n, m)
        Numbers of other examples, in [0, n): :func:`~flower_ldp.labels.nearest_examples`.
    steps : int
        At least 1. More steps use reports further away and make priors surer.

    Returns
    -------
    ndarray of float64, shape (n, k)
        Rows add up to 1.
    """
    seen = _likelihood(likelihood)
    near = check_labels("neighbours", neighbours, len(seen))
    if near.ndim != 2 or not near.size or len(near) != len(seen):
        raise ValueError(f"neighbours must have {len(seen)} rows, got shape {near.shape}")
    check_in("[1, inf)", "steps", steps, int)
    seen = seen / seen.max(axis=1, keepdims=True)
    priors = np.full(seen.shape, 1.0 / seen.shape[1])
    for _ in range(steps):
        priors = _mean_of_neighbours(_posteriors(seen, priors), near)
    return priors


def _posteriors(seen: Floats, priors: Floats) -> Floats:
    """Return the posteriors; of a report that its prior calls impossible, without the prior."""
    joint = seen * priors
    total = joint.sum(axis=1, keepdims=True)
    joint = np.where(total > 0, joint, seen)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def _mean_of_neighbours(rows: Floats, near: NDArray[np.integer]) -> Floats:
    found = np.empty_like(rows)
    size = max(_AT_A_TIME // (near.shape[1] * rows.shape[1]), 1)
    for start in range(0, len(rows), size):
        found[start : start + size] = rows[near[start : start + size]].mean(axis=1)
    return found


def _likelihood(values: ArrayLike) -> Floats:
    seen = np.asarray(values, np.float64)
    if seen.ndim != 2:
        raise ValueError(f"likelihood must be a matrix, got shape {seen.shape}")
    if not (np.isfinite(seen) & (seen >= 0)).all() or not seen.any(axis=1).all():
        raise ValueError("likelihood must be finite, at least 0, and not all 0 in a row")
    return seen


@dataclass(frozen=True)
class CentralHistograms(Checked):
    """Histograms of true labels by group, with discrete Laplace noise. Central, not local.

    Parameters
    ----------
    epsilon : float
        Per label, of all histograms together; in [1e-6, 60].
    n_groups, categories : int
        At least 1.
    """

    epsilon: Annotated[float, Bounded("[1e-6, 60]")]
    n_groups: Annotated[int, Bounded("[1, inf)")]
    categories: Annotated[int, Bounded("[1, inf)")]

    @property
    def noise(self) -> DiscreteLaplace:
        """Return the noise of each entry."""
        return DiscreteLaplace(as_fraction(self.epsilon) / 2)

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon per label."""
        return (PrivacyEvent("central_histograms", self.epsilon, unit=Unit.LABEL),)

    def randomize(
        self, labels: ArrayLike, groups: ArrayLike, rng: RandomSource
    ) -> NDArray[np.int64]:
        """Return noisy counts, shape (n_groups, categories); some are negative.

        Parameters
        ----------
        labels, groups : array_like of integers, shape (n,)
            In [0, categories) and [0, n_groups), or ValueError.
        """
        known = check_labels("labels", labels, self.categories)
        counts = group_counts(known, groups, self.n_groups, self.categories)
        return counts + self.noise.sample(counts.size, rng).reshape(counts.shape)

    def priors(self, noisy: ArrayLike) -> NDArray[np.float64]:
        """Return noisy counts as priors: negative ones are 0, and a row may be all 0."""
        return np.maximum(np.asarray(noisy, dtype=np.float64), 0.0)

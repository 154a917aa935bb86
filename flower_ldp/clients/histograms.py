"""Noisy histograms of a client's true labels by group, released once under a name and kept.

They are a prior for :class:`~flower_ldp.mechanisms.RRWithPrior`, whose epsilon is added to theirs
in the same account. The owner's policy allows them as ``central_histograms`` at unit label.
"""

import hashlib

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from flower_ldp.clients import charging
from flower_ldp.clients.release import check_storable
from flower_ldp.clients.scaling import once
from flower_ldp.labels.priors import CentralHistograms
from flower_ldp.mechanisms.inputs import INVALID, check_labels, plain_vector, read_labels
from flower_ldp.mechanisms.random import RandomSource


def private_histograms(
    context: Context,
    labels: ArrayLike,
    groups: ArrayLike,
    *,
    mechanism: CentralHistograms,
    name: str = "histograms",
) -> NDArray[np.int64]:
    """Return noisy counts, int64 of shape (n_groups, categories), or the stored ones.

    Parameters
    ----------
    context : Context
        The client app's.
    labels : array_like, shape (n,)
        **Private**. What is no label counts nowhere.
    groups : array_like of integers, shape (n,)
        **Public** here: found from features, never from labels. In [0, n_groups).
    mechanism : CentralHistograms
        Its epsilon is per label. ``mechanism.priors`` makes priors of the counts.
    name : str
        Another name costs again.

    Raises
    ------
    RefusalError
        If policy or budget do not allow it, or the name was used otherwise.
    ValueError
        If ``groups`` is not as stated, or the counts are too many for a ledger. Nothing was
        charged.
    """
    policy = charging.policy_of(context)
    group = check_labels("groups", groups, mechanism.n_groups)
    given = plain_vector(labels)
    if group.shape != given.shape:
        raise ValueError(f"groups must be a vector as long as labels, got shape {group.shape}")
    check_storable(8 * mechanism.n_groups * mechanism.categories + 256)

    def draw(rng: RandomSource) -> NDArray[np.int64]:
        found = read_labels(given, mechanism.categories, np.int64)
        known = found != INVALID
        return mechanism.randomize(found[known], group[known], rng)

    (event,) = mechanism.events()
    digest = hashlib.sha256(np.asarray(group, "<i8").tobytes()).hexdigest()
    terms = {"groups": [mechanism.n_groups, digest], "categories": mechanism.categories}
    return once(context, policy, event, name, terms, draw)

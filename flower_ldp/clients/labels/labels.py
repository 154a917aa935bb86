"""Private labels on the client: randomized once, stored beside the charge, used for ever.

A label that is randomized anew in each epoch, run or after each restart is paid for each
time. So a label set is randomized once under a name, and what came out is stored in the
owner's ledger, in the entry that charges it. Later calls return the stored reports and cost
nothing. The entry belongs to the data's account and to no run. A label set of the same name
that differs from the one that was randomized is refused.

The owner's policy governs, by the names of the mechanisms at unit label::

    messages:
      train:
        kary_response: {epsilon: 1.0, unit: label}
    budgets:
      label:
        life: {epsilon: 1.0}

The cost is epsilon **per label**, whatever the number of labels, since each is randomized
once. Features are not protected. docs/label_dp.md says what is stored and why it tells
nothing about the labels.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from urllib.parse import quote

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from flower_ldp.accounting.ledger import Ledger, Receipt
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients.labels.store import (
    MESSAGE_TYPE,
    Shelf,
    keyed_digest,
    locked_key,
    most_bytes,
)
from flower_ldp.clients.node_policy import account_of, ledger_of, policy_of
from flower_ldp.clients.release import check_storable
from flower_ldp.labels.stages import LabelStages, RandomizedLabels
from flower_ldp.mechanisms import RandomSource
from flower_ldp.mechanisms.inputs import read_labels, read_prior, refuse_prior
from flower_ldp.mechanisms.randomized_response import LabelMechanism
from flower_ldp.policy import Policy

_log = logging.getLogger("flower_ldp")

_MOST_NAME = 100


def private_labels(
    context: Context,
    labels: ArrayLike,
    *,
    mechanism: LabelMechanism | LabelStages,
    name: str = "train",
    stage: int = 0,
    prior: ArrayLike | None = None,
) -> RandomizedLabels:
    """Randomize a client's labels once, or return what came out when that was done.

    Parameters
    ----------
    context : Context
        The client app's. The node's operator names the policy and with it the ledger.
    labels : array_like of integers, shape (n,)
        All true labels of the set. One that is no integer in [0, categories) is answered by the
        mechanism's neutral law, and the log says how many there were.
    mechanism : LabelMechanism or LabelStages
        KaryResponse, RRWithPrior or another, with ``unit=Unit.LABEL``. Stages randomize
        disjoint parts of the set, one a call.
    name : str
        Of the label set. Another name is another set, and costs anew.
    stage : int
        Which of the stages.
    prior : array_like of float, shape (categories,) or (members of the stage, categories)
        For a mechanism that needs one (RRWithPrior), and only for it: public, or made from
        reports that are paid for.
        If the labels were randomized before, it is not used: see the result's ``prior``.

    Returns
    -------
    RandomizedLabels

    Raises
    ------
    RefusalError
        If the policy does not allow it or the budget is gone; also if the name was used with
        other parameters, or a crash came between charge and storage.
    ReleaseError
        If the labels are not those that were randomized under this name.
    LedgerError
        If the ledger or the key file cannot be used.
    ValueError
        If a parameter is wrong, or the reports with their prior would be longer than a ledger
        stores (2^28 bytes: 67 million numbers of priors). Nothing was charged.
    """
    policy = policy_of(context)
    store = PrivateLabels(policy, account_of(policy, context), context.run_id)
    stages = mechanism if isinstance(mechanism, LabelStages) else LabelStages((mechanism,), (1,))
    return store.randomize(labels, stages, stage, name=name, prior=prior)


@dataclass(frozen=True)
class PrivateLabels:
    """The randomized labels of one account; :func:`private_labels` is its use in an app.

    Parameters
    ----------
    policy : Policy
        The data owner's.
    account : str
        Name under which the ledger records spending.
    run : int
        The run that asks: its limits count the labels too, which belong to none.
    """

    policy: Policy
    account: str
    run: int = NO_RUN

    def randomize(
        self,
        labels: ArrayLike,
        stages: LabelStages,
        stage: int = 0,
        *,
        name: str = "train",
        prior: ArrayLike | None = None,
    ) -> RandomizedLabels:
        """Randomize one stage once, or return its stored reports. See :func:`private_labels`."""
        if not (isinstance(name, str) and 1 <= len(name) <= _MOST_NAME and name.isprintable()):
            raise ValueError(f"name must have 1 to {_MOST_NAME} printable characters, got {name!r}")
        mechanism = stages.mechanism(stage)
        # The first stage pays for all: none may turn out later not to be allowed.
        self.policy.check(MESSAGE_TYPE, stages.events())
        for each in stages.mechanisms:
            self.policy.check(MESSAGE_TYPE, each.events(), whole=False)
        true = _check_labels(labels, stages.categories)
        members = stages.members(stage, len(true))
        known = _check_prior(mechanism, prior, len(members))
        # The lock is held until the reports are stored: a second process waits for them.
        with locked_key(self.policy.ledger) as key, self._ledger() as ledger:
            shelf = Shelf(ledger, self.policy, name, keyed_digest(key, true), self.run)
            receipt = self._charge(shelf, stages, stage, len(true))
            fresh = receipt.report is None
            if fresh:
                rng = RandomSource.from_os()
                shelf.store(receipt, mechanism.randomize_array(true[members], rng, known), known)
                receipt = self._charge(shelf, stages, stage, len(true))
            reports, used = shelf.stored(receipt)
        _log.info(
            "%s%s labels %r of %s: %s at epsilon %g per label",
            "simulation: " if self.policy.is_simulation else "",
            "randomized" if fresh else "took the stored randomized",
            name,
            self.account,
            mechanism.name,
            mechanism.epsilon,
        )
        return RandomizedLabels(reports, members, mechanism, used, self.account)

    def _ledger(self) -> Ledger:
        return ledger_of(self.policy)

    def _charge(self, shelf: Shelf, stages: LabelStages, stage: int, n: int) -> Receipt:
        """Charge a stage, or find it charged; the first stage of several charges for all."""
        terms, staged = stages.terms(n), len(stages.mechanisms) > 1
        layout = f"{self.account}#labels:{quote(shelf.name, safe='')}"
        home = shelf.home(self.account, f"{layout}/all", staged=staged)
        first = shelf.about(home, stages.events(), terms)
        if not staged:
            return shelf.charge(first)
        if home == self.account:  # reserved before layouts were: its stages lie there too
            layout = f"{self.account}#{shelf.name}"
        # All are made before the first is charged: what no ledger takes must cost nothing.
        parts = [
            shelf.about(f"{layout}/{number}", mechanism.events(), {**terms, "stage": number})
            for number, mechanism in enumerate(stages.mechanisms)
        ]
        receipt = shelf.charge(replace(first, releases=0))
        # That reserved epsilon for every label, whichever stage it is in: in a part of the
        # layout without an example, so that a stage, which costs no more, adds nothing to it.
        if receipt.report is None:
            shelf.store(receipt, np.zeros(0, dtype=np.int64), None)
        else:
            shelf.stored(receipt)
        return shelf.charge(parts[stage])


def _check_labels(labels: ArrayLike, categories: int) -> NDArray[np.int64]:
    """Return the labels, -1 for what names no category: it is randomized as no label is known."""
    found = read_labels(labels, categories, np.int64)
    if found.ndim != 1 or not found.size:
        raise ValueError(f"labels must be a vector of at least one, got shape {found.shape}")
    return found


def _check_prior(
    mechanism: LabelMechanism, prior: ArrayLike | None, n: int
) -> NDArray[np.float32] | None:
    """Return the prior as it will be stored."""
    if not mechanism.needs_prior:
        refuse_prior(mechanism.name, prior)
        _check_size(n, mechanism.report_end, None)
        return None
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        known = None if prior is None else np.asarray(prior, dtype=np.float32)
    _check_size(n, mechanism.report_end, known)
    read_prior(mechanism.name, known, mechanism.categories, (n,))
    return known


def _check_size(n: int, report_end: int, prior: NDArray[np.float32] | None) -> None:
    try:
        check_storable(most_bytes(n, report_end, prior))
    except ValueError as error:
        raise ValueError(
            f"{n} labels, and a prior for each if there is one, are too many to be stored: "
            f"divide the set into more stages, which cost no more ({error})"
        ) from error

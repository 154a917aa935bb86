"""Private labels: randomized once on the client, stored beside the charge, reused for free.

A label set is sealed under a name in the ledger entry that charges it, with the prior if any and a
**keyed** digest of the true labels, to refuse other labels. The key is in a file beside the ledger,
so a copied ledger reveals only the reports. The cost is epsilon **per label**; features are not
protected (docs/label_dp.md).
"""

from __future__ import annotations

import hmac
import io
import logging
import zipfile
import zlib
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import numpy as np
from flwr.app import Context
from numpy.typing import ArrayLike, NDArray

from flower_ldp.accounting.ledger import Charge, Ledger, Receipt
from flower_ldp.accounting.ledger.charges import NO_RUN
from flower_ldp.clients import charging
from flower_ldp.clients.keys import locked_key
from flower_ldp.clients.release import check_storable
from flower_ldp.clients.session import Data
from flower_ldp.errors import LedgerError, RefusalError, ReleaseError
from flower_ldp.labels.stages import LabelStages, RandomizedLabels
from flower_ldp.mechanisms import RandomSource
from flower_ldp.mechanisms.inputs import plain_vector, read_label, read_prior, refuse_prior
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.mechanisms.randomized_response import MAX_CATEGORIES, LabelMechanism
from flower_ldp.policy import Policy
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.refusals import REFUSED_REPEAT
from flower_ldp.wire.proposal import canonical

_log = logging.getLogger("flower_ldp")


@dataclass(frozen=True)
class StoredLabels:
    """The ledger's place for one name."""

    owner: PrivateLabels
    ledger: Ledger
    name: str
    digest: bytes

    def charge(self, stages: LabelStages, stage: int, n: int) -> Receipt:
        """Charge a stage, or find its charge; the first stage charges for all."""
        terms, account = stages.terms(n), self.owner.account
        staged = len(stages.mechanisms) > 1
        layout = f"{account}#labels:{quote(self.name, safe='')}"
        home = self.home(account, f"{layout}/all", staged=staged)
        first = self._about(home, stages.events(), terms)
        if not staged:
            return self._paid(first)
        if home == account:  # reserved before layouts were: its stages lie there too
            layout = f"{account}#{self.name}"
        # All are made before the first is charged: what no ledger takes must cost nothing.
        parts = [
            self._about(f"{layout}/{number}", mechanism.events(), {**terms, "stage": number})
            for number, mechanism in enumerate(stages.mechanisms)
        ]
        reserved = replace(first, releases=0)
        receipt = self._paid(reserved, also=parts[stage])
        # That reserved epsilon for every label, whichever stage it is in: in a part of the
        # layout without an example, so that a stage, which costs no more, adds nothing to it.
        if receipt.report is None:
            self.ledger.seal(receipt, pack(np.zeros(0, dtype=np.int64), None, self.digest))
        else:
            self.stored(receipt)
        return self._paid(parts[stage])

    def home(self, whole: str, reserved: str, *, staged: bool) -> str:
        """Return the account of the first charge under the name."""
        places = (reserved, whole) if staged else (whole, reserved)
        used = (p for p in places if self.ledger.has_charge(p, NO_RUN, f"labels:{self.name}"))
        return next(used, places[0])

    def _about(
        self, account: str, events: tuple[PrivacyEvent, ...], terms: dict[str, Any]
    ) -> Charge:
        under = NO_RUN, f"labels:{self.name}", charging.NAMED_TYPE
        policy, run = self.owner.policy, self.owner.run
        return charging.charge_under(policy, account, under, events, canonical(terms), during=run)

    def _paid(self, charge: Charge, *, also: Charge | None = None) -> Receipt:
        limits, numbers = self.owner.policy.limits(), self.owner.policy.numbers()
        try:
            if also is not None:
                self.ledger.is_new_basis(also, charge, limits, numbers)
            return self.ledger.charge(charge, limits, numbers=numbers)
        except RefusalError as error:
            if error.code != REFUSED_REPEAT:
                raise
            told = "labels are drawn once under a name: others need another name, which costs anew"
            raise RefusalError(error.code, f"{error.detail}; {told}") from error

    def stored(self, receipt: Receipt) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
        """Return reports and prior; raise ReleaseError for other true labels."""
        reports, prior, digest = unpack(receipt.report or b"")
        if not hmac.compare_digest(digest, self.digest):
            told = f"the labels are not those that were randomized as {self.name!r}"
            raise ReleaseError(f"{told}, or the ledger's key file is another: use another name")
        return reports, prior


def pack(reports: NDArray[np.int64], prior: NDArray[np.float32] | None, digest: bytes) -> bytes:
    """Return the archive that the ledger stores."""
    small = reports.astype(np.min_scalar_type(int(reports.max(initial=0))))
    mark = np.frombuffer(digest, dtype=np.uint8)
    given: dict[str, Any] = {} if prior is None else {"prior": prior}
    archive = io.BytesIO()
    np.savez_compressed(archive, reports=small, digest=mark, **given)
    return archive.getvalue()


def most_bytes(n: int, report_end: int, prior: NDArray[np.float32] | None) -> int:
    """Return a public bound on the length of :func:`pack`."""
    raw = n * np.min_scalar_type(report_end - 1).itemsize + (0 if prior is None else prior.nbytes)
    return raw + raw // 1_000 + 4_096


def unpack(stored: bytes) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, bytes]:
    """Undo :func:`pack`."""
    try:
        with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
            prior = arrays.get("prior")
            return arrays["reports"].astype(np.int64), prior, arrays["digest"].tobytes()
    except (
        ValueError,
        KeyError,
        EOFError,
        OSError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise LedgerError(f"stored labels cannot be read: {error}") from error


def private_labels(
    context: Context,
    labels: ArrayLike,
    *,
    mechanism: LabelMechanism | LabelStages,
    name: str = "train",
    stage: int = 0,
    prior: ArrayLike | None = None,
) -> RandomizedLabels:
    """Randomize a client's labels once, or return the stored result.

    Parameters
    ----------
    context : Context
        The client app's.
    labels : array_like of integers, shape (n,)
        All true labels of the set; of RROnBins numbers. A value outside [0, categories), or no
        number, is answered by the neutral law. Give a list if some may be no numbers: NumPy makes
        an array of texts of them, of which none is read.
    mechanism : LabelMechanism or LabelStages
        With ``unit=Unit.LABEL``. Stages randomize disjoint parts of the set, one per call.
    name : str
        Of the label set. Another name costs again.
    stage : int
        Index of the stage.
    prior : array_like of float, shape (categories,) or (members of the stage, categories)
        Only for a mechanism that needs one (RRWithPrior); public, or made from paid reports.

    Raises
    ------
    RefusalError
        If policy or budget do not allow it, the name was used with other parameters, or a crash
        came between charge and storage.
    ReleaseError
        If the labels differ from those randomized under this name.
    LedgerError
        If the ledger or the key file cannot be used.
    ValueError
        If a parameter is wrong, or the result exceeds what a ledger stores (2^28 bytes). Nothing
        was charged.
    """
    policy = charging.policy_of(context)
    store = PrivateLabels(policy, charging.account_of(policy, context), context.run_id)
    stages = LabelStages.of(mechanism)
    return store.randomize(labels, stages, stage, name=name, prior=prior)


@dataclass(frozen=True)
class PrivateLabels:
    """The randomized labels of one account; apps use :func:`private_labels`.

    ``account`` pays by the policy, and ``run``'s limits count the labels too.
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
        """Randomize one stage, or return its stored reports."""
        charging.check_name(name)
        mechanism = stages.mechanism(stage)
        # The first stage pays for all: none may turn out later not to be allowed.
        self.policy.check(charging.NAMED_TYPE, stages.events())
        for each in stages.mechanisms:
            self.policy.check(charging.NAMED_TYPE, each.events(), whole=False)
        given = plain_vector(labels)  # what is randomized is what the digest is of
        # One that names no category is -1: it is randomized as no label is known.
        true = stages.mechanisms[0].read(given)
        if true.ndim != 1 or not true.size:
            raise ValueError(f"labels must be a vector of at least one, got shape {true.shape}")
        members = stages.members(stage, len(true))
        known = _check_prior(mechanism, prior, len(members))
        # The lock is held until the reports are stored: a second process waits for them.
        with locked_key(self.policy.ledger) as key, charging.ledger_of(self.policy) as ledger:
            # Of the name too, or equal sets under two names would have equal digests.
            about = canonical({"account": self.account, "name": name}).encode()
            digest = hmac.digest(key, about + true.astype("<i8").tobytes(), "sha256")
            shelf = StoredLabels(self, ledger, name, digest)
            receipt = shelf.charge(stages, stage, len(true))
            fresh = receipt.report is None
            if fresh:
                rng = RandomSource.from_os()
                drawn = mechanism.randomize_array(given[members], rng, known)
                ledger.seal(receipt, pack(drawn, known, digest))
                receipt = shelf.charge(stages, stage, len(true))
            reports, used = shelf.stored(receipt)
        where = "simulation: " if self.policy.is_simulation else ""
        done = f"{where}{'randomized' if fresh else 'took the stored randomized'} labels"
        price = f"{mechanism.name} at epsilon {mechanism.epsilon:g} per label"
        _log.info("%s %r of %s: %s", done, name, self.account, price)
        return RandomizedLabels(reports, members, mechanism, used, self.account)


def _check_prior(
    mechanism: LabelMechanism, prior: ArrayLike | None, n: int
) -> NDArray[np.float32] | None:
    if not mechanism.needs_prior:
        refuse_prior(mechanism.name, prior)
    with np.errstate(over="ignore"):  # what becomes infinite is refused below
        known = None if prior is None else np.asarray(prior, dtype=np.float32)
    advice = "divide the set into more stages, which cost no more"
    check_storable(most_bytes(n, mechanism.report_end, known), advice)
    if mechanism.needs_prior:
        read_prior(mechanism.name, known, mechanism.categories, (n,))
    return known


@dataclass(frozen=True, eq=False)
class PrivateDataset:
    """A map-style data set with randomized labels in place of the true ones.

    Works as a ``torch.utils.data.Dataset``, with the examples of the stage that was randomized. The
    true labels of ``dataset`` are never returned. Reports that are no labels raise ValueError.
    """

    dataset: Data
    labels: RandomizedLabels

    def __post_init__(self) -> None:
        _check_reports(self.labels.mechanism)

    def __len__(self) -> int:
        return len(self.labels.reports)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        """Return an item with its randomized label last."""
        place = range(len(self))[index]  # raises IndexError at the end, as a sequence must
        *features, _ = self.dataset[int(self.labels.members[place])]
        return *features, int(self.labels.reports[place])


def true_labels(dataset: Data) -> NDArray[np.int64]:
    """Read the items' labels in order; -1 for one that is no integer of at least 0, or missing."""
    labels, is_labelled = [], False
    for index in range(len(dataset)):
        item = dataset[index]
        has = isinstance(item, (tuple, list)) and len(item) > 1
        labels.append(read_label(item[-1] if has else None, MAX_CATEGORIES))
        is_labelled |= has
    if labels and not is_labelled:
        raise ValueError("dataset must have items of features and a label, as (image, label)")
    return np.array(labels, dtype=np.int64)


def private_dataset(
    context: Context,
    dataset: Data,
    *,
    mechanism: LabelMechanism | LabelStages,
    name: str = "train",
    stage: int = 0,
    prior: ArrayLike | None = None,
) -> PrivateDataset:
    """Return a data set with randomized labels: :func:`private_labels` for torch.

    Items must come in the same order in each call, or the labels are refused as changed. A
    mechanism that reports sets or bins of labels raises ValueError.
    """
    stages = LabelStages.of(mechanism)
    _check_reports(stages.mechanism(stage))  # before anything is charged
    labels = private_labels(
        context, true_labels(dataset), mechanism=stages, name=name, stage=stage, prior=prior
    )
    return PrivateDataset(dataset, labels)


def _check_reports(mechanism: LabelMechanism) -> None:
    if not reports_are_labels(mechanism):
        told = "reports sets or bins of labels: use private_labels and what it returns"
        raise ValueError(f"mechanism {mechanism.name} {told}")

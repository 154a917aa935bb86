r"""Area under the ROC curve, from noisy counts of both classes in bins of the score.

**Counts**: :class:`~flower_ldp.mechanisms.JointCounts` of one table with 2 B cells, the negatives'
bins and then the positives'. An example has one weight over both classes.

**Guarantee**: epsilon per example and evaluation, delta 0, except for a failure of the whole, as of
:class:`~flower_ldp.clients.AccuracyRelease`. What leaves is computed from the noisy counts.

**Estimate**: with :math:`p_b` and :math:`q_b` the shares of negatives and positives in bin b, the
area is :math:`\sum_b q_b (\sum_{a<b} p_a + p_b / 2)`: pairs in one bin are ties. With exact shares
the area of the scores differs by at most :math:`\sum_b p_b q_b / 2`, the binning error. What leaves
has noisy shares in both, and a patient's weights are rounded to 2^-16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from flwr.app import MetricRecord, RecordDict

from flower_ldp.clients.dpsgd import UNDONE, OpenEvaluation
from flower_ldp.clients.permit import Permit
from flower_ldp.clients.release import Release, single_model
from flower_ldp.clients.session import UNKNOWN, RankingSession
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms.joint_counts import JointCounts
from flower_ldp.mechanisms.random import Floats, RandomSource
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.counts import encode
from flower_ldp.wire.proposal import canonical
from flower_ldp.wire.training_plan import model_digest

_METRICS = ("auc", "auc-binning-error", "auc-noise")


def binned_auc(counts: Floats, deviation: float) -> dict[str, float]:
    """Return area, binning error and standard deviation from noise, estimated from noisy counts.

    Parameters
    ----------
    counts : ndarray, shape (2 B,)
        Of the negatives in each bin, then of the positives.
    deviation : float
        Standard deviation of one count.

    Returns
    -------
    dict of str to float
        ``auc`` in [0, 1]; ``auc-binning-error`` and ``auc-noise``, at most 1/2. The deviation is of
        first order: good where noise moves a class's total little. All three are 1/2 if a total is
        not positive.
    """
    found = counts.astype(np.float64).reshape(2, -1)
    totals = found.sum(axis=1)
    if (totals <= 0).any():
        return dict.fromkeys(_METRICS, 0.5)
    negative, positive = found / totals[:, None]
    below, above = np.cumsum(negative) - negative / 2, 1 - np.cumsum(positive) + positive / 2
    area = positive @ below
    # How a count moves the area.
    slopes = [(above - area) / totals[0], (below - area) / totals[1]]
    noisy = area, negative @ positive / 2, deviation * np.linalg.norm(slopes)
    return dict(zip(_METRICS, np.clip(noisy, 0.0, (1.0, 0.5, 0.5)).tolist(), strict=True))


@dataclass(frozen=True)
class AUCRelease(Release):
    """Releases an evaluate reply as the area under the ROC curve, with noise.

    The reply has the metrics ``auc``, ``auc-binning-error`` and ``auc-noise``, its standard
    deviation from noise, and ``num-examples``: the policy's number, a constant weight.

    Parameters
    ----------
    epsilon : float
        Per example and evaluation, in [1e-6, 100], or ValueError. The policy must allow it for
        ``counts``.
    bins : int
        Equal intervals of the score from 0 to 1; in [2, 1000], or ValueError. **Public**. More have
        a smaller binning error, and more noise.
    """

    epsilon: float
    bins: int = 20

    def __post_init__(self) -> None:
        check_in("[1e-6, 100]", "epsilon", self.epsilon)
        check_in("[2, 1000]", "bins", self.bins, int)

    @property
    def mechanism(self) -> JointCounts:
        """Counts of both classes."""
        return JointCounts(self.epsilon, (2 * self.bins,), steps=1 << 16)

    def open(self, content: RecordDict) -> OpenAUC:
        """Read the model sent; raise WireError if there is not exactly one."""
        return OpenAUC(single_model(content), self)


@dataclass(frozen=True)
class OpenAUC(OpenEvaluation[RankingSession]):
    """A request for the area under the ROC curve."""

    undone = UNDONE.format("counts", "evaluate", "private_auc")

    release: AUCRelease
    examples: int = 1

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of one evaluation."""
        return self.release.mechanism.events()

    @property
    def parameters(self) -> str:
        """Epsilon, bins and the model's digest."""
        price = {"mechanism": "counts", "epsilon": float(self.release.epsilon)}
        return canonical({**price, "bins": self.release.bins, "model": model_digest(self.sent)})

    def with_permit(self, permit: Permit) -> OpenAUC:
        """Take the number of examples, or refuse."""
        session = RankingSession(self.release.mechanism, permit.example, self.sent)
        return replace(self, examples=permit.known_examples(), charged=session)

    def _in_rehearsal(self) -> RankingSession:
        return RankingSession(self.release.mechanism, UNKNOWN, self.sent, rehearsal=True)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return noisy counts; ReleaseError without counts."""
        if self._charged.total is None:
            raise ReleaseError(self.undone)
        noisy = self.release.mechanism.noised(self._charged.total, rng)
        return encode(self.examples, noisy)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return noisy counts around equal ones."""
        return encode(self.examples, self.release.mechanism.neutral(self.examples, rng))

    def content(self, report: bytes) -> RecordDict:
        """Return the reply."""
        examples, *noisy = np.frombuffer(report, dtype="<i8").tolist()
        mechanism = self.release.mechanism
        found = binned_auc(mechanism.estimate(np.array(noisy)), mechanism.deviation)
        return RecordDict({"metrics": MetricRecord({**found, "num-examples": examples})})

"""The releases that the node knows: which one a proposal names, and what its reports look like.

=============  ============================  ============================================
message        mechanisms of the proposal    report
=============  ============================  ============================================
``train``      ``signds``, ``gaussian``      indices, a sign and a bit; one byte an entry
``evaluate``   ``laplace``, ``codebook``     noisy rows or codes, and metrics
=============  ============================  ============================================

Messages of split learning (``train.forward`` and so on) are not among them, and are refused. Their
epsilon is per record, and holds if each embedding was computed from its own record by the bottom
model that was declared: that is up to the app, and the node cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import MessageType, RecordDict

from flower_ldp.clients import GaussianRelease, ProtectedEvalRelease, Release, SignDSRelease
from flower_ldp.clients.evaluation import OpenEvaluation
from flower_ldp.clients.gaussian import OpenGaussian
from flower_ldp.clients.release import OpenRelease
from flower_ldp.clients.signds import OpenSignDS
from flower_ldp.errors import WireError
from flower_ldp.wire.evaluation import decode_eval_report
from flower_ldp.wire.fields import PROPOSAL_KEY
from flower_ldp.wire.gaussian import decode_gaussian
from flower_ldp.wire.health import split_health
from flower_ldp.wire.signds import decode_report


@dataclass(frozen=True)
class NamedRelease:
    """One of several releases: the one that the server's proposal names.

    The policy decides whether that mechanism may be used, and at what cost.

    Parameters
    ----------
    releases : mapping of str to Release
        By the proposal's field ``mechanism``.
    """

    releases: Mapping[str, Release]

    def open(self, content: RecordDict) -> OpenRelease:
        """Read the proposal by the release that it names.

        Raises
        ------
        WireError
            If there is no proposal, or it names none of the releases.
        """
        record = content.config_records.get(PROPOSAL_KEY)
        if record is None:
            raise WireError("record", f"the message has no {PROPOSAL_KEY!r} record")
        name = record.get("mechanism")
        release = self.releases.get(name) if isinstance(name, str) else None
        if release is None:
            raise WireError("fields", f"no release for {name!r}, only {sorted(self.releases)}")
        return release.open(content)


def node_releases() -> dict[str, Release]:
    """Return the node's releases by type of message."""
    train = NamedRelease({"signds": SignDSRelease(), "gaussian": GaussianRelease()})
    return {MessageType.TRAIN: train, MessageType.EVALUATE: ProtectedEvalRelease()}


def check_form(opened: OpenRelease, report: bytes) -> None:
    """Raise unless some honest client could have sent these bytes.

    Raises
    ------
    WireError
        If they are no report that answers the proposal.
    TypeError
        If the form of such reports is not known here.
    """
    if isinstance(opened, OpenSignDS | OpenGaussian | OpenEvaluation):
        report, _ = split_health(report, asked=opened.proposal.health is not None)
    if isinstance(opened, OpenSignDS):
        decode_report(
            report,
            dimension=opened.layout.dimension,
            dim_out=opened.proposal.selection.plan(opened.layout.dimension, quiet=True).dim_out,
            has_bit=opened.proposal.magnitude is not None,
        )
    elif isinstance(opened, OpenGaussian):
        decode_gaussian(
            report,
            dimension=opened.layout.dimension,
            largest=opened.proposal.mechanism.largest,
        )
    elif isinstance(opened, OpenEvaluation):
        decode_eval_report(report, opened.proposal)
    else:
        raise TypeError(f"the form of the reports of {type(opened).__name__} is not known")

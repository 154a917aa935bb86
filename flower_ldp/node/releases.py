"""The releases that the node knows: which one a proposal names, and what its reports look like.

=============  ===========================  ============================================
message        mechanism of the proposal    report
=============  ===========================  ============================================
``train``      ``signds``                   indices, a sign and a bit
``train``      ``gaussian``                 one byte an entry
``train``      ``codeword``                 the name of one public vector
``evaluate``   ``laplace``, ``codebook``    noisy rows or codes, and metrics
=============  ===========================  ============================================

They have no ``trainable``: the node does not know which arrays an app trains, and opens a proposal
about any part of the model. A site that does know has a gate of its own.

Messages of Flower's own strategies bring no proposal: :mod:`flower_ldp.node.unproposed` has their
releases, for listed apps. Nor are messages of split learning (``train.forward`` and so on) among
these. Their epsilon is per record, and holds if each embedding was computed from its own record by
the bottom model that was declared: that is up to the app, and the node cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import RecordDict

from flower_ldp.clients import RELEASES, Release
from flower_ldp.clients.release import OpenRelease, proposed
from flower_ldp.errors import WireError


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
        RefusalError
            If there is no proposal.
        WireError
            If it names none of the releases.
        """
        record = proposed(content)
        name = record.get("mechanism")
        release = self.releases.get(name) if isinstance(name, str) else None
        if release is None:
            raise WireError("fields", f"no release for {name!r}, only {sorted(self.releases)}")
        return release.open(content)


def node_releases() -> dict[str, Release]:
    """Return the node's releases by type of message."""
    return {kind: _named(releases) for kind, releases in RELEASES.items()}


def _named(releases: Mapping[str, Release]) -> Release:
    """Return the release that a proposal names; one that is named by all is asked itself."""
    first, *others = releases.values()
    return first if all(other == first for other in others) else NamedRelease(releases)

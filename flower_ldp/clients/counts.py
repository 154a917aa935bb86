"""Counts by ``query``: tables of the app's rows, released at once with noise.

**Guarantee**: epsilon per example and question for all of its tables together, delta 0 or for
normal noise the stated one (:mod:`flower_ldp.mechanisms.joint_counts`), except for a failure of the
whole.

**A failure of the whole** is an app that raises, is late, or whose reply has no such columns. No
epsilon covers it, since one row may have caused it. Noise around even counts leaves, and the run's
further releases about examples are refused. A value that cannot be read affects its own row alone.

**One row a client** (:class:`OpenRow`): a set of cells by subset selection, epsilon per client,
whatever the app does. A failing app is answered by the neutral law.

**Trusted**, for examples: each row that the app hands over depends on one example alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import Array, Metadata, RecordDict

from flower_ldp.clients.permit import Permit, ReleaseRequest
from flower_ldp.clients.release import (
    OpenRelease,
    Release,
    check_storable,
    open_array,
    or_none,
    proposed,
)
from flower_ldp.clients.session import UNKNOWN, by_group
from flower_ldp.errors import ReleaseError, WireError, quoted
from flower_ldp.mechanisms.joint_counts import PlacedRows
from flower_ldp.mechanisms.labels import SubsetSelection
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.wire.counts import CountsProposal, Levels, encode, owner_of
from flower_ldp.wire.proposal import canonical


@dataclass(frozen=True)
class CountsRelease(Release):
    """Releases a query's reply as the tables that :class:`~flower_ldp.strategies.CountsQuery` asks.

    The app replies with its rows, which never leave: columns of one length under the names of the
    question, as 1-D arrays of an ArrayRecord or lists of a ConfigRecord or MetricRecord. Columns
    that no table names are not read. The policy allows it for ``query`` messages as ``counts``, per
    example; as ``subset_selection`` from clients with one row each.

    Parameters
    ----------
    columns : mapping of str to sequence
        Columns that may be asked for, with their edges or categories. Other columns or levels are
        refused before the charge. By default all are accepted.
    groups : str
        The column that says whose a row is, where the policy's example is a patient. A row of
        nobody counts nowhere.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> from flower_ldp.clients import CountsRelease, LdpMod
    >>> app = ClientApp(mods=[LdpMod(query=CountsRelease(groups="patient_id"))])
    """

    columns: Mapping[str, Levels] = field(default_factory=dict)
    groups: str = "patient"

    def open(self, content: RecordDict) -> OpenRelease:
        """Read the question; raise WireError or ValueError if it cannot be answered."""
        proposal = CountsProposal.from_fields(proposed(content))
        for name, levels in proposal.columns.items():
            own = self.columns.get(name)
            if self.columns and (own is None or list(own) != list(levels)):
                raise WireError("domain", f"the app has no column {quoted(name)} of these levels")
        check_storable(proposal.report_bytes, "Ask for fewer levels or tables")
        if proposal.sets is not None:
            return OpenRow(proposal, proposal.sets)
        return OpenCounts(proposal, self.groups)


@dataclass(frozen=True)
class _OpenQuestion(OpenRelease):
    proposal: CountsProposal

    @property
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Cost of the answer."""
        return self.proposal.events()

    @property
    def parameters(self) -> str:
        """The question."""
        return canonical(self.proposal.to_fields())

    def check_form(self, report: bytes) -> None:
        """Raise WireError unless it answers the question."""
        self.proposal.decode(report)

    def complaint(self, reply: RecordDict) -> str | None:
        """Return why the reply does not have the rows that are asked for, or None."""
        try:
            self._rows(reply)
        except ReleaseError as error:
            return str(error)
        return None

    @abstractmethod
    def _rows(self, reply: RecordDict) -> PlacedRows:
        """Return a reply's rows, or raise ReleaseError."""


@dataclass(frozen=True)
class OpenCounts(_OpenQuestion):
    """A question for counts.

    Parameters
    ----------
    proposal : CountsProposal
        The question.
    groups : str
        The column of whose a row is.
    examples, example : int, str
        Their number and unit by the policy.
    """

    groups: str
    examples: int = 1
    example: str = UNKNOWN

    def request(self, metadata: Metadata) -> ReleaseRequest:
        """Return the request."""
        return replace(super().request(metadata), per_example=True)

    def with_permit(self, permit: Permit) -> OpenCounts:
        """Take the number of examples, or refuse."""
        return replace(self, examples=permit.known_examples(), example=permit.example)

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return noisy counts; ReleaseError without rows."""
        noisy = self.proposal.mechanism.randomize(self._rows(reply), rng)
        return encode(self.examples, noisy)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return noisy counts around even ones."""
        return encode(self.examples, self.proposal.mechanism.neutral(self.examples, rng))

    def _rows(self, reply: RecordDict) -> PlacedRows:
        return _placed(self.proposal, reply, self.groups, self.example)


@dataclass(frozen=True)
class OpenRow(_OpenQuestion):
    """A question to clients with one row each."""

    sets: SubsetSelection

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        """Return a set of cells, neutral unless the reply has one row."""
        text = "the app's reply is not one row: %s"
        return self._packed(or_none(lambda: int(self._rows(reply)[0][0, 0]), text), rng)

    def neutral(self, rng: RandomSource) -> bytes:
        """Return a set that holds no cell more often."""
        return self._packed(None, rng)

    def _rows(self, reply: RecordDict) -> PlacedRows:
        places, owners = _placed(self.proposal, reply, "", "row")
        if len(places) != 1:
            raise ReleaseError(f"a client of this question has one row, got {len(places)}")
        return places, owners

    def _packed(self, cell: int | None, rng: RandomSource) -> bytes:
        return self.sets.randomize(cell, rng).to_bytes(self.proposal.report_bytes, "little")


def _placed(proposal: CountsProposal, reply: RecordDict, groups: str, example: str) -> PlacedRows:
    """Return the cells and owners of a reply's rows; ReleaseError if it has no such columns."""
    wanted = {name for names in proposal.tables for name in names}
    rows = _columns(reply, wanted | {groups})
    if missing := wanted - set(rows):
        told = "it must be a list, or a 1-D array of text, integers or 64-bit numbers"
        raise ReleaseError(f"the reply has no column {quoted(sorted(missing))}: {told}")
    sizes = {len(rows[name]) for name in wanted}
    if len(sizes) != 1:
        raise ReleaseError(f"columns must be of one length, got {sorted(sizes)}")
    (size,) = sizes
    places = proposal.places(rows, size)
    if example != "patient":
        return places, np.arange(size)
    whose = rows.get(groups, ())
    if len(whose) != size:
        raise ReleaseError(f"no column {quoted(groups)} says of each row whose it is")
    members = by_group(map(owner_of, whose), size)  # rows of nobody are left out
    kept = np.concatenate([np.empty(0, dtype=np.int64), *members])
    owners = np.repeat(np.arange(len(members)), [len(one) for one in members])
    return places[kept], owners


def _columns(reply: RecordDict, wanted: set[str]) -> dict[str, Any]:
    """Return the reply's lists and 1-D arrays of these names."""
    found: dict[str, Any] = {}
    for record in reply.values():
        for name in wanted & set(record):
            value = record[name]
            values: Any = open_array(value) if isinstance(value, Array) else value
            if not isinstance(values, list) and not _is_column(values):
                continue
            if name in found:
                raise ReleaseError(f"the reply has two columns {quoted(name)}")
            found[name] = values
    return found


def _is_column(values: Any) -> bool:
    """Return whether one row that turns it into text leaves all others as they are.

    Dates change their text with the finest of them, and shorter floats their value.
    """
    if np.ndim(values) != 1:
        return False
    kind, size = values.dtype.kind, values.dtype.itemsize
    return kind in "biuSU" or (kind, size) in {("f", 8), ("c", 16)}

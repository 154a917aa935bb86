r"""A round's batch of sealed reports, and the sums that an analyzer makes of it.

**Claim.** The answer is a function of the multiset of the reports that were opened, so it has the
central epsilon of shuffled reports (:mod:`flower_ldp.accounting.shuffled`) at their number. A
ciphertext is opened for one proposal alone. A report by another epsilon, K, M, G or number of
blocks is therefore not opened, and hides nobody.

**Left out, one by one:** ciphertexts of another key or proposal, further copies of one, and what is
no report. An honest client sends none of these, whatever its data, so that their numbers
tell nothing. Copies are equal bytes: a changed ciphertext does not open, and only its client can
seal a report again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flower_ldp.accounting.shuffled import ShuffledReports, favoured_part
from flower_ldp.errors import LdpError, WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.random import Floats
from flower_ldp.shuffle.sealing import (
    RoundKey,
    private_key,
    sealed_length,
    without_key,
)
from flower_ldp.wire.layout import without_part
from flower_ldp.wire.proposal import UpdateProposal, split_health

#: Of a batch, and of the text of its proposal, which is as long as a ledger's entry may be.
MOST_BYTES, _MOST_TEXT = 1 << 28, 1 << 16
#: Bytes of a length in a batch.
_LENGTH = 4
_LEAST_LENGTH = sealed_length(1)
#: Why an analyzer gives no sums. They depend on public facts alone.
UNKNOWN_KEY, OTHER_BATCH, TOO_FEW, NO_PROPOSAL = "key", "round", "minimum", "proposal"


class AnalyzerError(LdpError):
    """The analyzer cannot be used."""


class AnalyzerRefusal(LdpError):  # noqa: N818  # a decision, not a fault
    """The analyzer gives no sums.

    Parameters
    ----------
    code : str
        ``"key"``, ``"round"``, ``"minimum"`` or ``"proposal"``.
    detail : str
        Sent to the server: public facts alone.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True)
class SealedProposal:
    """The one proposal that a batch answers, as canonical JSON, and what it says."""

    text: str
    proposal: UpdateProposal[Codeword]
    entries: int
    key: RoundKey

    @classmethod
    def parse(cls, text: str) -> SealedProposal:
        """Read the proposal; AnalyzerRefusal if no codewords can be asked for so."""
        try:
            if len(text) > _MOST_TEXT:
                raise WireError("fields", f"a proposal of {len(text)} characters")
            others, key = without_key(dict(json.loads(text)))
            if key is None:
                raise WireError("fields", "nothing is sealed")
            others, part = without_part(others)
            dimension = typed(others, "dimension", int)
            del others["dimension"]
            proposal = UpdateProposal.from_fields(others, {Codeword.name: Codeword.of_parameters})
            entries = dimension if part.subspace is None else part.subspace.dimension
            proposal.mechanism.plan(entries)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise AnalyzerRefusal(NO_PROPOSAL, f"not a proposal of codewords: {error}") from None
        return cls(text, proposal, entries, key)

    def central_epsilon(self, reports: int, delta: float) -> float:
        """Return the central epsilon of so many honest clients' shuffled reports."""
        parts = [favoured_part(self.proposal.mechanism, self.entries)]
        if self.proposal.health is not None:
            parts.append(favoured_part(self.proposal.health))
        return ShuffledReports(tuple(parts), reports).epsilon(delta)


@dataclass(frozen=True)
class Batch:
    """Sealed reports of one round, in no order, and the proposal that they answer."""

    proposal: str
    sealed: tuple[bytes, ...]

    def digest(self) -> bytes:
        """Return a digest that is the same in any order."""
        found = hashlib.sha256(hashlib.sha256(self.proposal.encode()).digest())
        for one in sorted(self.sealed):
            found.update(hashlib.sha256(one).digest())
        return found.digest()

    def to_bytes(self) -> bytes:
        """Return the batch as it is sent; ValueError unless all ciphertexts have one length."""
        text, lengths = self.proposal.encode(), set(map(len, self.sealed)) or {0}
        if len(lengths) != 1:
            raise ValueError(f"sealed reports must have one length, got {sorted(lengths)}")
        numbers = len(text), lengths.pop()
        head = b"".join(one.to_bytes(_LENGTH, "big") for one in numbers)
        return head + text + b"".join(self.sealed)

    @classmethod
    def from_bytes(cls, data: bytes) -> Batch:
        """Undo :meth:`to_bytes`; AnalyzerRefusal for other bytes."""
        text_length, length = (
            int.from_bytes(data[at : at + _LENGTH], "big") for at in (0, _LENGTH)
        )
        begin = 2 * _LENGTH + text_length
        rest = len(data) - begin
        # Shorter ones would take many times the batch's memory.
        if rest < 0 or (rest and (length < _LEAST_LENGTH or rest % length)):
            raise AnalyzerRefusal(NO_PROPOSAL, f"{len(data)} bytes are no batch")
        try:
            text = data[2 * _LENGTH : begin].decode()
        except UnicodeDecodeError:
            raise AnalyzerRefusal(NO_PROPOSAL, "the proposal is no text") from None
        places = range(begin, len(data), length) if rest else ()
        return cls(text, tuple(data[at : at + length] for at in places))


@dataclass(frozen=True)
class ReportSums:
    """What an analyzer answers: sums over the reports of a round, and what they cost.

    Parameters
    ----------
    total : ndarray of float64, shape (entries,)
        Sum of the named codewords.
    accepted : int
        Number of reports in it.
    rejected : mapping of str to int
        Ciphertexts that were left out, by reason.
    ones : int or None
        Sum of the health bits, if they were asked for.
    central_epsilon, central_epsilon_minimum : float
        At ``accepted`` and at the key's minimum.
    delta : float
        Of both.
    """

    total: Floats = field(repr=False)
    accepted: int
    rejected: Mapping[str, int]
    ones: int | None
    central_epsilon: float
    central_epsilon_minimum: float
    delta: float

    def to_bytes(self) -> bytes:
        """Return a line of JSON, and the total as little-endian float64."""
        told = {name: one for name, one in vars(self).items() if name != "total"}
        return json.dumps(told).encode() + b"\n" + self.total.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, entries: int) -> ReportSums:
        """Undo :meth:`to_bytes`; AnalyzerError for an answer that is none."""
        head, _, rest = data.partition(b"\n")
        try:
            told = json.loads(head)
            total = np.frombuffer(rest, dtype="<f8").astype(np.float64)
            found = cls(total=total, **told)
            numbers: list[Any] = [found.accepted, *found.rejected.values()]
            numbers += [0 if found.ones is None else found.ones]
            claimed = (found.central_epsilon, found.central_epsilon_minimum, found.delta)
            right = all(type(one) is int and one >= 0 for one in numbers)
            right = right and all(type(one) is float and 0 <= one < math.inf for one in claimed)
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise AnalyzerError(f"the analyzer's answer is none: {error}") from None
        if not right or total.shape != (entries,) or not np.isfinite(total).all():
            raise AnalyzerError(f"the analyzer's answer is none: {quoted(head)}")
        return found


def add_up(batch: Batch, asked: SealedProposal, secret: bytes, delta: float) -> ReportSums:
    """Open a batch and return its sums.

    Parameters
    ----------
    batch, asked : Batch, SealedProposal
        With one text.
    secret : bytes
        Private half of the round's key.
    delta : float
        Of the claim; in (0, 1).

    Raises
    ------
    AnalyzerRefusal
        ``"minimum"`` if fewer reports are left.
    """
    proposal, mechanism, entries = asked.proposal, asked.proposal.mechanism, asked.entries
    length = sealed_length(proposal.report_bytes(entries))
    private, minimum = private_key(secret), asked.key.minimum
    distinct = dict.fromkeys(batch.sealed)
    rejected = Counter(duplicate=len(batch.sealed) - len(distinct))
    reports, ones = [], 0
    for sealed in distinct:
        try:
            if len(sealed) != length:
                raise WireError("length", f"{len(sealed)} bytes, expected {length}")
            plain = asked.key.open(sealed, asked.text, private)
            report, bit = split_health(plain, asked=proposal.health is not None)
            reports.append(mechanism.decode(report, entries))
            ones += bit or 0
        except WireError as error:
            rejected[error.reason] += 1
    if len(reports) < minimum:
        told = f"{len(reports):,} reports of this proposal are left of {len(batch.sealed):,}"
        raise AnalyzerRefusal(
            TOO_FEW, f"{told}, and {minimum:,} are the fewest ({dict(+rejected)})"
        )
    at_minimum = asked.central_epsilon(minimum, delta)
    return ReportSums(
        total=mechanism.total(reports, entries),
        accepted=len(reports),
        rejected=dict(+rejected),
        ones=None if proposal.health is None else ones,
        # More honest reports cost no more: a bound above that of fewer is only looser.
        central_epsilon=min(at_minimum, asked.central_epsilon(len(reports), delta)),
        central_epsilon_minimum=at_minimum,
        delta=delta,
    )

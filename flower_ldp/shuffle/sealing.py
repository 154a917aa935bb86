"""Sealing: a client encrypts its report to the analyzer's key of one run.

**Keys.** An analyzer has a signing key (Ed25519), which owners name in their policies. For each run
it makes a key pair of its own (X25519) and signs the public half together with the run and the
fewest reports that it answers for. The private half is erased when the run ends, so that
ciphertexts which were stored cannot be opened later.

**A sealed report** is HPKE (RFC 9180, base mode): DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and
ChaCha20-Poly1305. Its plaintext is 16 random bytes and the report. By these bytes the analyzer
notices two ciphertexts of one sealing. Nobody else sees them.

**Binding.** HPKE's ``info`` holds the run, the round, the public key and the digest of the
proposal. A ciphertext is opened for these alone. Nothing in it differs between the clients of a
round: the id of a message would be a pseudonym.

The extra ``shuffle`` is needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from flower_ldp.errors import WireError, needed, quoted
from flower_ldp.wire.layout import ModelLayout
from flower_ldp.wire.proposal import UpdateProposal, canonical

_SIGNED, _INFO = b"flower-ldp analyzer key 1\0", b"flower-ldp sealed report 1\0"
#: Field of a proposal with the run's signed key, and with the round that reports are sealed for.
KEY_FIELD, ROUND_FIELD = "analyzer-key", "analyzer-round"
#: How a policy and a strategy write a signing key.
SIGNER = r"ed25519:[0-9a-f]{64}"
_PREFIX = "ed25519:"
_PUBLIC, _SIGNATURE, _NUMBER = 32, 64, 8
_KEY_BYTES = 2 * _NUMBER + _PUBLIC + _SIGNATURE
#: Of a plaintext's random beginning, and of a ciphertext's encapsulated key and authenticator.
NONCE, ENCAPSULATED, _TAG = 16, 32, 16
_MOST_NUMBER = 1 << 63


@cache
def _suite() -> Any:
    with needed("sealed reports need HPKE of cryptography 47", "shuffle"):
        from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def check_installed() -> None:
    """Raise ModuleNotFoundError without the extra ``shuffle``."""
    _suite()


@dataclass(frozen=True)
class RunKey:
    """An analyzer's key of one run, signed.

    Parameters
    ----------
    run_id : int
        Flower's, in [0, 2^64).
    minimum : int
        The fewest reports of a round that the analyzer answers for; in [1, 2^63).
    public : bytes
        X25519, 32 bytes.
    signature : bytes
        Ed25519, 64 bytes, of the three.
    """

    run_id: int
    minimum: int
    public: bytes
    signature: bytes

    def to_bytes(self) -> bytes:
        """Return the key as it is sent."""
        return _statement(self.run_id, self.minimum, self.public) + self.signature

    @classmethod
    def from_bytes(cls, data: bytes) -> RunKey:
        """Return the key of these bytes, unverified; WireError ``"analyzer"`` if they are none."""
        if len(data) != _KEY_BYTES:
            raise WireError("analyzer", f"a run's key has {_KEY_BYTES} bytes, got {len(data)}")
        numbers = data[:_NUMBER], data[_NUMBER : 2 * _NUMBER]
        run_id, minimum = (int.from_bytes(one, "big") for one in numbers)
        if not 1 <= minimum < _MOST_NUMBER:
            raise WireError("analyzer", f"minimum must be in [1, 2^63), got {minimum}")
        rest = data[2 * _NUMBER :]
        return cls(run_id, minimum, rest[:_PUBLIC], rest[_PUBLIC:])

    def verify(self, signer: str) -> None:
        """Raise ValueError unless the analyzer ``signer``, as ``"ed25519:..."``, signed it."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.removeprefix(_PREFIX)))
        signed = _SIGNED + _statement(self.run_id, self.minimum, self.public)
        try:
            key.verify(self.signature, signed)
        except InvalidSignature:
            raise ValueError(f"the run's key is not signed by {signer}") from None


def _statement(run_id: int, minimum: int, public: bytes) -> bytes:
    return run_id.to_bytes(_NUMBER, "big") + minimum.to_bytes(_NUMBER, "big") + public


def signer_of(signing: bytes) -> str:
    """Return the public name of a signing key of 32 bytes, as policies write it."""
    public: bytes = _signing(signing).public_key().public_bytes_raw()
    return _PREFIX + public.hex()


def _signing(signing: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(signing)


def new_run_key(signing: bytes, run_id: int, minimum: int) -> tuple[RunKey, bytes]:
    """Return a new key of a run, and its private half of 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    signature = _signing(signing).sign(_SIGNED + _statement(run_id, minimum, public))
    return RunKey(run_id, minimum, public, signature), own.private_bytes_raw()


@dataclass(frozen=True)
class Sealing:
    """What reports of one round are sealed for.

    Parameters
    ----------
    key : RunKey
    server_round : int
        In [0, 2^63).
    """

    key: RunKey
    server_round: int

    def to_fields(self) -> dict[str, int | bytes]:
        """Return the fields of a proposal."""
        return {KEY_FIELD: self.key.to_bytes(), ROUND_FIELD: self.server_round}

    def stated(self) -> dict[str, int | str]:
        """Return the same for JSON, in which a ledger and the analyzer read the proposal."""
        return {KEY_FIELD: self.key.to_bytes().hex(), ROUND_FIELD: self.server_round}

    @classmethod
    def of_fields(cls, key: object, server_round: object) -> Sealing:
        """Read two fields; WireError ``"analyzer"`` or ``"fields"`` if they are none."""
        if type(key) is not bytes:
            raise WireError("fields", f"{KEY_FIELD} must be bytes, got {quoted(key)}")
        if type(server_round) is not int or not 0 <= server_round < _MOST_NUMBER:
            wanted = f"{ROUND_FIELD} must be an integer in [0, 2^63)"
            raise WireError("fields", f"{wanted}, got {quoted(server_round)}")
        return cls(RunKey.from_bytes(key), server_round)

    def info(self, proposal: str) -> bytes:
        """Return HPKE's ``info`` for a proposal as canonical JSON."""
        run, now = self.key.run_id.to_bytes(_NUMBER, "big"), self.server_round
        digest = hashlib.sha256(proposal.encode()).digest()
        return _INFO + run + now.to_bytes(_NUMBER, "big") + self.key.public + digest

    def seal(self, report: bytes, proposal: str) -> bytes:
        """Return a ciphertext of :func:`sealed_length` bytes; two of one report differ."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        public = X25519PublicKey.from_public_bytes(self.key.public)
        sealed: bytes = _suite().encrypt(os.urandom(NONCE) + report, public, self.info(proposal))
        return sealed


def stated(proposal: UpdateProposal[Any], layout: ModelLayout, sealing: Sealing | None) -> str:
    """Return a round's whole proposal as canonical JSON, the same for client and server."""
    asked = {} if sealing is None else sealing.stated()
    fields = {**proposal.to_fields(), **layout.part.to_fields(), **asked}
    return canonical({**fields, "dimension": layout.dimension})


def without_sealing(fields: Mapping[str, object]) -> tuple[dict[str, object], Sealing | None]:
    """Return a proposal's other fields, and what its reports are sealed for, if anything.

    WireError ``"fields"`` or ``"analyzer"`` for a field that is alone or malformed.
    """
    others = {name: one for name, one in fields.items() if name not in (KEY_FIELD, ROUND_FIELD)}
    if len(others) == len(fields):
        return others, None
    if len(others) != len(fields) - 2:
        raise WireError("fields", f"{KEY_FIELD} and {ROUND_FIELD} go together")
    return others, Sealing.of_fields(fields[KEY_FIELD], fields[ROUND_FIELD])


def sealed_length(report_bytes: int) -> int:
    """Return the bytes of each ciphertext of a report so long."""
    return ENCAPSULATED + NONCE + report_bytes + _TAG


class Opener:
    """Opens the ciphertexts of one proposal.

    Parameters
    ----------
    secret : bytes
        Private half of the run's key.
    info : bytes
        Of :meth:`Sealing.info`.
    """

    def __init__(self, secret: bytes, info: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._key, self._info = X25519PrivateKey.from_private_bytes(secret), info

    def open(self, sealed: bytes) -> tuple[bytes, bytes]:
        """Return the random bytes and the report; WireError ``"sealed"`` for any other bytes."""
        from cryptography.exceptions import InvalidTag

        try:
            found: bytes = _suite().decrypt(sealed, self._key, self._info)
        except InvalidTag:
            raise WireError("sealed", "not a report of this run, round and proposal") from None
        if len(found) < NONCE:
            raise WireError("sealed", f"{len(found)} bytes are no report")
        return found[:NONCE], found[NONCE:]

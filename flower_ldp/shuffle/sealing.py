"""Sealing: a client encrypts its report to the analyzer's key of one round.

**Keys.** An analyzer has a signing key (Ed25519), which owners name in their policies. For each
round it makes a key pair and signs the public half together with the run and the fewest reports
that it answers for. The private half is erased with the answer, so that ciphertexts which were
stored cannot be opened later.

**A sealed report** is HPKE (RFC 9180, base mode) by ML-KEM-768 and X25519 together (X-Wing,
draft-connolly-cfrg-xwing-kem), HKDF-SHA256 and ChaCha20-Poly1305. Who breaks one of the two opens
nothing. No other bytes open to the same report without a new sealing, so that copies are equal.

**Binding.** HPKE's ``info`` holds the run, the minimum, the public key and the digest of the
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
#: Field of a proposal with the round's signed key.
KEY_FIELD = "analyzer-key"
#: How a policy and a strategy write a signing key.
SIGNER = r"ed25519:(?!0{64})[0-9a-f]{64}"  # for the key 0 anybody can sign
_PREFIX = "ed25519:"
#: Of public keys: the part of ML-KEM-768, and the whole.
_LATTICE, _PUBLIC = 1_184, 1_216
_SIGNATURE, _NUMBER, _SECRET = 64, 8, 32
_KEY_BYTES = 2 * _NUMBER + _PUBLIC + _SIGNATURE
#: Of a ciphertext: its encapsulated key and its authenticator.
_ENCAPSULATED, _TAG = 1_120, 16
_MOST_NUMBER = 1 << 63


@cache
def suite() -> Any:
    """Return HPKE's suite; ModuleNotFoundError without the extra ``shuffle``."""
    with needed("sealed reports need the hybrid HPKE of cryptography 48", "shuffle"):
        from cryptography.hazmat.primitives.hpke import (
            AEAD,
            KDF,
            KEM,
            MLKEM768X25519PublicKey,  # noqa: F401  # cryptography 47 has none
            Suite,
        )
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


@dataclass(frozen=True)
class RoundKey:
    """An analyzer's key of one round, signed.

    Parameters
    ----------
    run_id : int
        Flower's, in [0, 2^64).
    minimum : int
        The fewest reports that the analyzer answers for; in [1, 2^63).
    public : bytes
        Of ML-KEM-768 and X25519, 1,216 bytes.
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
    def from_bytes(cls, data: bytes) -> RoundKey:
        """Return the key of these bytes, unverified; WireError ``"analyzer"`` if they are none."""
        if len(data) != _KEY_BYTES:
            raise WireError("analyzer", f"a round's key has {_KEY_BYTES} bytes, got {len(data)}")
        numbers = data[:_NUMBER], data[_NUMBER : 2 * _NUMBER]
        run_id, minimum = (int.from_bytes(one, "big") for one in numbers)
        if not 1 <= minimum < _MOST_NUMBER:
            raise WireError("analyzer", f"minimum must be in [1, 2^63), got {minimum}")
        rest = data[2 * _NUMBER :]
        found = cls(run_id, minimum, rest[:_PUBLIC], rest[_PUBLIC:])
        try:  # to a point of low order nothing can be sealed
            suite().encrypt(b"", found.opened())
        except ValueError as error:
            raise WireError("analyzer", f"a round's key has no public key: {error}") from None
        return found

    def opened(self) -> Any:
        """Return the public key."""
        suite()
        from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.hpke import MLKEM768X25519PublicKey

        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(self.public[:_LATTICE]),
            X25519PublicKey.from_public_bytes(self.public[_LATTICE:]),
        )

    def verify(self, signer: str) -> None:
        """Raise ValueError unless the analyzer ``signer``, as ``"ed25519:..."``, signed it."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.removeprefix(_PREFIX)))
        signed = _SIGNED + _statement(self.run_id, self.minimum, self.public)
        try:
            key.verify(self.signature, signed)
        except InvalidSignature:
            raise ValueError(f"the round's key is not signed by {signer}") from None

    def info(self, proposal: str) -> bytes:
        """Return HPKE's ``info`` for a proposal as canonical JSON."""
        digest = hashlib.sha256(proposal.encode()).digest()
        return _INFO + _statement(self.run_id, self.minimum, self.public) + digest

    def seal(self, report: bytes, proposal: str) -> bytes:
        """Return a ciphertext of :func:`sealed_length` bytes; two of one report differ."""
        sealed: bytes = suite().encrypt(report, self.opened(), self.info(proposal))
        return sealed

    def open(self, sealed: bytes, proposal: str, private: Any) -> bytes:
        """Return the report; WireError ``"sealed"`` for any other bytes."""
        from cryptography.exceptions import InvalidTag

        try:
            report: bytes = suite().decrypt(sealed, private, self.info(proposal))
        except InvalidTag:
            raise WireError("sealed", "not a report of this key and proposal") from None
        return report


def _statement(run_id: int, minimum: int, public: bytes) -> bytes:
    return run_id.to_bytes(_NUMBER, "big") + minimum.to_bytes(_NUMBER, "big") + public


def signer_of(signing: bytes) -> str:
    """Return the public name of a signing key of 32 bytes, as policies write it."""
    public: bytes = _signing(signing).public_key().public_bytes_raw()
    return _PREFIX + public.hex()


def _signing(signing: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(signing)


def new_key(signing: bytes, run_id: int, minimum: int) -> tuple[RoundKey, bytes]:
    """Return a key for a round of a run, and its private half of 32 bytes."""
    secret = os.urandom(_SECRET)
    lattice, curve = _halves(secret)
    public = lattice.public_key().public_bytes_raw() + curve.public_key().public_bytes_raw()
    signature = _signing(signing).sign(_SIGNED + _statement(run_id, minimum, public))
    return RoundKey(run_id, minimum, public, signature), secret


def _halves(secret: bytes) -> tuple[Any, Any]:
    """Return the private keys of ML-KEM-768 and X25519, as X-Wing derives them."""
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    wide = hashlib.shake_256(secret).digest(96)
    lattice = MLKEM768PrivateKey.from_seed_bytes(wide[:64])
    return lattice, X25519PrivateKey.from_private_bytes(wide[64:])


def private_key(secret: bytes) -> Any:
    """Return the private key, of 32 bytes, by which :meth:`RoundKey.open` opens."""
    from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey

    return MLKEM768X25519PrivateKey(*_halves(secret))


def stated(proposal: UpdateProposal[Any], layout: ModelLayout, key: RoundKey | None) -> str:
    """Return a round's whole proposal as canonical JSON, the same for client and server."""
    asked = {} if key is None else {KEY_FIELD: key.to_bytes().hex()}
    fields = {**proposal.to_fields(), **layout.part.to_fields(), **asked}
    return canonical({**fields, "dimension": layout.dimension})


def without_key(fields: Mapping[str, object]) -> tuple[dict[str, object], RoundKey | None]:
    """Return a proposal's other fields, and the key that its reports are sealed for, if any.

    WireError ``"fields"`` or ``"analyzer"`` for a field that is malformed.
    """
    others = dict(fields)
    if KEY_FIELD not in others:
        return others, None
    stated_key = others.pop(KEY_FIELD)
    try:
        data = bytes.fromhex(str(stated_key))
    except ValueError:
        told = f"{KEY_FIELD} must be hexadecimal digits, got {quoted(stated_key)}"
        raise WireError("fields", told) from None
    return others, RoundKey.from_bytes(data)


def sealed_length(report_bytes: int) -> int:
    """Return the bytes of each ciphertext of a report so long."""
    return _ENCAPSULATED + report_bytes + _TAG

"""Sealed reports: whom they are for, and what no other bytes do."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace

import pytest

from flower_ldp.errors import WireError
from flower_ldp.policy.sections import AnalyzerRule
from flower_ldp.shuffle.sealing import (
    KEY_FIELD,
    SIGNER,
    RoundKey,
    new_key,
    private_key,
    sealed_length,
    signer_of,
    without_key,
)

SIGNING = bytes(range(32))
KEY, SECRET = new_key(SIGNING, 2**64 - 1, 2_000)
PRIVATE = private_key(SECRET)
TEXT = '{"epsilon":4.0}'
#: A key whose lattice half is out of range.
NO_POINT = replace(KEY, public=b"\xff" * 1_216)
#: A key to whose half of X25519 nothing can be sealed.
LOW_ORDER = replace(KEY, public=KEY.public[:1_184] + bytes(32))


def test_a_report_is_opened_by_its_key_alone_and_each_sealing_differs() -> None:
    first, second = KEY.seal(b"\1abc", TEXT), KEY.seal(b"\1abc", TEXT)
    assert first != second
    assert len(first) == len(second) == sealed_length(4)
    assert {KEY.open(one, TEXT, PRIVATE) for one in (first, second)} == {b"\1abc"}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (KEY, '{"epsilon":8.0}'),
        (replace(KEY, run_id=7), TEXT),
        (replace(KEY, minimum=7), TEXT),
        (replace(KEY, public=new_key(SIGNING, 2**64 - 1, 2_000)[0].public), TEXT),
    ],
    ids=["proposal", "run", "minimum", "key"],
)
def test_a_report_of_another_context_is_not_opened(key: RoundKey, text: str) -> None:
    sealed = KEY.seal(b"report", TEXT)
    with pytest.raises(WireError, match="sealed"):
        key.open(sealed, text, PRIVATE)


def test_a_key_is_the_signers_and_of_one_run_and_minimum() -> None:
    signer = signer_of(SIGNING)
    assert RoundKey.from_bytes(KEY.to_bytes()) == KEY
    KEY.verify(signer)
    for other in (
        replace(KEY, minimum=1),
        replace(KEY, run_id=1),
        replace(KEY, public=bytes(1_216)),
        replace(KEY, signature=bytes(64)),
    ):
        with pytest.raises(ValueError, match="not signed by"):
            other.verify(signer)
    with pytest.raises(ValueError, match="not signed by"):
        KEY.verify(signer_of(bytes(32)))


def is_signed(key: RoundKey, signer: str) -> bool:
    try:
        key.verify(signer)
    except ValueError:
        return False
    return True


def test_zeros_are_no_signer_since_anybody_can_sign_for_them() -> None:
    """They are a point of order 4: one of four keys has a signature without a private key."""
    zeros, signature = "ed25519:" + 64 * "0", b"\1" + bytes(63)
    keys = [replace(KEY, minimum=least, signature=signature) for least in range(1, 200)]
    assert any(is_signed(key, zeros) for key in keys)
    assert not any(is_signed(key, signer_of(SIGNING)) for key in keys)
    assert not re.fullmatch(SIGNER, zeros)
    assert re.fullmatch(SIGNER, signer_of(SIGNING))
    with pytest.raises(ValueError, match="as flower-ldp analyzer keygen prints"):
        AnalyzerRule(key=zeros, minimum=2_000)


def test_a_public_key_is_that_of_x_wings_first_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of draft-connolly-cfrg-xwing-kem: other software derives the same key."""
    seed = "7f9c2ba4e88f827d616045507605853ed73b8093f6efbc88eb1a6eacfa66ef26"
    monkeypatch.setattr(os, "urandom", lambda _: bytes.fromhex(seed))
    public = new_key(SIGNING, 1, 1)[0].public.hex()
    assert public.startswith("e2236b35a8c24b39b10aa1323a96a919a2ced88400633a7b07131713fc14b2b5")
    assert public.endswith("859edb06eff389b27dce59844570216223593d4ba32d9abac8cd049040ef6534")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({KEY_FIELD: KEY.to_bytes().hex()[:-2]}, "1296 bytes"),
        ({KEY_FIELD: replace(KEY, minimum=0).to_bytes().hex()}, "minimum"),
        ({KEY_FIELD: NO_POINT.to_bytes().hex()}, "has no public key"),
        ({KEY_FIELD: LOW_ORDER.to_bytes().hex()}, "has no public key"),
        ({KEY_FIELD: "text"}, "must be hexadecimal digits"),
        ({KEY_FIELD: KEY.to_bytes()}, "must be hexadecimal digits"),
    ],
)
def test_malformed_fields_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        without_key({"epsilon": 4.0, **fields})


def test_fields_are_read_as_they_are_written() -> None:
    fields = {"epsilon": 4.0, KEY_FIELD: KEY.to_bytes().hex()}
    assert without_key(fields) == ({"epsilon": 4.0}, KEY)
    assert without_key({"epsilon": 4.0}) == ({"epsilon": 4.0}, None)


def test_ten_thousand_malformed_ciphertexts_are_each_refused() -> None:
    """Random bytes, points of low order, cut, longer and changed ciphertexts."""
    length = sealed_length(4)
    # What multiplies to zero, or is another name of the same point.
    low = [
        bytes(32),
        (1).to_bytes(32, "little"),
        b"\xff" * 32,
        (2**255 - 19).to_bytes(32, "little"),
    ]
    whole = KEY.seal(b"\1abc", TEXT)
    reasons: Counter[str] = Counter()
    for place in range(10_000):
        kind = place % 5
        if kind == 0:
            found = os.urandom(place % 1_200)
        elif kind == 1:
            found = whole[:1_088] + low[place // 5 % len(low)] + whole[1_120:]
        elif kind == 2:
            bit = 5 * place % (8 * length)
            changed = bytearray(whole)
            changed[bit // 8] ^= 1 << bit % 8
            found = bytes(changed)
        elif kind == 3:
            found = whole[: place // 5 % length]
        else:
            found = whole + os.urandom(1 + place % 50)
        with pytest.raises(WireError) as raised:
            KEY.open(found, TEXT, PRIVATE)
        reasons[raised.value.reason] += 1
    assert reasons == {"sealed": 10_000}

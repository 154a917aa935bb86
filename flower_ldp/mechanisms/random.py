"""Random bits for privacy mechanisms: operating-system entropy through AES-256-CTR.

Local differential privacy fails with its randomness: a client whose noise can be
predicted or repeated has released its data. So a :class:`RandomSource` takes a fresh
256-bit key from ``os.urandom`` and expands it with AES in counter mode, a
cryptographic generator that costs about as much as a statistical one. It cannot be
copied or pickled, since two holders of one state draw the same noise; a forked
child takes a new key for the same reason.

All draws are exact: integers are uniform by rejection, never by a modulus or by
scaling a 53-bit float (whose grid cannot realise tails below 1e-16).

A source with a chosen seed exists for tests and for experiments that must repeat. It
is reached only through :meth:`RandomSource.seeded`, by name, and no class of this
package that runs in a deployment takes a seed.
"""

from __future__ import annotations

import hashlib
import os
from typing import NoReturn, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from flower_ldp.bounds import check_in

#: Arrays of truth values, of doubles and of whole numbers.
Bools: TypeAlias = NDArray[np.bool_]
Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_KEY_BYTES = 32
_COUNTER_BYTES = 16
# Keystream is made in pieces of this size at least: one cipher call costs about 1 us.
_BUFFER_BYTES = 4096


class RandomSource:
    """Cryptographic generator of exactly uniform integers.

    Use :meth:`from_os` (or the constructor, which is the same); :meth:`seeded` is for
    tests. Not safe for use by several threads at once: give each thread its own.

    Examples
    --------
    >>> rng = RandomSource.from_os()
    >>> 0 <= rng.below(10) < 10
    True
    """

    __slots__ = ("_buffer", "_encryptor", "_pid", "_position", "_seeded")

    def __init__(self) -> None:
        self._seeded = False
        self._rekey(os.urandom(_KEY_BYTES))

    @classmethod
    def from_os(cls) -> RandomSource:
        """Return a source with a fresh key from the operating system."""
        return cls()

    @classmethod
    def seeded(cls, seed: int) -> RandomSource:
        """Return a repeatable source. **Not private**: for tests and experiments only.

        Parameters
        ----------
        seed : int
            Any integer; equal seeds give equal streams on every platform.
        """
        source = cls.__new__(cls)
        source._seeded = True
        source._rekey(hashlib.sha256(b"flower-ldp seeded source %d" % seed).digest())
        return source

    @property
    def is_seeded(self) -> bool:
        """Whether the stream can be repeated, and so protects nothing."""
        return self._seeded

    def _rekey(self, key: bytes) -> None:
        self._pid = os.getpid()
        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(_COUNTER_BYTES))).encryptor()
        self._buffer = b""
        self._position = 0

    def random_bytes(self, n: int) -> bytes:
        """Return ``n`` uniformly random bytes."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        if not self._seeded and os.getpid() != self._pid:
            # A forked child would otherwise repeat its parent's noise.
            self._rekey(os.urandom(_KEY_BYTES))
        end = self._position + n
        if end > len(self._buffer):
            rest = self._buffer[self._position :]
            fresh = self._encryptor.update(bytes(max(n, _BUFFER_BYTES)))
            self._buffer = rest + fresh
            self._position, end = 0, n
        out = self._buffer[self._position : end]
        self._position = end
        return out

    def words(self, size: int) -> NDArray[np.uint64]:
        """Return ``size`` uniform 64-bit words, shape ``(size,)``, dtype uint64."""
        return np.frombuffer(self.random_bytes(8 * size), dtype="<u8").astype(np.uint64, copy=False)

    def bits(self, n: int) -> int:
        """Return an integer uniform on ``[0, 2**n)``."""
        if n < 0:
            raise ValueError(f"n must be at least 0, got {n}")
        n_bytes = -(-n // 8)
        return int.from_bytes(self.random_bytes(n_bytes), "little") >> (8 * n_bytes - n)

    def below(self, n: int) -> int:
        """Return an integer exactly uniform on ``[0, n)``, for an ``n`` of any size.

        Raises
        ------
        ValueError
            If ``n`` is not positive.
        """
        if n <= 0:
            raise ValueError(f"n must be positive, got {n}")
        width = (n - 1).bit_length()
        while True:
            value = self.bits(width)
            if value < n:
                return value

    def integers(self, high: int, size: int) -> Ints:
        """Return integers exactly uniform on ``[0, high)``, by rejection.

        Parameters
        ----------
        high : int
            Exclusive upper end, in ``[1, 2**63]``.
        size : int
            How many.

        Returns
        -------
        ndarray of int64, shape (size,)
        """
        check_in("[1, 2^63]", "high", high)
        check_in("[0, inf)", "size", size)
        if high == 1:
            return np.zeros(size, dtype=np.int64)
        shift, found = np.uint64(64 - (high - 1).bit_length()), np.empty(0, dtype=np.uint64)
        while len(found) < size:
            missing = size - len(found)
            # At least half of the candidates survive, so a few rounds are enough.
            candidates = self.words(2 * missing + 8) >> shift
            good = candidates[candidates < np.uint64(high)]
            found = np.concatenate([found, good[:missing]])
        return found.astype(np.int64)

    def sign(self) -> int:
        """Return -1 or +1, a fair coin."""
        return 1 if self.random_bytes(1)[0] & 1 else -1

    def __reduce__(self) -> NoReturn:
        # What copies and what pickles asks for this.
        raise TypeError(
            "a RandomSource cannot be copied or pickled: both would draw the same noise"
        )

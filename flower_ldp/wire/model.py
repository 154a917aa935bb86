"""A model as bytes, for keeping: its arrays one after the other, as the model sent has them.

Names, shapes and dtypes are those of the model that the server sent, so they are not written down
again, and all models that answer one message have one length. A version and a weight come first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError

_VERSION = 1
_HEAD = struct.Struct(">BQ")

Arrays = Mapping[str, NDArray[Any]]


def encode_model(arrays: Arrays, sent: Arrays, weight: int) -> bytes:
    """Return a model's bytes.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The model; an array for each of ``sent``, of its shape. Each gets the dtype that it has
        there.
    sent : mapping of str to ndarray
        The model that the server sent.
    weight : int
        Public, in [0, 2^64).

    Raises
    ------
    WireError
        If an array is missing or has another shape.
    """
    parts = [_HEAD.pack(_VERSION, weight)]
    for name, like in sent.items():
        found = arrays.get(name)
        if found is None or found.shape != like.shape:
            raise WireError("shape", f"array {name!r} is missing or has another shape")
        parts.append(np.ascontiguousarray(found.astype(_stored(like.dtype))).tobytes())
    return b"".join(parts)


def decode_model(data: bytes, sent: Arrays) -> tuple[dict[str, NDArray[Any]], int]:
    """Return the model of which :func:`encode_model` made these bytes, and its weight.

    Raises
    ------
    WireError
        If they are of another version or length.
    """
    sizes = {name: like.size * like.dtype.itemsize for name, like in sent.items()}
    if len(data) != _HEAD.size + sum(sizes.values()):
        raise WireError("length", f"{len(data)} bytes are no model like the one sent")
    version, weight = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise WireError("version", f"version {version}, expected {_VERSION}")
    arrays, start = {}, _HEAD.size
    for name, like in sent.items():
        flat = np.frombuffer(data, _stored(like.dtype), like.size, start)
        arrays[name] = flat.astype(like.dtype).reshape(like.shape)
        start += sizes[name]
    return arrays, weight


def model_digest(arrays: Arrays) -> str:
    """Return a digest of a model: of names, shapes, dtypes and entries; hexadecimal."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        head = repr((name, array.shape, array.dtype.str)).encode()
        found.update(len(head).to_bytes(8, "big") + head)
        found.update(np.ascontiguousarray(array.astype(_stored(array.dtype))).tobytes())
    return found.hexdigest()


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype with its low bytes first."""
    return dtype.newbyteorder("<")

"""Private training on the wire: the plan that a server proposes, and a trained model for keeping.

A plan travels in fields of its own of the ConfigRecord that Flower's strategies send::

    strategy.start(grid, arrays, train_config=ConfigRecord(plan_fields(plan)))

Without it the owner's policy has to set one.

The bytes of a trained model are a version, a weight, and its arrays one after the other, without
their public names, shapes and dtypes: all models that answer one message have one length.
"""

import hashlib
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.wire.proposal import in_domain

_PREFIX = "ldp-"
_FIELDS: dict[str, type[Any]] = {
    **dict.fromkeys(("ldp-rounds", "ldp-steps"), int),
    **dict.fromkeys(("ldp-rate", "ldp-noise", "ldp-epsilon", "ldp-delta"), float),
}
_NAME = f"{_PREFIX}plan"
#: Without it, clipping is automatic.
_CLIP: dict[str, type[Any]] = {"ldp-clip": float}
#: Both or none.
_EVALUATIONS: dict[str, type[Any]] = {"ldp-evaluations": int, "ldp-evaluation-epsilon": float}
#: FedProx's own field: the weight of its proximal term.
PROXIMAL = "proximal-mu"


def plan_fields(plan: TrainingPlan) -> dict[str, int | float | str]:
    """Return the fields that propose a plan, for ``train_config``."""
    fields = {f"{_PREFIX}{name}": value for name, value in plan.terms().items()}
    return {_NAME if name == f"{_PREFIX}name" else name: value for name, value in fields.items()}


def read_plan(fields: Mapping[str, object]) -> TrainingPlan | None:
    """Return the plan that a configuration proposes, or None if it proposes none.

    Raises
    ------
    WireError
        ``"fields"`` if some fields of a plan are missing, unknown or ill-typed, ``"domain"`` for
        values outside their intervals.
    """
    found = {name for name in fields if name.startswith(_PREFIX)}
    if not found:
        return None
    wanted = dict(_FIELDS)
    for more in (_CLIP, _EVALUATIONS):
        wanted |= more if found & more.keys() else {}
    if odd := (found - {_NAME}) ^ wanted.keys():
        raise WireError("fields", f"missing or unknown fields of a plan: {quoted(sorted(odd))}")
    terms: dict[str, Any] = {
        name.removeprefix(_PREFIX).replace("-", "_"): typed(fields, name, kind)
        for name, kind in wanted.items()
    }
    with in_domain():
        return TrainingPlan(**terms, name=typed(fields, _NAME, str) if _NAME in found else "")


def read_proximal(fields: Mapping[str, object]) -> float:
    """Return the weight of FedProx's proximal term, by default 0; WireError outside [0, 1e6]."""
    value: Any = fields.get(PROXIMAL, 0.0)
    if type(value) not in (int, float) or not 0 <= value <= 1e6:
        raise WireError("fields", f"{PROXIMAL} must be a number in [0, 1e6], got {quoted(value)}")
    return math.fabs(value)


_VERSION = 1
_HEAD = struct.Struct(">BQ")

Arrays = Mapping[str, NDArray[Any]]


def encode_model(arrays: Arrays, sent: Arrays, weight: int) -> bytes:
    """Return a model's bytes, with the dtypes of ``sent`` and a public weight in [0, 2^64).

    WireError if an array is missing or has another shape.
    """
    parts = [_HEAD.pack(_VERSION, weight)]
    for name, like in sent.items():
        found = arrays.get(name)
        if found is None or found.shape != like.shape:
            raise WireError("shape", f"array {name!r} is missing or has another shape")
        parts.append(np.ascontiguousarray(found.astype(_stored(like.dtype))).tobytes())
    return b"".join(parts)


def decode_model(data: bytes, sent: Arrays) -> tuple[dict[str, NDArray[Any]], int]:
    """Undo :func:`encode_model`; WireError for another version or length."""
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
    """Return a hexadecimal digest of names, shapes, dtypes and entries."""
    found = hashlib.sha256()
    for name, array in arrays.items():
        head = repr((name, array.shape, array.dtype.str)).encode()
        found.update(len(head).to_bytes(8, "big") + head)
        found.update(np.ascontiguousarray(array.astype(_stored(array.dtype))).tobytes())
    return found.hexdigest()


def _stored(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("<")

"""A model as one vector: its arrays, their order and offsets, and a part of it.

Both ends flatten the floating-point arrays in the record's order. Integer and boolean arrays stay
as the server sent them, and so do floating-point arrays outside the proposal, as BatchNorm's
running statistics, which are averages of private inputs.

A proposal may name arrays, a subspace, both or neither (docs/part.md). Both cost nothing, since a
mechanism's guarantee holds for any function of the update.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.hadamard import Subspace
from flower_ldp.wire.proposal import in_domain, many

#: A name or a pattern (``*``, ``?``, ``[abc]``) of arrays, or several.
Trainable: TypeAlias = str | Sequence[str]

_NAMES, _DIMENSION, _SEED = "trainable", "subspace-dimension", "subspace-seed"
_FIELDS = frozenset({_NAMES, _DIMENSION, _SEED})
_MEAN, _VARIANCE = "running_mean", "running_var"
# Characters of all names as JSON: a ledger's entry keeps them, with the rest of the proposal.
_MOST_CHARACTERS = 49_152
# Names that an error lists.
_MOST_NAMED = 40


@dataclass(frozen=True)
class Part:
    """The part of a model that a round's reports are about.

    Parameters
    ----------
    names : tuple of str or None
        Floating-point arrays; None for all. ValueError for no name, repeated ones, or too much for
        a ledger's entry.
    subspace : Subspace or None
        Of the projection; None for the update itself.
    """

    names: tuple[str, ...] | None = None
    subspace: Subspace | None = None

    def __post_init__(self) -> None:
        if self.names is None:
            return
        if not self.names or len(set(self.names)) != len(self.names):
            raise ValueError("the arrays of a part must be at least one, and all different")
        length = len(json.dumps(self.names))
        if length > _MOST_CHARACTERS:
            raise ValueError(
                f"the names of the {len(self.names)} arrays of a part have {length} characters, "
                f"and {_MOST_CHARACTERS} are the most"
            )

    def to_fields(self) -> dict[str, int | list[str]]:
        """Return the fields of a proposal: none for all of a model."""
        fields: dict[str, int | list[str]] = {}
        if self.names is not None:
            fields[_NAMES] = list(self.names)
        if self.subspace is not None:
            fields |= {_DIMENSION: self.subspace.dimension, _SEED: self.subspace.seed}
        return fields


WHOLE = Part()


def without_part(fields: Mapping[str, object]) -> tuple[dict[str, object], Part]:
    """Return a proposal's other fields, and its part of the model.

    WireError ``"fields"`` for another type or a missing field of the subspace; ``"domain"`` for
    values outside their intervals.
    """
    others = {name: value for name, value in fields.items() if name not in _FIELDS}
    if (_DIMENSION in fields) != (_SEED in fields):
        raise WireError("fields", f"{_DIMENSION} and {_SEED} go together")
    with in_domain():
        names = tuple(many(fields, _NAMES, str)) if _NAMES in fields else None
        if _DIMENSION not in fields:
            return others, Part(names)
        subspace = Subspace(typed(fields, _DIMENSION, int), typed(fields, _SEED, int))
        return others, Part(names, subspace)


def patterns_of(trainable: Trainable | None) -> tuple[str, ...] | None:
    """Return patterns; None for all arrays."""
    if trainable is None:
        return None
    patterns = (trainable,) if isinstance(trainable, str) else trainable
    if not isinstance(patterns, Sequence) or not all(isinstance(one, str) for one in patterns):
        raise TypeError(
            "trainable must be names or patterns of arrays, as 'head.*' or ['head.*', '*lora*'], "
            f"got {quoted(trainable)}"
        )
    if not patterns or not all(patterns):
        raise ValueError("trainable must be one name or pattern at least, and none empty")
    return tuple(patterns)


def named_by(patterns: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
    """Return the names of the floating-point arrays that patterns match, in the record's order.

    Shell patterns: ``*`` any text, dots included, ``?`` any character, ``[abc]`` one of these; case
    matters. One that fits no name from its start is tried after each dot, as ``lora_*``. Running
    statistics (:func:`running_statistics`) need their own names.

    Raises
    ------
    ValueError
        If a pattern matches no floating-point array with an entry. The text lists the arrays.
    """
    there = [name for name, array in arrays.items() if array.dtype.kind == "f" and array.size]
    found, statistics = set[str](), running_statistics(arrays)
    for pattern in patterns:
        for tried in (pattern, f"*.{pattern}"):
            matched = {
                name
                for name in there
                if name == tried or (name not in statistics and fnmatchcase(name, tried))
            }
            if matched:
                break
        else:
            listed = ", ".join(map(quoted, there[:_MOST_NAMED]))
            more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
            raise ValueError(
                f"trainable {quoted(pattern)} matches no floating-point array; "
                f"there are {listed or 'none'}{more}"
            )
        found |= matched
    return tuple(name for name in there if name in found)


def running_statistics(arrays: Mapping[str, NDArray[Any]]) -> frozenset[str]:
    """Return the names of BatchNorm's running statistics in torch's state dictionaries.

    These are ``running_mean`` and ``running_var`` of one layer, two vectors of one length.
    """
    found = set[str]()
    for name, array in arrays.items():
        variance = name.removesuffix(_MEAN) + _VARIANCE
        if name.endswith(_MEAN) and variance in arrays and array.ndim == 1:
            found |= {name, variance} if arrays[variance].shape == array.shape else set()
    return frozenset(found)


def perhaps_statistics(arrays: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return names of other floating-point arrays that may be running statistics.

    Their names look like it, or an integer without axes follows two vectors of one length.
    """
    names = list(arrays)
    found = {name for name in names if "running_" in name or "moving_" in name}
    for mean, variance, counter in zip(names, names[1:], names[2:], strict=False):
        counts = arrays[counter].ndim == 0 and arrays[counter].dtype.kind in "iu"
        if counts and arrays[mean].ndim == 1 and arrays[mean].shape == arrays[variance].shape:
            found |= {mean, variance}
    found -= running_statistics(arrays)
    return [name for name in names if name in found and arrays[name].dtype.kind == "f"]


_FLOATS = ("f2", "f4", "f8")
_COUNTERS = "biu"
#: Ends the complaint about an array with fewer rows, as that of a model of fewer classes.
FEWER_ROWS = ": it has fewer rows"


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype of one array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        """Whether the array can belong to the update."""
        return self.dtype.kind == "f"

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class ModelLayout:
    """The arrays of a model, in the record's order.

    Parameters
    ----------
    specs : tuple of ArraySpec
        All arrays, counters included.
    part : Part
        The part of the reports; by default all floating-point arrays.
    alone : bool
        Whether a trained model may hold the part's arrays alone, as it may wherever the part names
        them.
    """

    specs: tuple[ArraySpec, ...]
    part: Part = WHOLE
    alone: bool = False

    @classmethod
    def of(
        cls, arrays: Mapping[str, NDArray[Any]], part: Part = WHOLE, *, alone: bool = False
    ) -> ModelLayout:
        """Read the layout of a model.

        Raises
        ------
        ValueError
            If an array is neither float16, float32, float64, integer nor boolean; if the part names
            anything but floating-point arrays; if no floating-point entry is left, or fewer than
            the subspace's dimension.
        """
        specs = []
        for name, array in arrays.items():
            if array.dtype.kind not in _COUNTERS and array.dtype.str[1:] not in _FLOATS:
                raise ValueError(
                    f"array {quoted(name)} has dtype {array.dtype}, which is not supported"
                )
            specs.append(ArraySpec(name, array.shape, array.dtype))
        layout = cls(tuple(specs), part, alone)
        odd = set(part.names or ()) - {spec.name for spec in layout.updated}
        if odd:
            raise ValueError(f"no floating-point arrays of the model: {quoted(sorted(odd))}")
        if layout.dimension == 0:
            raise ValueError(
                "the model has no floating-point entries: its arrays are "
                f"{quoted({spec.name: str(spec.dtype) for spec in specs})}. Reports are about "
                "differences of weights, and trees (XGBoost) have none: train a model of weights, "
                "as logistic regression or a small network"
            )
        if part.subspace is not None:
            part.subspace.check(layout.dimension)
        return layout

    @cached_property
    def updated(self) -> tuple[ArraySpec, ...]:
        """The arrays of the update: floating-point, and of the part."""
        floats = tuple(spec for spec in self.specs if spec.is_float)
        named = None if self.part.names is None else frozenset(self.part.names)
        return floats if named is None else tuple(s for s in floats if s.name in named)

    @property
    def is_partial(self) -> bool:
        """Whether a trained model's other arrays are left out, or passed over."""
        return self.alone or self.part.names is not None

    @cached_property
    def required(self) -> tuple[ArraySpec, ...]:
        """The arrays that a trained model has to hold: all, or those of the update with entries."""
        return tuple(s for s in self.updated if s.size) if self.is_partial else self.specs

    @cached_property
    def dimension(self) -> int:
        """Entries of the update, d."""
        return sum(spec.size for spec in self.updated)

    @property
    def entries(self) -> int:
        """Entries that a report is about: the subspace's k, or d."""
        return self.dimension if self.part.subspace is None else self.part.subspace.dimension

    def check_names(self, found: Iterable[str]) -> None:
        """Raise WireError unless a trained model holds exactly the required arrays.

        Where it may hold the part alone, other arrays are not read.
        """
        names, has = {spec.name for spec in self.required}, set(found)
        odd = {"missing": names - has, "added": set() if self.is_partial else has - names}
        if any(odd.values()):
            told = (f"{what} {quoted(sorted(which))}" for what, which in odd.items() if which)
            raise WireError("layout", f"arrays {', '.join(told)}")

    def difference(
        self, new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        """Return ``new - old`` over the part's arrays, flattened to float32 of shape (d,).

        ``new`` has any order of names, and its other arrays are as in :meth:`check_names`.

        Raises
        ------
        WireError
            If ``new`` has other arrays, shapes or dtypes. The text names them.
        """
        self.check_names(new)
        for spec in self.required:
            got = new[spec.name]
            if got.shape != spec.shape or got.dtype != spec.dtype:
                fewer = got.ndim == len(spec.shape) > 0 and len(got) < spec.shape[0]
                raise WireError(
                    "layout",
                    f"array {quoted(spec.name)} is {got.dtype}{got.shape}, "
                    f"sent was {spec.dtype}{spec.shape}{FEWER_ROWS if fewer else ''}",
                )
        update = np.empty(self.dimension, dtype=np.float32)
        for spec, piece in self._pieces(update):
            if not spec.size:  # it may be left out
                continue
            with np.errstate(all="ignore"):
                # An overflow becomes an infinity, which the mechanism refuses.
                # float16 is widened first: its differences round and overflow early.
                np.subtract(
                    new[spec.name],
                    old[spec.name],
                    out=piece,
                    dtype=np.promote_types(spec.dtype, np.float32),
                    casting="same_kind",
                )
        return update

    def _pieces(self, update: NDArray[Any]) -> Iterator[tuple[ArraySpec, NDArray[Any]]]:
        start = 0
        for spec in self.updated:
            yield spec, update[start : start + spec.size].reshape(spec.shape)
            start += spec.size

    def project(self, update: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the update or its projection; finite for finite float32 numbers."""
        return update if self.part.subspace is None else self.part.subspace.project(update)

    def lift(self, step: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the update, shape (d,), of a step in the reports' space."""
        within = self.part.subspace
        return step if within is None else within.lift(step, self.dimension)

    def add(
        self, arrays: Mapping[str, NDArray[Any]], update: NDArray[np.floating[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the model plus a flat update of shape (d,), or ValueError for another."""
        if update.shape != (self.dimension,):
            raise ValueError(f"update must have shape ({self.dimension},), got {update.shape}")
        moved = {spec.name: arrays[spec.name] for spec in self.specs}
        for spec, piece in self._pieces(update):
            # asarray: numpy turns a sum of arrays without axes into a scalar
            moved[spec.name] = np.asarray(arrays[spec.name] + piece, dtype=spec.dtype)
        return moved

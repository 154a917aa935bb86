"""A part of a model on the wire: fields of any proposal about updates, and names of arrays.

A proposal that names arrays (``trainable``) is about the update of these alone, and one that
states a subspace (``subspace-dimension``, ``subspace-seed``) about the update's projection onto
it: the mechanism works on k numbers in place of d. Both may come together, or neither: a proposal
without these fields is about all floating-point arrays, weight by weight. They cost nothing, since
a mechanism's guarantee holds for any function of the update.

BatchNorm's running statistics are no weights: they are averages of what passed through. A server
whose model has them names all other arrays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.mechanisms.base import typed
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.wire.fields import in_domain, many

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
    """What of a model a round's reports are about.

    Parameters
    ----------
    names : tuple of str or None
        Floating-point arrays; all of them if None.
    subspace : Subspace or None
        What the update of these is projected onto; None for the update itself.

    Raises
    ------
    ValueError
        If the names are none, not all different, or too long for a ledger's entry.
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

    def __str__(self) -> str:
        arrays = "all arrays" if self.names is None else f"{len(self.names)} arrays"
        within = self.subspace
        return arrays if within is None else f"{arrays}, in {within.dimension} public dimensions"


#: All of a model, weight by weight.
WHOLE = Part()


def without_part(fields: Mapping[str, object]) -> tuple[dict[str, object], Part]:
    """Return a proposal's other fields, and what of the model it is about.

    Raises
    ------
    WireError
        ``"fields"`` if one is of another type, or one of the subspace's is missing; ``"domain"``
        for values outside their intervals.
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
    """Return the patterns that an argument means; None for all arrays.

    Raises
    ------
    TypeError
        If it is neither text nor several texts.
    ValueError
        If there is none, or an empty one.
    """
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

    Parameters
    ----------
    patterns : sequence of str
        Names, or patterns as shells have them: ``*`` any text, dots included, ``?`` any
        character, ``[abc]`` one of these. Capital letters matter. Running statistics
        (:func:`running_statistics`) are matched by their own names alone.
    arrays : mapping of str to ndarray
        A model.

    Raises
    ------
    ValueError
        If a pattern matches no floating-point array with an entry. The text names those there are.
    """
    there = [name for name, array in arrays.items() if array.dtype.kind == "f" and array.size]
    found, statistics = set[str](), running_statistics(arrays)
    for pattern in patterns:
        matched = {
            name
            for name in there
            if name == pattern or (name not in statistics and fnmatchcase(name, pattern))
        }
        if not matched:
            listed = ", ".join(quoted(name) for name in there[:_MOST_NAMED])
            more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
            raise ValueError(
                f"trainable {quoted(pattern)} matches no floating-point array; "
                f"there are {listed or 'none'}{more}"
            )
        found |= matched
    return tuple(name for name in there if name in found)


def running_statistics(arrays: Mapping[str, NDArray[Any]]) -> frozenset[str]:
    """Return the names of BatchNorm's running statistics, as torch's state dictionaries have them.

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

    Their names look like it, or, as in a list of a state dictionary's values, an integer without
    axes (the counter of batches) follows two vectors of one length.
    """
    names = list(arrays)
    found = {name for name in names if "running_" in name or "moving_" in name}
    for mean, variance, counter in zip(names, names[1:], names[2:], strict=False):
        counts = arrays[counter].ndim == 0 and arrays[counter].dtype.kind in "iu"
        if counts and arrays[mean].ndim == 1 and arrays[mean].shape == arrays[variance].shape:
            found |= {mean, variance}
    found -= running_statistics(arrays)
    return [name for name in names if name in found and arrays[name].dtype.kind == "f"]

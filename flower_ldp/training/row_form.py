"""The form of a public row, in which private rows are read and copied.

A row is a tensor, array, number or text, or a tuple, list, dict or object of these, at any depth.
Arrays, numbers and nested lists of numbers become plain tensors on the CPU. Objects become
namespaces of their attributes. Nothing else of a row reaches a loss.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from flower_ldp.isolation import alone

#: Tensors and text, in tuples, lists, dicts and SimpleNamespaces.
Row = Any
#: Maps a part of a row, the public row's part, and its name.
_Part = Callable[[Any, Any, str], Any]


def form_of(like: Any, name: str = "like") -> Row:
    """Return a copy of a public row; raise ValueError if it has what no row may hold."""
    if isinstance(like, str):
        return str.__str__(like)
    if not isinstance(like, (tuple, list, Mapping)) or (name != "like" and _is_numbers(like)):
        with suppress(Exception):  # an object may have no tensor
            found = torch.as_tensor(like).detach().clone()
            return _tensor(found, found, name)
    if isinstance(like, Mapping):
        return {key: form_of(one, f"{name}[{key!r}]") for key, one in like.items()}
    if isinstance(like, (tuple, list)):
        return _sequence(like, [form_of(one, f"{name}[{at}]") for at, one in enumerate(like)])
    names = vars(like) if hasattr(like, "__dict__") else getattr(like, "__slots__", ())
    if not names or isinstance(like, type):
        raise ValueError(
            f"{name} is {type(like).__name__}, which no row may hold: leave it out of like, or "
            "make it a tensor, a number or text in __getitem__"
        )
    return SimpleNamespace(**{key: form_of(getattr(like, key), f"{name}.{key}") for key in names})


def in_form(row: Any, like: Row) -> Row:
    """Return a row in a public row's form; raise what it raises, or ValueError for another form.

    Entries and attributes that the public row lacks are not read.
    """
    return _mapped(_checked, row, like, "row")


def batch_of_one(row: Row) -> Row:
    """Return copies of a row's tensors with a batch axis, and its text in lists of one."""
    return _mapped(lambda one, *_: [one] if isinstance(one, str) else alone(one), row, row, "row")


def _mapped(part: _Part, row: Any, like: Row, name: str) -> Row:
    if isinstance(like, (torch.Tensor, str)):
        return part(row, like, name)
    if isinstance(like, SimpleNamespace):
        named = vars(like).items()
        found = {key: _mapped(part, getattr(row, key), o, f"{name}.{key}") for key, o in named}
        return SimpleNamespace(**found)
    if not isinstance(row, Mapping if isinstance(like, dict) else (tuple, list)):
        raise ValueError(f"{name} must be a {type(like).__name__}, found {type(row).__name__}")
    if isinstance(like, dict):
        return {key: _mapped(part, row[key], o, f"{name}[{key!r}]") for key, o in like.items()}
    if len(row) != len(like):
        raise ValueError(f"{name} must have {len(like)} parts, found {len(row)}")
    both = enumerate(zip(row, like, strict=True))
    return _sequence(like, [_mapped(part, *pair, f"{name}[{at}]") for at, pair in both])


def _sequence(like: tuple[Any, ...] | list[Any], parts: list[Any]) -> Row:
    return parts if isinstance(like, list) else tuple.__new__(type(like), parts)


def _is_numbers(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_numbers, value))
    return isinstance(value, (int, float, np.generic))


def _checked(value: Any, like: torch.Tensor | str, name: str) -> torch.Tensor | str:
    if isinstance(like, torch.Tensor):
        return _tensor(value, like, name)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be text, found {type(value).__name__}")
    return str.__str__(value)


def _tensor(value: Any, like: torch.Tensor, name: str) -> torch.Tensor:
    found = torch.as_tensor(value).detach().as_subclass(torch.Tensor)
    rounds = found.is_floating_point() and not like.is_floating_point()
    if found.shape != like.shape or found.layout != like.layout or found.is_complex() or rounds:
        wanted, given = (f"{tuple(t.shape)}, {t.dtype}, {t.layout}" for t in (like, found))
        raise ValueError(f"{name}: expected shape {wanted}, found {given}")
    found = found.to("cpu", like.dtype)
    if type(found) is not torch.Tensor:  # its class copies it, and may leave memory as it was
        raise ValueError(f"{name}: expected a plain tensor, found {type(found).__name__}")
    return found

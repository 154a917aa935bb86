"""Arguments of strategies that are easily confused: refused at once, with what to write."""

from __future__ import annotations

from typing import TypeVar

ArgumentT = TypeVar("ArgumentT")


def must_be(
    name: str, value: object, kind: type[ArgumentT] | tuple[type[ArgumentT], ...], write: str
) -> None:
    """Raise TypeError unless an argument is of its type.

    Parameters
    ----------
    name : str
        The argument's.
    value : object
        What was given.
    kind : type or tuple of type
        What it must be an instance of.
    write : str
        An example of what to write.
    """
    if isinstance(value, kind):
        return
    given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:100]
    raise TypeError(f"{name} must be {write}, got {given}")

"""Facts: the parts of an answer, each stated once, for programs and for people."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fact:
    """A part of an answer, for programs and for people.

    Parameters
    ----------
    key : str
        In JSON; ``bytes_up.total`` is ``total`` in the object ``bytes_up``. Without a key it is for
        people alone.
    value : object
        In JSON. None, with a key and without a text, is not shown to people.
    label : str
        Text before the value; without it the fact is for programs alone.
    more : str
        Text after the value.
    text : str
        Text in place of the value.
    """

    key: str
    value: Any
    label: str = ""
    more: str = ""
    text: str = ""

    def __str__(self) -> str:
        value = number(self.value) if isinstance(self.value, float) else shown(self.value)
        return (self.text or value) + self.more


def note(label: str, text: str) -> Fact:
    """Return a fact for people alone."""
    return Fact("", None, label, text=text)


def keyed(of: str, **values: Any) -> list[Fact]:
    """Return facts for programs alone, under keys in the object ``of``."""
    return [Fact(f"{of}.{name}", value) for name, value in values.items()]


def beneath(facts: Iterable[Fact]) -> str:
    """Return the facts for people, with aligned values."""
    told = [one for one in facts if one.label and (one.value is not None or one.text)]
    width = max((len(fact.label) for fact in told), default=0)
    return "\n".join(f"{fact.label:<{width}}  {fact}" for fact in told)


def number(value: float) -> str:
    """Return a computed number for reading: seven digits, no trailing zeros."""
    return f"{value:,.7g}" if 1e-4 <= abs(value) < 1e9 or value == 0 else f"{value:.4g}"


def shown(value: object) -> str:
    """Return a value for reading, with all digits."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "-"
    if isinstance(value, dict):
        return shown([f"{name} {shown(one)}" for name, one in value.items()])
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.15g}" if isinstance(value, float) else str(value)

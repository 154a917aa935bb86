"""What a distribution says that it needs, as far as this package says it: ``flwr<2,>=1.32``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([^"']+)["']""")
_BOUND = re.compile(r"(>=|<)([0-9.]+)")


@dataclass(frozen=True)
class Requirement:
    """A distribution and the versions of it that will do.

    Parameters
    ----------
    name : str
        Of the distribution.
    versions : str
        Bounds with commas between them, the lower one first; empty if every version will do.
    """

    name: str
    versions: str

    def __str__(self) -> str:
        """Return what pip takes."""
        return self.name + self.versions

    def admits(self, version: str) -> bool:
        """Return whether a version is within the bounds; of ``1.32.0rc1`` the numbers count."""
        found = _numbers(version)
        for sign, bound in _BOUND.findall(self.versions):
            if (found >= _numbers(bound)) != (sign == ">="):
                return False
        return True


def requirements(lines: Iterable[str]) -> Iterator[Requirement]:
    """Yield what is needed without any extra.

    Parameters
    ----------
    lines : iterable of str
        As ``importlib.metadata.requires`` has them.
    """
    for line in lines:
        text, _, marker = line.partition(";")
        if "extra" not in marker:
            yield from _read(text)


def of_extra(extra: str, lines: Iterable[str]) -> Iterator[Requirement]:
    """Yield what an extra asks for by itself, and not by other extras of the same distribution."""
    for line in lines:
        text, _, marker = line.partition(";")
        asked = _EXTRA.search(marker)
        if asked is not None and asked[1] == extra:
            yield from _read(text)


def _read(text: str) -> Iterator[Requirement]:
    name = _NAME.match(text)
    if name is not None:
        bounds = sorted(("".join(one) for one in _BOUND.findall(text)), reverse=True)
        yield Requirement(name[0], ",".join(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a release, without zeros at its end: 2.0 is 2."""
    found = re.match(r"[0-9.]+", version)
    numbers = [int(part) for part in (found[0] if found else "").split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

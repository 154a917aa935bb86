"""What a distribution needs, and what of it is installed: the closure over requirements.

An extra counts as installed where all that it asks for is. A requirement is read with this
interpreter's markers (Python, system), as its installer read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

from flower_ldp.installed.files import every, find_distribution, normal

try:
    from packaging.requirements import Requirement
except ModuleNotFoundError as error:  # pragma: no cover
    raise ModuleNotFoundError(
        "a list of components needs packaging: pip install 'flower-ldp[sbom]'", name=error.name
    ) from error


@dataclass(frozen=True)
class Component:
    """A distribution that is installed.

    Parameters
    ----------
    name : str
        In its normal form, as ``typing-extensions``.
    distribution : Distribution
        As :mod:`importlib.metadata` found it.
    needs : tuple of str
        Names of the components that it asks for, sorted.
    is_optional : bool
        Whether an extra of the root alone brings it.
    """

    name: str
    distribution: Distribution
    needs: tuple[str, ...]
    is_optional: bool


@dataclass(frozen=True)
class Installed:
    """A root, and what it needs.

    Parameters
    ----------
    root : Component
        What was asked for.
    others : tuple of Component
        Sorted by name.
    extras : tuple of str
        The root's that are installed.
    missing : tuple of str
        What is asked for without an extra and is not installed.
    """

    root: Component
    others: tuple[Component, ...]
    extras: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass
class _Walk:
    """Names that are reached from some requirements, the edges, and what is not there."""

    found: Mapping[str, Distribution]
    asked: Callable[[str], list[Requirement]]
    edges: dict[str, set[str]] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)

    def take(self, name: str, extra: str) -> None:
        """Follow all that a distribution asks for, with an extra of its own or without."""
        open_, seen = [(name, extra)], set[tuple[str, str]]()
        while open_:
            one = open_.pop()
            if one in seen:
                continue
            seen.add(one)
            edges = self.edges.setdefault(one[0], set())
            for asked in self.asked(one[0]):
                if asked.marker is not None and not asked.marker.evaluate({"extra": one[1]}):
                    continue
                target = normal(asked.name)
                if target not in self.found:
                    self.missing.add(target)
                    continue
                if target != one[0]:  # an extra may ask for others of its own distribution
                    edges.add(target)
                open_ += [(target, more) for more in ("", *sorted(asked.extras))]


def closure(name: str, site: Path | None = None) -> Installed:
    """Return a distribution with all that it needs and that is installed.

    Parameters
    ----------
    name : str
        Of the root.
    site : Path, optional
        The folder of installed distributions; by default where this interpreter looks.

    Raises
    ------
    ConfigError
        If the root is not installed.
    """
    root = normal(find_distribution(name, site).metadata["Name"])
    found: dict[str, Distribution] = {}
    for one in every(site):
        found.setdefault(normal(one.metadata["Name"]), one)  # the first is what is imported

    @cache
    def asked(name: str) -> list[Requirement]:
        return [Requirement(text) for text in found[name].requires or ()]

    base = _Walk(found, asked)
    base.take(root, "")
    whole = _Walk(found, asked, {key: set(value) for key, value in base.edges.items()})
    extras = []
    for extra in sorted(found[root].metadata.get_all("Provides-Extra") or ()):
        tried = _Walk(found, asked)
        tried.take(root, extra)
        if tried.missing <= base.missing:
            extras.append(extra)
            for key, value in tried.edges.items():
                whole.edges.setdefault(key, set()).update(value)
    parts = {
        key: Component(key, found[key], tuple(sorted(value)), key not in base.edges)
        for key, value in whole.edges.items()
    }
    others = tuple(parts[key] for key in sorted(parts.keys() - {root}))
    return Installed(parts[root], others, tuple(extras), tuple(sorted(base.missing)))

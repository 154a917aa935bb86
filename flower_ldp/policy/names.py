"""Names of mechanisms in a policy: a near miss of a known name is an error, with the right name.

A misspelt name would allow nothing, and its owner would find out only when the first release is
refused. A name that is like none of the package's is taken as it is: an app may have a mechanism
of its own.
"""

from __future__ import annotations

from difflib import get_close_matches

from pydantic_core import PydanticCustomError

from flower_ldp.mechanisms import MECHANISMS

#: Other names of the same things, without what people write differently.
_OTHER_NAMES = {other: name for name, others in MECHANISMS.items() for other in others}
_NEAR = 0.8


def mechanism_name(value: str) -> str:
    """Return the name, or raise if it is nearly that of a mechanism and is none.

    Raises
    ------
    PydanticCustomError
        With the name that is meant.
    """
    name, colon, condition = value.partition(":")
    meant = _meant(name)
    if meant in (None, name):
        return value
    raise PydanticCustomError(
        "mechanism_name",
        "must be {meant}: no mechanism is called {given}",
        {"given": repr(value), "meant": repr(f"{meant}{colon}{condition}")},
    )


def _meant(name: str) -> str | None:
    """Return the known name that a name is, or is nearly; None if it is like none."""
    plain = _plain(name)
    if plain in _OTHER_NAMES:
        return _OTHER_NAMES[plain]
    for known in MECHANISMS:
        rest = name.removeprefix(known)
        if rest != name and not rest[:1].isalpha():
            return known if not rest else None  # a variant with a name of its own, as laplace_2
    known_names = {_plain(one): one for one in MECHANISMS}
    near = get_close_matches(plain, known_names, n=1, cutoff=_NEAR)
    return known_names[near[0]] if near else None


def _plain(name: str) -> str:
    """Return a name without what people write differently."""
    found = "".join(c for c in name.lower() if c.isalnum())
    return found.removesuffix("release").removesuffix("strategy") or found

"""What an app finds installed: one digest of the interpreter and of the distributions' lists.

A wheel's ``RECORD`` holds the digest of each file as it was installed. Not held: what was changed
after that, files of no distribution (``.pth``, ``sitecustomize``), sources of an editable
installation, and what is not Python (libraries of the system, drivers).
"""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import Distribution, distributions

from flower_ldp.apps.bundle import digest_of


@dataclass(frozen=True)
class Environment:
    """An interpreter and what is installed for it.

    Parameters
    ----------
    python : str
        Its implementation, release, build and machine.
    installed : tuple of (str, str, str)
        Name, version and SHA-256 of the ``RECORD`` of each distribution, sorted; where there is no
        ``RECORD``, an empty text.
    """

    python: str
    installed: tuple[tuple[str, str, str], ...]

    @property
    def digest(self) -> str:
        """The value that an owner pins."""
        return digest_of(json.dumps([self.python, self.installed]).encode())


def this_environment(found: Iterable[Distribution] | None = None) -> Environment:
    """Return the environment of this process's interpreter.

    Parameters
    ----------
    found : iterable of Distribution, optional
        What is installed: by default what this interpreter finds.
    """
    rows = {_row(one) for one in (distributions() if found is None else found)}
    python = (sys.implementation.name, sys.version, platform.machine())
    return Environment(" ".join(python), tuple(sorted(rows)))


def _row(one: Distribution) -> tuple[str, str, str]:
    record = one.read_text("RECORD")
    name = str(one.metadata["Name"]).lower()
    return name, one.version, "" if record is None else sha256(record.encode()).hexdigest()

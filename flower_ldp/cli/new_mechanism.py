"""What ``flower-ldp new --kind mechanism`` writes: a distribution with one extension."""

from __future__ import annotations

from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import name_complaint

DESCRIPTION = "A mechanism for flower-ldp: the sign of one random coordinate"
#: Of this package, which has what the template imports.
REQUIRED = "0.2"


def places_of(name: str, package: str, publisher: str) -> dict[str, str]:
    """Return what stands in the templates' places.

    Raises
    ------
    ConfigError
        If the name is one that a mechanism may not have.
    """
    complaint = name_complaint(package)
    if complaint is not None:
        raise ConfigError(complaint)
    return {
        "NAME": name,
        "PACKAGE": package,
        "MECHANISM": package,
        "PUBLISHER": publisher,
        "DESCRIPTION": DESCRIPTION,
        "VERSION": REQUIRED,
    }


def templates_of(package: str) -> dict[str, str]:
    """Return the templates by the files that they become."""
    return {
        "pyproject.toml": "mechanism/pyproject.toml.txt",
        "README.md": "mechanism/README.md.txt",
        ".gitignore": "gitignore.txt",
        f"{package}/mechanism.py": "mechanism/mechanism.py.txt",
        "tests/test_estimate.py": "mechanism/test_estimate.py.txt",
    }

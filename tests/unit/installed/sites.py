"""Folders of installed distributions, and wheels, made by hand."""

from __future__ import annotations

import base64
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

FILES = {"flower_ldp/__init__.py": "", "flower_ldp/gate.py": "closed = True\n"}


def _row(path: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


def _metadata(name: str, version: str, more: tuple[str, ...]) -> str:
    return "\n".join(("Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, ""))


def installed(
    site: Path,
    name: str = "flower-ldp",
    *more: str,
    version: str = "0.1.0",
    files: Mapping[str, str] = FILES,
    notes: Mapping[str, str] | None = None,
) -> Path:
    """Install a distribution as an installer does, with its own notes; return its metadata's.

    ``more`` are lines of its metadata, ``notes`` files that the installer made beside them.
    """
    information = f"{name.replace('-', '_')}-{version}.dist-info"
    made = {f"{information}/METADATA": _metadata(name, version, more), **files}
    made |= {f"{information}/{key}": text for key, text in (notes or {}).items()}
    for path, text in made.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    rows = "".join(_row(path, text.encode()) for path, text in made.items())
    compiled = "flower_ldp/__pycache__/gate.cpython-311.pyc,,\n"
    (site / information / "RECORD").write_text(f"{rows}{compiled}{information}/RECORD,,\n")
    return site / information


def wheel(
    folder: Path, version: str = "0.1.0", files: Mapping[str, str] = FILES, *more: str
) -> Path:
    """Make a wheel of the same distribution."""
    information = f"flower_ldp-{version}.dist-info"
    path = folder / f"flower_ldp-{version}-py3-none-any.whl"
    made = {f"{information}/METADATA": _metadata("flower-ldp", version, more), **files}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in made.items():
            archive.writestr(name, text)
        rows = "".join(_row(name, text.encode()) for name, text in made.items())
        archive.writestr(f"{information}/RECORD", f"{rows}{information}/RECORD,,\n")
    return path

"""Flower app bundles for tests: made by Flower, and made by hand where Flower would make none."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path

PYPROJECT = """\
[project]
name = "pinned-app"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.40"]
[tool.flwr.app]
publisher = "ward"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "pinned_app.server:app"
clientapp = "pinned_app.client:app"
[tool.flwr.app.config]
rate = 0.1
steps = 5
model = "small"
"""
FILES = {
    "LICENSE": "none",
    "pinned_app/__init__.py": "",
    "pinned_app/client.py": "app = None",
    "pinned_app/server.py": "app = None",
    "pyproject.toml": PYPROJECT,
}


def app_folder(folder: Path, changed: Mapping[str, str] | None = None) -> Path:
    """Write an app's folder."""
    path = folder / "pinned-app"
    for name, text in {**FILES, **(changed or {})}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


def _dated(name: zipfile.ZipInfo | str, method: int) -> zipfile.ZipInfo:
    """Return a member of a set date: the same files have the same digest in every process."""
    if isinstance(name, zipfile.ZipInfo):
        return name
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o600 << 16
    info.compress_type = method
    return info


def packed(
    files: Mapping[str, str] = FILES,
    *,
    more: Sequence[tuple[zipfile.ZipInfo | str, str]] = (),
    listed: Mapping[str, str] | None = None,
    method: int = zipfile.ZIP_STORED,
) -> bytes:
    """Return a bundle, with members that its own list does not name if there are more."""
    held = BytesIO()
    contents = files if listed is None else listed
    lines = [
        f"{name},{sha256(text.encode()).hexdigest()},{8 * len(text)}"
        for name, text in contents.items()
    ]
    with zipfile.ZipFile(held, "w", method) as archive:
        for name, text in [*files.items(), *more, (".info/CONTENT", "\n".join(lines))]:
            archive.writestr(_dated(name, method), text)
    return held.getvalue()

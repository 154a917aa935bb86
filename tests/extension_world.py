"""A distribution with one extension, as pip would have installed it, and a policy for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flower_ldp.cli.apps import texts
from flower_ldp.extensions.loading import read_distribution

NAME, DISTRIBUTION, VERSION = "one_bit", "one-bit", "0.1.0"
INFORMATION = f"one_bit-{VERSION}.dist-info"
#: What ``flower-ldp new --kind mechanism`` writes.
TEMPLATE = texts("one-bit", "mechanism", "ward-7")
ENTRY = f"[flower_ldp.mechanisms]\n{NAME} = one_bit.mechanism:extension\n"


@dataclass
class Installed:
    """A folder of ``site-packages``.

    Parameters
    ----------
    site : Path
        The folder.
    files : mapping of str to str
        The distribution's own, besides its metadata.
    entry : str
        ``entry_points.txt``.
    """

    site: Path
    files: Mapping[str, str] = field(
        default_factory=lambda: {
            name: TEMPLATE[name] for name in ("one_bit/__init__.py", "one_bit/mechanism.py")
        }
    )
    entry: str = ENTRY

    def write(self, version: str = VERSION, unlisted: Mapping[str, str] | None = None) -> Installed:
        """Write all files, and the list of those that are no stowaways."""
        own = f"one_bit-{version}.dist-info"
        files = {
            **self.files,
            f"{own}/METADATA": f"Metadata-Version: 2.3\nName: {DISTRIBUTION}\nVersion: {version}\n",
            f"{own}/entry_points.txt": self.entry,
            f"{own}/INSTALLER": "pip\n",
        }
        for name, text in {**files, **(unlisted or {})}.items():
            path = self.site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.list([*files, f"{own}/RECORD", "one_bit/__pycache__/mechanism.cpython-311.pyc"], own)
        return self

    def list(self, names: list[str], own: str = INFORMATION) -> None:
        """Write RECORD. Its hashes are of nothing: they are not looked at."""
        rows = "".join(f"{name},sha256=AAAA,1\n" for name in names)
        (self.site / own / "RECORD").write_text(rows)

    @property
    def path(self) -> list[str]:
        """To look in."""
        return [str(self.site)]

    @property
    def digest(self) -> str:
        """Of the files as they are."""
        return read_distribution(DISTRIBUTION, self.path).digest


def policy_text(digest: str, *, mode: str = "deployment", more: str = "") -> str:
    """Return a policy that allows the extension."""
    entry = {"distribution": DISTRIBUTION, "version": VERSION, "digest": digest, "epsilon": 1.0}
    return (
        f"data_id: ward-7\nledger: spent.sqlite\nmode: {mode}\n"
        f"messages: {{train: {{{NAME}: {{epsilon: 4.0}}}}}}\n"
        f"budgets: {{client: {{life: {{epsilon: 100.0}}}}}}\n"
        f"extensions: {{{NAME}: {json.dumps(entry)}}}\n{more}"
    )

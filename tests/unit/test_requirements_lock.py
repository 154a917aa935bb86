"""The guarded node's environment: each package pinned, with hashes of what PyPI has."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "examples/deployment/requirements.lock").read_text(encoding="utf-8")
PINNED = r"[a-z0-9-]+==[\w.]+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"


def test_each_package_is_pinned_with_hashes() -> None:
    rest = re.sub(PINNED, "", LOCK)
    assert all(line.lstrip().startswith("#") for line in rest.splitlines())


def test_the_lock_has_what_the_package_depends_on() -> None:
    pins = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(ROOT / "constraints.txt").read_text("utf-8").split("\n")]
    for one in (Requirement(text) for text in wanted if text and not text.startswith("#")):
        if one.name != "torch":  # of the examples alone
            assert pins[one.name] in one.specifier, one
    assert "--generate-hashes" in LOCK.splitlines()[1]

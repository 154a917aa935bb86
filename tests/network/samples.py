"""The commands of the deployment's samples, for this machine: other paths, ports and addresses."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.network.certificates import DEPLOYMENT
from tests.network.federation import NODE

PARTS = ("superlink", "node", "app")
UNITS = {
    "superlink": "flower-superlink.service",
    "node": "flower-ldp-supernode.service",
    "app": "flower-app.service",
    "analyzer": "flower-ldp-analyzer.service",
}


def compose(name: str = "compose.yaml") -> dict[str, Any]:
    """Return a compose file."""
    found = yaml.safe_load((DEPLOYMENT / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def unit(part: str) -> dict[str, list[str]]:
    """Return the settings of a systemd unit, each with its values."""
    text = (DEPLOYMENT / "systemd" / UNITS[part]).read_text(encoding="utf-8")
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def command(sample: str, part: str) -> list[str]:
    """Return a part's command as it stands in a sample."""
    if sample == "compose":
        file = compose("compose.analyzer.yaml" if part == "analyzer" else "compose.yaml")
        return [str(one) for one in file["services"][part]["command"]]
    (line,) = unit(part)["ExecStart"]
    return shlex.split(line)


def here(words: list[str], places: Mapping[str, str]) -> list[str]:
    """Return a command with each of the sample's places replaced by one on this machine.

    Raises
    ------
    AssertionError
        If a path, an address or a port of the sample would be left.
    """
    program = Path(words[0]).name
    start = {
        "flower-ldp": [sys.executable, "-m", "flower_ldp"],
        "flower-ldp-supernode": list(NODE),
        "flower-ldp-superexec": [sys.executable, "-m", "flower_ldp.node.app_executor"],
    }.get(program, [program])
    # The longest first: one place may begin as another does, and none is within a word.
    names = "|".join(map(re.escape, sorted(places, key=len, reverse=True)))
    pattern = re.compile(rf"(?<![\w.-])(?:{names})")
    rest = [pattern.sub(lambda found: places[found.group()], word) for word in words[1:]]
    allowed = (*places.values(), sys.prefix)
    for word in rest:
        value = word.partition("=")[2] if word.startswith("--") and "=" in word else word
        assert not value.startswith("/") or value.startswith(allowed), f"{word} is left"
        assert not re.search(r"example\.org|0\.0\.0\.0|\b9(09\d|443)\b", word), f"{word} is left"
    return [*start, *rest]

"""docs/cli.md shows what the commands print, and names every key of their JSON.

``printed.md`` beside this file has more outputs, which would make the page too long.
``python -m tests.unit.cli.test_cli_docs`` puts into both what the commands print now.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.accounting.ledger import Charge, Ledger
from flower_ldp.cli.output import EXIT_CODES
from flower_ldp.policy import load_policy
from flower_ldp.privacy import PrivacyEvent
from tests.bundles import packed
from tests.cli import facts, flower_ldp
from tests.extension_world import Installed
from tests.fixtures import CONFIGS, ROOT
from tests.lint import WIDTH, is_row

PAGE = ROOT / "docs" / "cli.md"
TEXT = PAGE.read_text(encoding="utf-8")
#: More outputs, in the same form.
MORE = Path(__file__).with_name("printed.md")
#: Where the page pretends to be.
FOLDER = "/srv/ward-7"
#: What differs each time: names of ledgers, chain values, times.
CHANCE = re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{32}\b|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def shown(text: str) -> list[tuple[str, str]]:
    """Return each command of a page with what it shows beneath."""
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", "".join(blocks), flags=re.MULTILINE)
    return [(command, output) for command, output in found]


def copy_configurations(folder: Path) -> None:
    """Put the configurations that the page checks where it pretends to be."""
    for name in ("signds", "laplace_eval", "label_dp", "embedding_dp", "dp_encrypt"):
        (folder / f"{name}.yaml").write_bytes((CONFIGS / f"{name}.yaml").read_bytes())
    (folder / "ward.csv").write_text(WARD)


def spend(folder: Path) -> None:
    """Do what the page says lies between making the ledger and showing it: six rounds."""
    policy = load_policy(folder / "client_policy.yaml")
    limits = policy.limits()
    events = (PrivacyEvent("signds", 8.0), PrivacyEvent("magrr", 1.0))
    with Ledger.open(policy.ledger) as ledger:
        for number in range(6):
            asked = Charge(policy.data_id, 4711, f"m{number}", "train", b"x", events)
            ledger.seal(ledger.charge(asked, limits), b"report")


def folded(text: str) -> str:
    """Return what a command printed with its long lines in several, rows of tables apart."""
    lines = []
    for line in text.splitlines(keepends=True):
        column = re.match(r" *\S.*?  +", line)
        if len(line) <= WIDTH or is_row(line):
            lines.append(line)
        else:
            inset = " " * (column.end() if column else 4)
            plain = {"break_long_words": False, "break_on_hyphens": False}
            lines.append(textwrap.fill(line, WIDTH, subsequent_indent=inset, **plain) + "\n")
    return "".join(lines)


#: A table of three patients and a row of nobody's.
WARD = "patient,scan,age\nann,1,40\nann,2,41\nben,3,50\nben,4,50\nben,5,51\neve,6,60\n,7,33\n"


def output_of(command: str, folder: Path) -> str:
    """Run a command of the page in a folder and return what a terminal would show."""
    command, _, target = command.partition(" > ")
    name, *words = shlex.split(command)
    assert name == "flower-ldp"
    done = flower_ldp(*words)
    if target:
        (folder / target).write_text(done.out)
        (folder / target).chmod(0o600)
        return done.err
    if words[:2] == ["ledger", "create"]:
        spend(folder)
    return folded(done.both.replace(str(folder), FOLDER))


@pytest.mark.parametrize("page", [PAGE, MORE], ids=lambda page: page.name)
def test_the_page_shows_what_the_commands_print(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy")
    monkeypatch.chdir(tmp_path)
    copy_configurations(tmp_path)
    commands = shown(page.read_text(encoding="utf-8"))
    assert commands
    for command, expected in commands:
        found = output_of(command, tmp_path)
        assert CHANCE.sub("~", found).strip() == CHANCE.sub("~", expected).strip(), command


PLAN = ("--epsilon", 8, "--delta", 1e-2, "--rounds", 2, "--steps", 3, "--rate", 1, "--examples", 9)
LOCAL = ("--clipping-norm", 1, "--sensitivity", 1, "--epsilon", 1, "--delta", 1e-5)
CENTRAL = ("--noise-multiplier", 1, "--sampled-clients", 9, "--delta", 1e-5)
GROUPS = ("--group", "patient", "--max-rows", 2, "--remember", "ward.groups")


def keys_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key != "parameters":  # fields of a configuration, which has a page of its own
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def test_the_page_names_every_json_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(flower_ldp("policy", "sample").out)
    Path("ward.csv").write_text(WARD)
    Path("one.fab").write_bytes(packed())
    extension = Installed(tmp_path / "elsewhere").write()
    Path("client_policy.yaml").write_text(Path("policy.yaml").read_text())
    ledger = "privacy-ledger.sqlite"
    found = [facts("ledger", "create", ledger)]
    spend(tmp_path)
    fit = ("--params", 5994, "--epsilon", 1, "--total-epsilon", 9, "--clients", 9)
    site, policy = ("--site", extension.site), ("--policy", "policy.yaml")
    commands: list[tuple[object, ...]] = [
        ("plan", *fit),
        ("plan", "--total-epsilon", 9),
        ("plan", "--clients", 9, "--params", 99, "--total-epsilon", 4),
        ("plan", "shuffled", "--epsilon", 1, "--reports", 9),
        ("plan", "laplace", "--epsilon", 1, "--classes", 10),
        ("plan", "labels", "--epsilon", 1, "--classes", 3, "--labels", 9),
        ("plan", "gaussian", "--epsilon", 1, "--delta", 1e-6, "--params", 9),
        ("plan", "dpsgd", *PLAN),
        ("explain", "localdp", *LOCAL),
        ("explain", "central", *CENTRAL),
        ("explain", "mindspore", CONFIGS / "laplace_eval.yaml"),
        ("explain", "mindspore", CONFIGS / "dp_encrypt.yaml"),
        ("data", "check", "ward.csv", *GROUPS),
        ("data", "check", "ward.csv", *GROUPS, *policy),
        ("ledger", "show", ledger, *policy, "--delta", 0.1),
        ("ledger", "verify", ledger),
        ("ledger", "export", ledger, "--output", "out"),
        ("policy", "check", "policy.yaml"),
        ("policy", "sample"),
        ("app", "environment"),
        ("new", "my-app"),
        ("adopt", ROOT / "examples/few_sites/plain", "--clients", 5, "--examples", 91),
        ("doctor", *policy),
        ("app", "compare", "one.fab", "one.fab"),
        ("extension", "digest", "one-bit", *site),
        ("audit", "magrr", "--draws", 200),
    ]
    names = ("signds", "laplace_eval", "dp_encrypt", "dpsgd", "label_dp")
    commands += [("config", "check", CONFIGS / f"{name}.yaml") for name in names]
    found += [facts(*command) for command in commands]
    keys = {key for told in found for key in keys_of(told)}
    # Names of units and types of message, and sizes of models, which stand for themselves.
    keys -= {"client", "train", "evaluate", "2000", "60000"}
    assert len(keys) > 50
    assert {key for key in keys if f"`{key}`" not in TEXT} == set()


def test_the_page_states_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d) \| ([^|]*) \|", TEXT, flags=re.MULTILINE)
    assert f"Exit codes: {'; '.join(f'{code} {words}' for code, words in rows)}." == EXIT_CODES


def rewrite(page: Path) -> None:
    """Replace what a page shows beneath each command."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        copy_configurations(folder)
        text = page.read_text(encoding="utf-8")
        for command, old in shown(text):
            new = output_of(command, folder).rstrip("\n")
            text = text.replace(f"$ {command}\n{old}", f"$ {command}\n{new}\n".rstrip() + "\n", 1)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    rewrite(PAGE)
    rewrite(MORE)

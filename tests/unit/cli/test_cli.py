"""The command line as a whole: its entry, its help, what it loads, how it ends."""

from __future__ import annotations

import ast
import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

import flower_ldp
from flower_ldp.cli import main
from flower_ldp.cli.output import usage
from tests.cli import MODULE, command, commands_of, process, refused
from tests.cli import flower_ldp as run

ROOT = Path(__file__).parents[3]


def commands() -> dict[str, click.Command]:
    """Return each command and group by its words."""
    found: dict[str, click.Command] = {}
    waiting = [("", command())]
    while waiting:
        words, group = waiting.pop()
        found[words] = group
        waiting += [(f"{words} {name}".strip(), one) for name, one in commands_of(group).items()]
    return found


def test_the_commands_are_there() -> None:
    wanted = {"plan signds", "ledger create", "ledger show", "ledger export", "ledger verify"}
    assert wanted | {"policy check", "policy sample", "config check"} <= commands().keys()


@pytest.mark.parametrize("words", sorted(commands()))
def test_each_help_has_an_example_the_exit_codes_and_all_options(words: str) -> None:
    done = run(*words.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"\n  Examples?:\n    flower-ldp {words.partition(' ')[0]}", done.out)
    assert "Exit codes: 0 all is well; 1 what was asked about is wrong" in done.out
    assert "\\[" not in done.out
    assert "--json" in done.out or " " not in words
    for one in commands()[words].params:
        assert not isinstance(one, click.Option) or one.help, one.name


def test_the_console_entry_is_the_module() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (value,) = re.findall(r'\[project\.scripts\]\nflower-ldp = "(.*)"', text)
    assert EntryPoint("flower-ldp", value, "console_scripts").load() is main.run
    done = process(*MODULE, "--version")
    assert (done.returncode, done.stdout) == (0, f"flower-ldp {flower_ldp.__version__}\n")
    assert run("--version").out == done.stdout


def test_exit_codes_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code in (("--params 100 --epsilon 1", 0), ("--params x", 2)):
        monkeypatch.setattr(sys, "argv", ["flower-ldp", "plan", *words.split()])
        with pytest.raises(SystemExit) as ended:
            main.run()
        shown, said = capsys.readouterr()
        assert (ended.value.code, shown == "", "Traceback" in said) == (code, code == 2, False)
        assert code == 2 or len(said.splitlines()) == 1
    # The entry's own code is the process's, and no warning is printed beside it.
    wrong = process(*MODULE, "ledger", "show", tmp_path / "missing")
    assert (wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines())) == (1, "", 1)
    assert wrong.stderr.startswith("error: ledger ")


def test_a_reader_that_stops_early_gets_no_traceback() -> None:
    done = process("bash", "-c", f"'{MODULE[0]}' -m flower_ldp policy sample | head -n 1")
    assert done.returncode == 0
    assert done.stdout.startswith("# A commented policy")
    assert done.stderr == ""


LOADED = """
import sys
from flower_ldp.cli.main import run
sys.argv = ["flower-ldp", *sys.argv[1:]]
try:
    run()
finally:
    slow = ("flwr", "torch", "dp_accounting", "scipy", "numpy", "pydantic", "cryptography")
    print("loaded:", [name for name in slow if name in sys.modules])
"""
#: What a group may load that its commands need, and takes little time.
QUICK = {"numpy", "pydantic", "cryptography"}


@pytest.mark.parametrize(
    "words", ["--help", "plan signds --help", "policy sample", "ledger create l.sqlite"]
)
def test_what_needs_little_loads_nothing_that_takes_time(words: str, tmp_path: Path) -> None:
    done = process(sys.executable, "-c", LOADED, *words.split(), cwd=tmp_path)
    assert done.returncode == 0
    loaded = ast.literal_eval(done.stdout.splitlines()[-1].removeprefix("loaded: "))
    assert set(loaded) <= (set() if words == "--help" else QUICK)


def test_a_file_that_cannot_be_read_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    # To click it would be; root may read all, so the rights are denied by hand.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("config", "check", ROOT / "configs" / "signds.yaml").code != 2
    assert run("doctor", "--policy", ROOT / "configs" / "signds.yaml").code == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_json_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = process(*MODULE, "policy", "sample", "--json", stdout=full)
    assert done.returncode == 1
    assert done.stderr == "error: the answer cannot be written: No space left on device\n"


def test_a_missing_extra_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    sizes = ("--rounds", 3, "--steps", 7, "--rate", 0.07, "--examples", 90)
    said = refused("plan", "dpsgd", "--epsilon", 1.5, "--delta", 1e-5, *sizes, code=2)
    assert "pip install 'flower-ldp[" in said


def test_an_error_that_names_no_option_is_no_wrong_usage() -> None:
    with pytest.raises(ValueError, match="rows must"), usage(known={"rounds"}):
        raise ValueError("rows must be sorted")

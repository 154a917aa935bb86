"""The command line as a whole: its entry, its help, what it loads, how it ends."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
import typer

import flower_ldp
from flower_ldp.cli import main
from flower_ldp.cli.output import usage
from tests.cli import commands_of
from tests.cli import flower_ldp as run

ROOT = Path(__file__).parents[3]
#: Where the package is: an installed one is not beside the tests.
PLACE = Path(flower_ldp.__file__).parents[1]
MODULE = (sys.executable, "-m", "flower_ldp")


def process(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a program of its own, as a user does."""
    return subprocess.run(
        [*MODULE, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PLACE)},
    )


def commands() -> list[tuple[str, ...]]:
    """Return the words of each command and group."""
    found: list[tuple[str, ...]] = []
    waiting = [((), typer.main.get_command(main.app))]
    while waiting:
        words, command = waiting.pop()
        found.append(words)
        waiting += [((*words, name), inner) for name, inner in commands_of(command).items()]
    return sorted(found)


def test_the_commands_are_there() -> None:
    assert {
        ("plan", "signds"),
        ("ledger", "create"),
        ("ledger", "show"),
        ("ledger", "export"),
        ("ledger", "verify"),
        ("policy", "check"),
        ("policy", "sample"),
        ("config", "check"),
    } <= set(commands())


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_each_help_has_an_example_and_the_exit_codes(words: tuple[str, ...]) -> None:
    done = run(*words, "--help")
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"\n  Examples?:\n    flower-ldp {' '.join(words[:1])}", done.out)
    assert "Exit codes: 0 all is well; 1 what was asked about is wrong" in done.out
    assert "\\[" not in done.out


def test_each_option_is_described() -> None:
    found = [typer.main.get_command(main.app)]
    for command in found:
        found += commands_of(command).values()
        for one in command.params:
            assert not isinstance(one, click.Option) or one.help, (command.name, one.name)


@pytest.mark.parametrize("words", [w for w in commands() if len(w) == 2], ids=" ".join)
def test_each_command_takes_json(words: tuple[str, ...]) -> None:
    assert "--json" in run(*words, "--help").out


def test_the_console_entry_is_the_module() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (value,) = re.findall(r'\[project\.scripts\]\nflower-ldp = "(.*)"', text)
    assert EntryPoint("flower-ldp", value, "console_scripts").load() is main.run
    done = process("--version")
    assert (done.returncode, done.stdout) == (0, f"flower-ldp {flower_ldp.__version__}\n")
    assert run("--version").out == done.stdout


def test_exit_codes_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("dp_accounting")

    def entered(*words: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["flower-ldp", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main.run()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    code, _, said = entered("plan", "--params", 100, "--epsilon", 1)
    assert (code, len(said.splitlines())) == (0, 1)
    code, shown, said = entered("plan", "--params", "x")
    assert (code, shown) == (2, "")
    assert "Traceback" not in said
    # The entry's own code is the process's, and no warning is printed beside it.
    wrong = process("ledger", "show", tmp_path / "missing")
    assert (wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines())) == (1, "", 1)
    assert wrong.stderr.startswith("error: ledger ")


def test_a_reader_that_stops_early_gets_no_traceback(tmp_path: Path) -> None:
    command = f"'{MODULE[0]}' -m flower_ldp policy sample | head -n 1"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PLACE)},
    )
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
QUICK = "numpy", "pydantic", "cryptography"


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (("--help",), ()),
        (("plan", "signds", "--help"), QUICK),
        (("policy", "sample"), QUICK),
    ],
)
def test_help_loads_nothing_that_takes_time(words: tuple[str, ...], may: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PLACE)},
    )
    loaded = ast.literal_eval(done.stdout.splitlines()[-1].removeprefix("loaded: "))
    assert set(loaded) <= set(may)


def test_ledgers_and_policies_are_read_without_flower(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOADED, "ledger", "create", str(tmp_path / "ledger.sqlite")],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(PLACE)},
    )
    assert "flwr" not in done.stdout.splitlines()[-1]


def test_a_file_that_cannot_be_read_is_no_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    # To click it would be; root may read all, so the rights are denied by hand.
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert run("config", "check", ROOT / "configs" / "signds.yaml").code != 2
    assert run("doctor", "--policy", ROOT / "configs" / "signds.yaml").code == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_json_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*MODULE, "policy", "sample", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(PLACE)},
        )
    assert done.returncode == 1
    assert done.stderr == "error: the answer cannot be written: No space left on device\n"


def test_a_missing_extra_is_wrong_usage_and_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    sizes = ("--rounds", 3, "--steps", 7, "--rate", 0.07, "--examples", 90)
    done = run("plan", "dpsgd", "--epsilon", 1.5, "--delta", 1e-5, *sizes)
    assert (done.code, done.out) == (2, "")
    assert "pip install 'flower-ldp[" in done.err


def test_an_error_that_names_no_option_is_no_wrong_usage() -> None:
    with pytest.raises(ValueError, match="rows must"), usage(known={"rounds"}):
        raise ValueError("rows must be sorted")

"""Wrong usage of each command: it ends with 2, answers nothing, and names the option."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.accounting.ledger import Ledger
from tests.cli import refused

CONFIGS = Path(__file__).parents[3] / "configs"
#: Words that will do, and what each of these options may not be beside them: one of several.
VALUES = {
    "plan --params 5994 --epsilon 1": "--params 0,4294967296,many --epsilon 101,nan --k 0.3 "
    "--threshold-ratio 2 --dim-out 5000 --magnitude-epsilon 0 --health-epsilon 0.001 --rounds 0 "
    "--clients 0 --participation 0 --delta 1 --sigma 1",
    "plan --params 10 --epsilon 1": "--dim-out 11",
    "plan --params 5994": "--total-epsilon inf,-1",
    "plan laplace --epsilon 1": "--epsilon 0,2e6 --probability 1 --classes 1 --rows 0 --rounds 0 "
    "--clients 0 --delta 0",
    "plan laplace": "--noise-below -1,1e-9 --published-epsilon nan,1e6",
    "plan labels --classes 10": "--keep-probability 0.1,nan",
    "plan labels --classes 10 --epsilon 1": "--classes 1 --epsilon 101 --labels 0",
    "plan gaussian --epsilon 1 --delta 0.1": "--epsilon 101 --delta 0.6 --clip-norm 0 "
    "--total-delta 1 --params 0",
    "plan codeword --epsilon 8 --params 2010": "--epsilon 0,101 --params 1,16777217 "
    "--favoured -1,3000 --rotations 0 --rounds 0 --clients 0 --delta 1",
    "plan --clients 9 --params 99 --total-epsilon 8": "--params 1 --total-epsilon 0,nan "
    "--answers-per-client 0",
    "plan dpsgd --epsilon 8 --delta 1e-2 --rounds 2 --steps 3 --examples 9 --rate 1": "--rate 0 "
    "--rounds 0 --epsilon 99",
    "explain localdp --clipping-norm 1 --sensitivity 1e-4 --epsilon 10 --delta 1e-5": "--rounds 0 "
    "--delta 1 --clipping-norm 0,1e300 --sensitivity -1,1e-300 --epsilon 0,nan",
    "explain central --noise-multiplier 1 --sampled-clients 20 --delta 1e-5": "--clients 19 "
    "--noise-multiplier 0,1e300 --largest-share 0.01",
    f"explain mindspore {CONFIGS}/signds.yaml": "--rounds 0",
    "ledger show ledger.sqlite": "--last -1 --delta 0 --run -1,18446744073709551616",
    "ledger anchor ledger.sqlite": "--command relative,'",
    "ledger verify ledger.sqlite --anchor /x": "--anchor-command /y",
    "data check ward.csv --group patient": "--group person --max-rows 1001",
    "simulate .": "--nodes 0 --contexts shelf --workers 0",
    "new my-app": "--kind magic",
}
CASES = [
    (words, option, value)
    for words, wrong in VALUES.items()
    for option, values in zip(wrong.split()[::2], wrong.split()[1::2], strict=True)
    for value in values.split(",")
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Ledger.open("ledger.sqlite", create=True).close()
    Path("ward.csv").write_text("patient,scan\nann,1\n")


@pytest.mark.parametrize(("words", "option", "value"), CASES)
def test_values_outside_name_their_option(words: str, option: str, value: str) -> None:
    for as_json in ((), ("--json",)):
        said = refused(*words.split(), option, value, *as_json, code=2)
        assert option in said.splitlines()[-1]
    assert not Path("my-app").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("plan --params 5994", "--epsilon"),
        ("plan --epsilon 1", "--params"),
        ("plan poetry", "poetry"),
        ("plan laplace", "--epsilon"),
        ("plan laplace --epsilon 1 --noise-below 1", "--epsilon"),
        ("plan labels --classes 10", "--epsilon"),
        ("plan gaussian --epsilon 1", "--delta"),
        ("ledger anchor ledger.sqlite", "--command"),
        ("ledger export ledger.sqlite --json", "--output"),
    ],
)
def test_what_is_missing_or_given_twice_is_named(words: str, said: str) -> None:
    assert said in refused(*words.split(), code=2).splitlines()[-1]


ADVICE = "plan --clients 1000 --params 62006 --total-epsilon 8 --answers-per-client 3"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rounds 2", "--rounds: must be an integer in [3, "),
        ("--epsilon 2", "No such option '--epsilon'"),
        (f"--params {2**24 + 1} --mechanism codeword", "--params: must be at most"),
    ],
)
def test_options_that_contradict_are_named(words: str, said: str) -> None:
    assert said in refused(*ADVICE.split(), *words.split(), code=2)


@pytest.mark.parametrize(
    "words", ["plan dpsgd --epsilon 8 --delta 1e-5", "policy sample --for dpsgd"]
)
def test_steps_of_all_rounds_are_told_as_they_were_given(words: str) -> None:
    plan = "--rounds 100000 --steps 1001 --rate 0.1 --examples 300"
    told = refused(*words.split(), *plan.split(), code=2)
    assert "must be at most 100,000,000, got 100,000 times 1,001" in told

"""What the README's first screen shows is true: the diff runs, before and after."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path

import pytest

from flower_ldp.config import load_config
from flower_ldp.strategies import SignDSStrategy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


APPS = ROOT / "examples" / "existing_app"


def test_the_diff_is_the_difference_of_the_two_apps() -> None:
    (shown,) = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)
    lines: list[str] = []
    for name in ("client_app.py", "server_app.py"):
        files = [f"{side}/quickstart/{name}" for side in ("plain", "private")]
        sources = [(APPS / file).read_text(encoding="utf-8").splitlines() for file in files]
        lines += difflib.unified_diff(*sources, *files, n=1, lineterm="")
    assert shown.splitlines() == lines


def test_the_two_apps_differ_in_nothing_else() -> None:
    for path in (APPS / "plain").rglob("*.*"):
        other = APPS / "private" / path.relative_to(APPS / "plain")
        if path.name in ("client_app.py", "server_app.py") or "__pycache__" in path.parts:
            continue
        text = other.read_text(encoding="utf-8").replace('"flower-ldp", "flwr[', '"flwr[')
        assert text == path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("name", ["run", "test"])
def test_each_command_is_one_line_that_starts_from_a_bare_machine(name: str) -> None:
    found = re.findall(rf"<!-- ci:{name} -->\n```bash\n(.*?)\n```", README, flags=re.DOTALL)
    assert len(found) == 1
    assert "\n" not in found[0]
    assert found[0].startswith("python3 -m venv .venv && ")


def test_ci_runs_the_readmes_own_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "readme_command run" in script
    assert "readme_command test" in script


def test_linked_files_exist() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target


def test_the_configuration_snippet_loads_the_sample() -> None:
    signds = load_config(ROOT / "configs" / "signds.yaml").encrypt.signds
    strategy = SignDSStrategy(
        signds.mechanism(),
        signds.step(),
        scaling=signds.sign_scaling,
        server_optimizer=signds.server_optimizer(),
    )
    assert strategy.mechanism.epsilon == signds.sign_eps


def test_accuracies_are_those_of_the_result_file() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "mnist.json").read_text())
    assert len(results) == 3
    for result in results.values():
        mean, deviation = result["accuracy_mean"], result["accuracy_standard_deviation"]
        row = f"| {result['rounds']} | **{100 * mean:.2f} ± {100 * deviation:.2f} %** |"
        assert row in README
        assert result["evaluated_on"] == "test"
        assert result["reached"]


def test_the_example_brings_the_policy_for_simulations() -> None:
    sample = ROOT / "configs" / "simulation_policy.yaml"
    copy = ROOT / "examples" / "signds" / "simulation_policy.yaml"
    assert copy.read_text(encoding="utf-8") == sample.read_text(encoding="utf-8")

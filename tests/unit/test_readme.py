"""What the README's first screen shows is true: the diff runs, before and after."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_ldp.config import load_config
from flower_ldp.strategies import SignDSStrategy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def side(keep: str) -> str:
    """The code before ("-") or after ("+") the README's diff."""
    (block,) = re.findall(r"```diff\n(.*?)```", README, flags=re.DOTALL)
    lines = [line for line in block.splitlines() if not line or line[0] in (" ", keep)]
    return "\n".join(line[1:] for line in lines)


def run(source: str) -> dict[str, object]:
    namespace: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), namespace)  # noqa: S102
    return namespace


def test_the_diff_starts_from_a_plain_flower_app() -> None:
    before = run(side("-"))
    assert isinstance(before["app"], ClientApp)
    assert type(before["strategy"]) is FedAvg


def test_the_diff_ends_in_a_private_one() -> None:
    after = run(side("+"))
    assert isinstance(after["app"], ClientApp)
    strategy = after["strategy"]
    assert isinstance(strategy, SignDSStrategy)
    assert strategy.fraction_train == 0.5


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

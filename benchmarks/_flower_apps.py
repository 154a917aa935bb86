"""Apps of Flower's repository: how they are run, and what is measured."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _examples import ROOT
from _flower_app_list import App
from _runner import local_superlink, submit

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.policy import load_policy

HERE = Path(__file__).resolve().parent / "flower_apps"
_ANY_POLICY = ROOT / "configs" / "simulation_policy.yaml"
_POLICY = """\
data_id: site
ledger: ledger.sqlite
mode: simulation
examples: {examples}
messages:
  train:
    dpsgd:
      epsilon: {epsilon!r}
      delta: 1.0e-5
      unit: example
      plan: {{rounds: {rounds}, steps: {steps}, rate: {rate!r}, noise: {noise!r}}}
budgets:
  example: {{life: {{epsilon: {epsilon!r}, delta: 1.0e-5}}}}
"""


def copy_of(flower: Path, app: App, folder: Path, diffs: list[str]) -> Path:
    """Copy an app from a checkout of Flower's repository, formatted, with diffs applied.

    A diff is named by its folder: ``loaders``, ``plain`` or ``private``.
    """
    place = folder / app.name
    shutil.copytree(flower / "examples" / app.name, place)
    subprocess.run(
        ["ruff", "format", "--quiet", "--isolated", "--no-cache", "."], cwd=place, check=True
    )
    for kind in diffs:
        change = HERE / kind / f"{app.name}.diff"
        if not change.exists():  # FedAvg needs none
            continue
        subprocess.run(["git", "apply", str(change)], cwd=place, check=True)
    shutil.copy(HERE / "local_data.py", place / app.package)
    return place


def run(
    flower: Path,
    app: App,
    data: Path,
    seed: int,
    *,
    private: bool = False,
    part: str = "test",
) -> dict[str, float]:
    """Run an app by ``flwr run``; return what its last model comes to, and what was spent."""
    config = {**app.config, **(app.route.config if private and app.route else {})}
    diffs = ["loaders", "private" if private else "plain"]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary,
        _environment(
            FLOWER_APPS_DATA=str(data.resolve()), FLOWER_APPS_SEED=str(seed), FLOWER_APPS_PART=part
        ),
    ):
        place = copy_of(flower, app, Path(temporary), diffs)
        policy = _policy(app, place.parent) if private else _ANY_POLICY
        home = place.parent / "flwr-home"
        wanted = {
            name: str(value).lower() if isinstance(value, bool) else repr(value)
            for name, value in config.items()
        }
        before = os.getcwd()
        os.chdir(place.parent)
        try:
            with local_superlink(home, policy) as environment:
                submit(
                    place,
                    app.nodes,
                    wanted,
                    environment=environment,
                    verbose="FLOWER_APPS_VERBOSE" in os.environ,
                    last_line="Saving final model",
                )
            found = measured(app, place)
            parties = app.nodes if app.route and app.route.is_vertical else 1
            return {**found, **_spent(policy, parties)} if private else found
        finally:
            os.chdir(before)


@contextmanager
def _environment(**names: str) -> Iterator[None]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    fixed = {
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    before = dict(os.environ)
    os.environ.update(fixed, **names)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def measured(app: App, place: Path) -> dict[str, float]:
    """Evaluate an app's last model on the rows held out."""
    (model,) = [*place.parent.glob("final_model.pt"), *place.parent.glob("logreg_model.pkl")]
    command = [sys.executable, str(HERE / "measure.py"), app.package, str(model)]
    done = subprocess.run(command, cwd=place, check=True, stdout=subprocess.PIPE, text=True)
    (line,) = [one for one in done.stdout.splitlines() if one.startswith("measured ")]
    found: dict[str, float] = json.loads(line.removeprefix("measured "))
    return found


def _policy(app: App, folder: Path) -> Path:
    """Write the policy of all clients."""
    if app.route is None:
        raise ValueError(f"{app.name} has no route")
    place = folder / "policy.yaml"
    text = _POLICY.format(**app.route.policy) if app.route.policy else _ANY_POLICY.read_text()
    place.write_text(text)
    return place


def _spent(policy: Path, parties: int) -> dict[str, float]:
    """Return the most that an account of the clients' ledger holds.

    It is multiplied by the parties that hold columns of one row.
    """
    with Ledger.open(load_policy(policy).ledger, read_only=True) as ledger:
        spent = [
            amount.spent(unit)
            for account in ledger.data_ids()
            for unit, amount in ledger.totals(account).items()
        ]
    return {
        "epsilon": parties * max(one.epsilon for one in spent),
        "delta": parties * max(one.delta for one in spent),
        "accounts": len(spent),
    }


def changed_lines(flower: Path, app: App) -> int:
    """Return the lines that the private diff adds and removes, imports left out."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, diffs in (("plain", ["loaders"]), ("private", ["loaders", "private"])):
            place = copy_of(flower, app, folder / name, diffs)
            for file in place.rglob("*.py"):
                file.write_text(_without_imports(file.read_text()))
            subprocess.run(
                ["ruff", "format", "--quiet", "--isolated", "--no-cache", "."],
                cwd=place,
                check=True,
            )
        told = ["git", "diff", "--no-index", "--numstat", "plain", "private"]
        done = subprocess.run(told, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines()]
    return sum(int(added) + int(removed) for added, removed, *_ in rows)


def _without_imports(text: str) -> str:
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    return "".join(lines)

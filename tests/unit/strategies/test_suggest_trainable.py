"""What the first round says to change, for an app of the size of Flower's quickstart: it works."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flower_ldp.advice import advise
from flower_ldp.mechanisms import Codeword, MagRR, SignDS, Subspace
from flower_ldp.strategies import (
    ClientPool,
    CodewordStrategy,
    FixedLength,
    LearnedStep,
    SignDSStrategy,
)
from flower_ldp.strategies.forecast import suggest_trainable
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.layout import ModelLayout, Part
from tests.fixtures import record
from tests.unit.strategies.rounds import ask

pytestmark = pytest.mark.usefixtures("outside_a_run")


def layer(name: str, *shape: int) -> dict[str, np.ndarray]:
    weight, bias = np.zeros(shape, dtype=np.float32), np.zeros(shape[0], dtype=np.float32)
    return {f"{name}.weight": weight, f"{name}.bias": bias}


QUICKSTART = {
    **layer("conv1", 6, 3, 5, 5),
    **layer("conv2", 16, 6, 5, 5),
    **layer("fc1", 120, 400),
    **layer("fc2", 84, 120),
    **layer("fc3", 10, 84),
}
HEAD = {"basis": np.zeros((32, 32), dtype=np.float32), "head.weight": np.zeros((10, 28))}
CLIENTS, ROUNDS = 100, 3
APP = Path(__file__).parents[3] / "examples/existing_app/private/quickstart/server_app.py"


def as_the_readme_has_it(**other: Any) -> CodewordStrategy:
    """Return the strategy of the README's change, with other arguments in their place."""
    statements = ast.parse(APP.read_text(encoding="utf-8")).body
    (call,) = [
        one.value
        for one in statements
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "strategy"
    ]
    assert isinstance(call, ast.Call)
    known = {one.__name__: one for one in (Codeword, CodewordStrategy, FixedLength)}

    def made(node: ast.expr) -> Any:
        if not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        given = {str(one.arg): made(one.value) for one in node.keywords}
        given |= other if node is call else {}
        return known[ast.unparse(node.func)](*map(made, node.args), **given)

    strategy: CodewordStrategy = made(call)
    return strategy


def asked_in_every_round(**part: Any) -> SignDSStrategy:
    return SignDSStrategy(SignDS(epsilon=7.0, k=0.2), LearnedStep(MagRR(epsilon=1.0)), **part)


def asked_once(**part: Any) -> CodewordStrategy:
    steps, share = FixedLength(8.0, rounds=ROUNDS), 1 / ROUNDS
    return CodewordStrategy(
        Codeword(8.0), steps, answers_per_client=ClientPool(1), fraction_train=share, **part
    )


def begun(
    strategy: TrainingStrategy[Any],
    caplog: pytest.LogCaptureFixture,
    model: dict[str, Any] = QUICKSTART,
    clients: int = CLIENTS,
    rounds: int = ROUNDS,
) -> str:
    """Ask for a run's first round; return what is said of the run."""
    caplog.clear()
    strategy.expect(rounds, record(model))
    assert ask(strategy, model, nodes=clients)
    return "\n".join(caplog.messages)


def number(pattern: str, said: str) -> int:
    (found,) = re.findall(pattern, said)
    return int(found.replace(",", ""))


def test_the_readmes_change_is_told_of_more_rounds_then_of_fewer_weights_and_is_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = begun(as_the_readme_has_it(fraction_train=0.1), caplog)
    assert "outlook: hopeless" in said
    assert "3 rounds of 10 clients ask for 30 of 100 answers: 10 rounds, or" in said
    (share,) = re.findall(r"fraction_train=([\d.]+), would ask for all", said)
    assert "would ask" not in begun(as_the_readme_has_it(fraction_train=float(share)), caplog)
    said = begun(as_the_readme_has_it(), caplog)
    assert "outlook: hopeless" in said
    assert "would ask" not in said
    most = number(r"at most about ([\d,]+) weights", said)
    assert HEAD["head.weight"].size <= most < 850
    assert "No last layer of this model is so few: 'fc3.*' has 850 weights." in said
    said = begun(as_the_readme_has_it(trainable="head.*"), caplog, HEAD, rounds=10)
    assert "outlook: good" in said
    assert "how much a model can learn by them is a matter of the others" in said
    assert "would" not in said


def test_the_part_that_is_said_to_be_so_few_is_one(caplog: pytest.LogCaptureFixture) -> None:
    said = begun(asked_in_every_round(), caplog)
    assert "outlook: hopeless" in said
    assert number(r"at most about ([\d,]+) weights", said) >= 850
    (shown,) = re.findall(r"Of this model trainable=(.*?) is so few, 850 weights", said)
    said = begun(asked_in_every_round(trainable=ast.literal_eval(shown)), caplog)
    assert "outlook: good" in said
    assert "Of this model" not in said


@pytest.mark.parametrize("make", [as_the_readme_has_it, asked_in_every_round])
def test_as_many_clients_as_are_said_to_be_enough_are(
    make: Callable[[], TrainingStrategy[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    clients = number(r"at least about ([\d,]+) clients", begun(make(), caplog))
    assert "outlook: good" in begun(make(), caplog, clients=clients)


def test_a_pool_that_one_round_uses_up_is_told_how_to_spread_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = begun(as_the_readme_has_it(fraction_train=1.0), caplog)
    assert "all answers are asked for in 1 of 3 rounds: fraction_train=0.34 would spread" in said
    assert "would spread" not in begun(as_the_readme_has_it(fraction_train=0.34), caplog)


def test_of_a_pool_that_may_be_for_an_evaluation_too_nothing_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = ClientPool(answers_per_client=1)
    assert "answers" not in begun(as_the_readme_has_it(answers_per_client=pool), caplog)


def test_a_larger_total_that_is_said_to_be_enough_is(caplog: pytest.LogCaptureFixture) -> None:
    model = {"w": np.zeros((90, 10), dtype=np.float32)}
    said = begun(asked_once(), caplog, model)
    assert "outlook: poor" in said
    (total,) = re.findall(r"a total epsilon of about ([\d.]+) spent", said)
    advice = advise(clients=CLIENTS, weights=900, total_epsilon=float(total), mechanism=Codeword)
    assert isinstance(advice.mechanism, Codeword)
    strategy = CodewordStrategy(
        advice.mechanism,
        FixedLength(8.0, rounds=ROUNDS),
        answers_per_client=advice.answers_per_client,
        fraction_train=advice.answers_per_client / ROUNDS,
    )
    assert "outlook: good" in begun(strategy, caplog, model)
    caplog.clear()
    strategy.summary()
    assert f"at most epsilon {total} per client" in caplog.text


def test_of_a_subspace_no_arrays_are_named(caplog: pytest.LogCaptureFixture) -> None:
    said = begun(asked_once(subspace=Subspace(4_000)), caplog)
    assert "these cosines are within the 4000 public dimensions" in said
    assert "this model" not in said


def model(**shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("arrays", "most", "words"),
    [
        # As many layers from the end as fit, with the scales and biases after them.
        (QUICKSTART, 20_000, "trainable=['fc2.*', 'fc3.*'] is so few, 11,014 weights"),
        (model(a=(9, 9), b=(4, 9), c=(4,)), 40, "trainable=['b', 'c'] is so few, 40 weights"),
        (model(a__w=(9, 9), b__w=(4, 9), n__w=(4,)), 40, "trainable=['b.*', 'n.*'] is so few"),
        # A pattern only where it means these arrays alone; biases alone are no layer.
        (model(a__in__w=(9, 9), a__w=(4, 9)), 36, "trainable='a.w' is so few, 36 weights"),
        (model(a=(9, 9), b=(9,)), 40, "No last layer of this model is so few: 'a' has 81 weights"),
        (model(w=(99,)), 40, "No last layer of this model is so few: 'w' has 99 weights"),
    ],
)
def test_layers_are_named_from_the_end(arrays: dict[str, Any], most: int, words: str) -> None:
    assert words in suggest_trainable(ModelLayout.of(arrays), most)


def test_what_is_trained_already_is_what_is_cut_down() -> None:
    names = ("fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias")
    layout = ModelLayout.of(QUICKSTART, Part(names))
    assert "trainable='fc3.*' is so few" in suggest_trainable(layout, 5_000)

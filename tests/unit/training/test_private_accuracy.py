"""Right predictions, counted example by example and released with noise."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import context
from tests.unit.training.gated import raiser

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import AccuracyRelease, LdpMod, private_means
from flower_ldp.errors import LedgerError, RefusalError
from flower_ldp.mechanisms import ExampleMean
from flower_ldp.simulation import run_in_process
from flower_ldp.strategies import DPSGDStrategy
from flower_ldp.training import private_accuracy
from tests.fixtures import message, record, wait_for_counts

POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: {mode}
example: {example}
examples: 5
messages:
  evaluate:
    example_mean: {{epsilon: 2.0, unit: example{counted}}}{more}
budgets:
  example:
    life: {{epsilon: {life}}}
answer_after: {moment}
"""
SCALING = "\n  train:\n    example_mean: {epsilon: 1.0, unit: example}"
DEPLOYED = {
    "mode": "deployment",
    "example": "row",
    "counted": "",
    "more": "",
    "life": "5.0",
    "moment": "{}",
}
LIKE = (torch.zeros(2), torch.tensor(0))
#: The model predicts class 1 where the first feature is above 0: four rows are right.
MODEL = {
    "weight": np.array([[0.0, 0.0], [1.0, 0.0]], dtype=np.float32),
    "bias": np.zeros(2, dtype=np.float32),
}
ROWS: list[Any] = [
    (torch.tensor([1.0, 0.0]), 1),
    (torch.tensor([2.0, 0.0]), 1),
    (torch.tensor([-1.0, 0.0]), 0),
    (torch.tensor([3.0, 0.0]), 1),
    (torch.tensor([1.0, 0.0]), 0),
]


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExampleMean, "noised", lambda self, total, rng: total)


raises = raiser(OSError("no such file"))


def silent_app(sent: Message, given: Context) -> Message:
    return Message(RecordDict(), reply_to=sent)


def late(sent: Message, given: Context) -> Message:
    time.sleep(2.0)
    return silent_app(sent, given)


class Ward:
    """A site that is evaluated."""

    run_id = 3

    def __init__(
        self, folder: Path, data: Any = ROWS, arguments: dict[str, Any] | None = None, **policy: str
    ) -> None:
        self.folder, self.data, self.arguments = folder, data, arguments or {}
        (folder / "policy.yaml").write_text(POLICY.format(**{**DEPLOYED, **policy}))
        Ledger.open(folder / "ledger.sqlite", create=True).close()

    def evaluate(self, sent: Message, given: Context) -> Message:
        settings = {"like": LIKE, **self.arguments}
        found = private_accuracy(given, nn.Linear(2, 2), self.data, **settings)
        return Message(found, reply_to=sent)

    def app(self, task: Callable[..., Message] | None = None) -> ClientApp:
        app = ClientApp(mods=[LdpMod(evaluate=AccuracyRelease(2.0))])
        app.evaluate()(task or self.evaluate)
        return app

    def ask(self, message_id: str = "m-1", task: Callable[..., Message] | None = None) -> Message:
        content = RecordDict({"arrays": record(MODEL), "config": ConfigRecord({})})
        sent = message(content, kind="evaluate", message_id=message_id)
        vars(sent.metadata)["_run_id"] = self.run_id
        return self.app(task)(sent, self.given())

    def given(self) -> Context:
        node = {"ldp-policy": str(self.folder / "policy.yaml")}
        return replace(context(), run_id=self.run_id, node_config=node)

    def charged(self) -> list[str]:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return [str(entry.events[0].cost) for entry in ledger.entries()]

    def share(self, *given: Any, examples: int = 5) -> float:
        reply = self.ask(*given)
        assert not reply.has_error(), reply.error
        (metrics,) = reply.content.metric_records.values()
        assert set(metrics) == {"accuracy", "num-examples"}
        assert metrics["num-examples"] == examples
        return float(metrics["accuracy"])  # type: ignore[arg-type]


def spoiled(row: Any) -> dict[str, Any]:
    return {"data": [*ROWS[:1], row, *ROWS[2:]]}


def of_patients(groups: Any) -> dict[str, Any]:
    return {"example": "patient", "arguments": {"groups": groups, "max_rows": 2}}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, 0.8),
        ({"arguments": {"workers": 2}}, 0.8),
        (spoiled((torch.zeros(3), 0)), 0.6),
        (spoiled((torch.ones(2), "x")), 0.6),
        (spoiled(None), 0.6),
        (spoiled((torch.ones(2),)), 0.6),
        (of_patients("abcde"), 0.8),
        (of_patients(["a", "b", "", "d", "e"]), 0.6),  # who has lost all rows is wrong
        (of_patients([0, 1, 2, 3, 3]), 3.5 / 5),  # a patient counts once
    ],
)
def test_right_predictions_are_counted_by_the_model_that_was_sent(
    tmp_path: Path, given: dict[str, Any], share: float
) -> None:
    assert Ward(tmp_path, **given).share() == pytest.approx(share)


@pytest.mark.usefixtures("silent")
def test_rows_of_another_form_are_counted_by_a_function_of_model_and_row(tmp_path: Path) -> None:
    data = [{"x": x, "y": float(y)} for x, y in ROWS]

    def near(model: Any, row: Any) -> Any:
        return (model(row["x"])[:, 1] - row["y"]).abs() < 1

    settings = {"like": {"x": LIKE[0], "y": 0.0}, "right": near}
    assert Ward(tmp_path, [*data[:4], {"x": LIKE[0]}], settings).share() == pytest.approx(0.2)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("worst", "best"), [(4.0, 0.0), (0.0, 4.0), (-1.0, 3.0)])
def test_a_bounded_score_is_clipped_and_a_row_that_fails_has_the_worst(
    tmp_path: Path, worst: float, best: float
) -> None:
    def away(model: Any, row: Any) -> Any:
        return (model(row[0])[:, 1] - 1.5).abs()  # .5, .5, 2.5, 1.5, and one that fails

    data = [*ROWS[:4], (None, 0)]
    arguments = {"right": away, "worst": worst, "best": best}
    low, high = sorted((worst, best))
    mean = np.mean([*np.clip([0.5, 0.5, 2.5, 1.5], low, high), worst])
    share = Ward(tmp_path, data, arguments).share()
    assert worst + share * (best - worst) == pytest.approx(mean, abs=1e-3 * (high - low))


@pytest.mark.parametrize(("worst", "best"), [(1.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_bounds_of_a_score_are_finite_and_differ(tmp_path: Path, worst: float, best: float) -> None:
    arguments = {"worst": worst, "best": best}
    ward = Ward(tmp_path, arguments=arguments, mode="simulation")
    assert ward.ask().error.reason == "ldp:failed"
    with pytest.raises(ValueError, match="must be finite and differ"):
        DPSGDStrategy(FedAvg(), worst=worst, best=best)


@pytest.mark.parametrize("like", [(LIKE[0], 0.0), {"x": LIKE[0], "y": 0}, LIKE[0]])
def test_where_the_default_does_not_fit_it_is_said_what_to_give(
    tmp_path: Path, like: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ward = Ward(tmp_path, arguments={"like": like}, mode="simulation")
    assert ward.ask().error.reason == "ldp:failed"
    assert re.search(r"fails on the public row: .* right=.* model, row", caplog.text)


@pytest.mark.usefixtures("silent")
def test_a_part_of_the_examples_is_divided_by_its_own_number(tmp_path: Path) -> None:
    """Four of the five are evaluated, three of them right: it is the owner who says four."""
    ward = Ward(tmp_path, ROWS[1:], counted=", examples: 4")
    assert ward.share(examples=4) == 0.75


def test_each_evaluation_is_paid_for_and_given_again(tmp_path: Path) -> None:
    ward = Ward(tmp_path)
    assert ward.share() == ward.share()
    ward.share("m-2")
    assert ward.ask("m-3").error.reason == "ldp:refused:budget"
    assert ward.charged() == ["epsilon 2"] * 2


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("task", [raises, silent_app, late])
def test_an_app_that_fails_as_a_whole_ends_the_evaluations_of_its_run(
    tmp_path: Path, task: Callable[..., Message]
) -> None:
    ward = Ward(tmp_path, life="50.0", moment="{evaluate: 1.0}" if task is late else "{}")
    before = ward.share()
    assert ward.share("m-2", task) == 0.5
    charged = ward.charged()
    for _ in range(2):
        assert ward.ask("m-3").error.reason == "ldp:refused:budget"
    assert ward.charged() == charged == ["epsilon 2"] * 2
    assert (ward.share("m-1"), ward.share("m-2")) == (before, 0.5)  # at no charge, as before
    ward.run_id = 99
    assert ward.share("m-3") == 0.8
    wait_for_counts()


@pytest.mark.usefixtures("silent")
def test_an_evaluation_that_is_underway_leaves_nothing_after_the_last(tmp_path: Path) -> None:
    ward = Ward(tmp_path, life="50.0")

    def overtaken(sent: Message, given: Context) -> Message:
        assert ward.share("m-2", raises) == 0.5
        return ward.evaluate(sent, given)

    assert ward.ask("m-1", overtaken).error.reason == "ldp:refused:budget"
    assert ward.ask("m-1").error.reason == "ldp:refused:repeat"
    assert len(ward.charged()) == 2


@pytest.mark.usefixtures("silent")
def test_nothing_leaves_where_the_end_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ward = Ward(tmp_path, life="50.0")

    def full(*given: Any, **named: Any) -> None:
        raise LedgerError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "seal", full)
        assert ward.ask("m-1", raises).has_error()
    assert ward.ask("m-1").error.reason == "ldp:refused:repeat"


def test_what_is_sealed_is_as_long_whether_the_app_failed_or_not(tmp_path: Path) -> None:
    ward = Ward(tmp_path, life="50.0")
    ward.share()
    ward.share("m-2", raises)
    db = sqlite3.connect(tmp_path / "ledger.sqlite")
    lengths = {len(report) for (report,) in db.execute("SELECT report FROM report")}
    db.close()
    assert len(lengths) == 1


def test_scaling_and_evaluations_end_together(tmp_path: Path) -> None:
    ward = Ward(tmp_path, life="50.0", more=SCALING)
    settings: dict[str, Any] = {"lower": [0.0], "upper": [1.0], "epsilon": 1.0}
    given = ward.given()
    kept = private_means(given, [[0.5]] * 5, **settings)
    ward.share("m-1", raises)
    assert private_means(given, [], **settings) == kept
    with pytest.raises(RefusalError, match="evaluations ended"):
        private_means(given, [[0.5]] * 5, **settings, name="other")
    assert len(ward.charged()) == 2


@pytest.mark.parametrize("task", [None, raises])
def test_the_first_evaluation_of_patients_is_given_again(
    tmp_path: Path, task: Callable[..., Message] | None
) -> None:
    ward = Ward(tmp_path, **of_patients(range(5)))
    assert ward.share("m-1", task) == ward.share("m-1")
    found = ward.ask("m-2")
    assert found.has_error() is (task is raises)


def test_patients_and_rows_share_no_account(tmp_path: Path) -> None:
    """What was paid per row bounds nothing per patient, and the other way round."""
    patients = Ward(tmp_path, **of_patients(range(5)))
    patients.share()
    patients.share("m-2")  # its own kind goes on
    rows = tmp_path / "rows"
    rows.mkdir()
    ward = Ward(rows)
    ward.share()
    for folder, example in ((tmp_path, "row"), (rows, "patient")):
        text = POLICY.format(**{**DEPLOYED, "example": example})
        (folder / "policy.yaml").write_text(text.replace("5.0}", "50.0}"))
    assert patients.ask("m-3").error.reason == "ldp:refused:policy"
    assert ward.ask("m-3").error.reason == "ldp:refused:policy"


def test_fedavg_evaluates_on_clients_as_ever(tmp_path: Path) -> None:
    ward, server, found = Ward(tmp_path, mode="simulation"), ServerApp(), []

    @server.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(fraction_train=0.0)
        found.append(strategy.start(grid, record(MODEL), num_rounds=1))

    node = {"ldp-policy": str(tmp_path / "policy.yaml")}
    run_in_process(server, ward.app(), 2, node_config=node)
    assert set(found[0].evaluate_metrics_clientapp[1]) == {"accuracy"}

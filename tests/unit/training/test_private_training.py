"""A round of private training through the gate: the charge, the marks, the model, the reply."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.training.gated import PLAN, expected, raiser, without_noise

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flower_ldp.accounting.dpsgd import SampledGaussian
from flower_ldp.clients import DPSGDRelease, LdpMod, Rehearsal
from flower_ldp.mechanisms import TrainingPlan
from flower_ldp.training import private, supervised
from flower_ldp.wire.training_plan import plan_fields
from tests.fixtures import message, record, wait_for_counts
from tests.unit.training.gated import (
    LIKE,
    MODEL,
    NOISE,
    ROWS,
    Site,
    descent,
    linear,
    squares,
    weights,
)

PROPOSED = TrainingPlan(3, 1, 1.0, 1.5, 8.0, 1e-2, clip=1.0)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def _nothing_was_rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.clients.rehearsal._held", OrderedDict())


silent = pytest.fixture(without_noise)


def test_the_noise_of_these_tests_is_enough() -> None:
    assert SampledGaussian(NOISE, 1.0, 6).delta(8.0) <= 1e-2


def test_the_plan_is_charged_once_and_each_round_is_marked(site: Site) -> None:
    found = [weights(site.ask(message_id)).tolist() for message_id in ("m-1", "m-2")]
    assert found[0] != found[1]  # another noise
    assert site.ask("m-3").error.reason == "ldp:refused:budget"  # the plan has no more
    plan, first, second = site.entries()
    (event,) = plan.events
    assert (event.mechanism, event.unit, str(event.cost)) == (
        "dpsgd",
        "example",
        "epsilon 8, delta 0.01",
    )
    terms = json.loads(plan.parameters)
    assert (terms["rounds"], terms["steps"], terms["rate"], terms["noise"]) == (2, 3, 1.0, 2.1)
    assert (terms["examples"], terms["example"]) == (8, "row")
    assert (plan.data_id, plan.releases, plan.sealed) == ("ward", 0, False)
    for entry in (first, second):
        assert (entry.events, entry.releases, entry.sealed) == ((), 1, True)
        assert entry.data_id.startswith("ward#rows:")


def test_a_message_that_comes_again_gets_the_stored_model_and_another_model_none(
    site: Site,
) -> None:
    first = weights(site.ask("m-1")).tolist()
    assert weights(site.ask("m-1")).tolist() == first
    assert len(site.entries()) == 2
    assert site.counts()["again"] == 1
    other = {**MODEL, "bias": np.ones(1, dtype=np.float32)}
    assert site.ask("m-1", other).error.reason == "ldp:refused:repeat"


def test_a_stored_model_that_was_changed_or_is_gone_is_refused(site: Site) -> None:
    site.ask("m-1")
    (file,) = (site.folder / "ledger.sqlite.models").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    kept = file.read_bytes()
    os.chmod(file, 0o600)
    file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    assert site.ask("m-1").error.reason == "ldp:refused:ledger"
    file.unlink()
    assert site.ask("m-1").error.reason == "ldp:refused:repeat"


def test_the_reply_is_an_ordinary_one(site: Site) -> None:
    content = site.ask().content
    assert list(content) == ["arrays", "metrics"]
    assert {n: (a.shape, a.dtype) for n, a in content.array_records["arrays"].items()} == {
        name: (array.shape, str(array.dtype)) for name, array in MODEL.items()
    }
    assert dict(content.metric_records["metrics"]) == {"num-examples": 8}


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_without_noise_it_is_clipped_descent_and_then_the_proximal_term(
    site: Site, mu: float
) -> None:
    found = weights(site.ask(config={"proximal-mu": mu} if mu else {}))
    assert found == pytest.approx(expected([[row] for row in ROWS], mu=mu), rel=1e-5)


def test_the_noise_has_the_deviation_of_the_plan(tmp_path: Path) -> None:
    """On a model of many weights whose gradients are zero: 0.1 * 2.1 * sqrt(3) / 8 an entry."""
    model = {"weight": np.zeros((1, 4000), np.float32), "bias": np.zeros(1, np.float32)}
    row = (torch.zeros(4000), torch.zeros(1))
    given = {"model": lambda: nn.Linear(4000, 1), "data": [row] * 8, "like": row}
    none = {"loss": lambda output, target: (0.0 * output).sum()}
    found = weights(Site(tmp_path, arguments={**given, **none}).ask(arrays=model))
    wanted = 0.1 * NOISE * 3**0.5 / 8
    # The sum of 4,001 squares is chi-squared; 1e-6 is at 4.9 deviations of about 0.0224.
    assert float((found**2).mean()) == pytest.approx(wanted**2, rel=0.12)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("fails", [False, True])
def test_what_the_app_replies_after_its_training_is_not_looked_at(
    tmp_path: Path, fails: bool
) -> None:
    def does_more(sent: Message, given: Context) -> Message:
        Site.train(site, sent, given)
        if fails:
            raise SystemExit("after all")
        return Message(RecordDict({"arrays": record({"weight": np.ones(9)})}), reply_to=sent)

    site = Site(tmp_path, task=does_more)
    assert weights(site.ask()) == pytest.approx(expected([[row] for row in ROWS]), rel=1e-5)
    assert not site.ask("m-2").has_error()


RAISING = raiser(OSError("no such file"))


def without_training(sent: Message, given: Context) -> Message:
    return Message(RecordDict({"arrays": record(MODEL)}), reply_to=sent)


@pytest.mark.parametrize("task", [without_training, RAISING])
def test_an_app_that_does_not_train_leaves_noise_alone_and_ends_the_plan(
    tmp_path: Path, task: Any
) -> None:
    site = Site(tmp_path, task=task)
    found = weights(site.ask())
    assert np.isfinite(found).all()
    assert (found != 0).all()
    assert site.counts()["failed"] == 1
    assert Site(tmp_path).ask("m-2").error.reason == "ldp:refused:budget"
    assert weights(site.ask()).tolist() == found.tolist()
    loud = Site(tmp_path, mode="simulation", task=task)
    assert loud.ask("m-4").error.reason == "ldp:failed"


def test_at_a_fixed_moment_the_training_is_found_in_its_thread(tmp_path: Path) -> None:
    warm = tmp_path / "warm"  # torch's first call takes its time
    warm.mkdir()
    Site(warm).ask()
    found = weights(Site(tmp_path, moment="{train: 1.5}").ask())
    assert (found != 0).all()
    assert Site(tmp_path).counts()["failed"] == 0


def test_an_app_that_is_late_leaves_noise_alone_and_ends_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flower_ldp.clients.ldp_mod.QUIET", 0.01)
    gate = threading.Event()

    def late(sent: Message, given: Context) -> Message:
        gate.wait(20)
        return Site.train(site, sent, given)

    site = Site(tmp_path, moment="{train: 0.2}", task=late)
    found = weights(site.ask())
    gate.set()
    assert (found != 0).all()
    wait_for_counts()
    assert site.counts()["failed"] == 1
    assert site.ask("m-2").error.reason == "ldp:refused:budget"
    # What it made too late stays where it is.
    assert weights(site.ask()).tolist() == found.tolist()


def test_an_earlier_rounds_model_does_not_leave(tmp_path: Path) -> None:
    """What one round made is no training of the next one."""
    kept: list[RecordDict] = []

    def once(sent: Message, given: Context) -> Message:
        if not kept:
            kept.append(Site.train(site, sent, given).content)
        return Message(kept[0], reply_to=sent)

    site = Site(tmp_path, task=once)
    first, second = weights(site.ask("m-1")), weights(site.ask("m-2"))
    assert first.tolist() != second.tolist()
    assert site.counts()["failed"] == 1


def test_a_second_training_of_one_message_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []

    def twice(sent: Message, given: Context) -> Message:
        Site.train(site, sent, given)
        try:
            return Site.train(site, sent, given)
        except Exception as error:
            refused.append(str(error))
            raise

    site = Site(tmp_path, task=twice)
    assert not site.ask().has_error()
    assert "one message, one training" in refused[0]


def test_training_outside_of_the_gate_is_refused() -> None:
    outside: Any = None
    loss = supervised(squares)
    with pytest.raises(Exception, match="LdpMod"):
        private.private_training(outside, linear(), ROWS, loss, optimizer=descent, like=LIKE)


def test_a_proposed_plan_is_accepted_exactly(tmp_path: Path) -> None:
    site = Site(tmp_path, plan="{rounds: 3, steps: 1, rate: 1.0, noise: 1.5, clip: 1.0}")
    assert not site.ask("m-1", config=plan_fields(PROPOSED)).has_error()
    other = plan_fields(replace(PROPOSED, noise=1.7))
    assert site.ask("m-2", config=other).error.reason == "ldp:refused:policy"


@pytest.mark.parametrize(
    ("policy", "is_refused"),
    [
        ({"plan": PLAN.replace("noise: 2.1", "noise: 0.5")}, True),
        ({"examples": 100}, True),  # a delta of one over their number
        ({"examples": 99}, False),
    ],
)
def test_a_plan_without_the_noise_or_the_delta_that_it_needs_is_refused(
    tmp_path: Path, policy: dict[str, Any], is_refused: bool
) -> None:
    site = Site(tmp_path, **policy)
    reply = site.ask()
    assert reply.has_error() is is_refused
    if is_refused:
        assert (reply.error.reason, site.entries()) == ("ldp:refused:policy", [])


# What a strategy wants beyond a model, and what a rehearsal tells.


@pytest.mark.parametrize("mode", ["simulation", "deployment"])
def test_a_training_loss_is_refused_with_a_sentence(
    tmp_path: Path, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    """QFedAvg wants it of each client. In a deployment it does not leave, and the log says so."""

    def task(sent: Message, given: Context) -> Message:
        reply = site.train(sent, given)
        reply.content.metric_records["metrics"]["train_loss"] = 0.5
        return reply

    site = Site(tmp_path, mode=mode, task=task)
    reply = site.ask()
    assert "no epsilon pays for the metrics train_loss" in caplog.text
    if mode == "simulation":
        assert reply.error.reason == "ldp:failed"
    else:
        assert dict(reply.content.metric_records["metrics"]) == {"num-examples": 8}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"like": (torch.zeros(3), torch.zeros(1))}, "public row"),
        ({"data": [(torch.zeros(3), torch.zeros(1))]}, "expected shape"),
        ({"data": [(torch.tensor([math.nan, 0.0]), torch.zeros(1))]}, "not finite"),
        ({"model": lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))}, "arrays of"),
        ({"groups": [0] * 8}, None),
        (None, "gave no private training"),
    ],
)
def test_a_rehearsal_tells_what_is_wrong_before_anything_is_charged(
    tmp_path: Path, changes: dict[str, Any] | None, told: str | None
) -> None:
    site = Site(tmp_path, arguments=changes or {})
    sample = Rehearsal(train=without_training if changes is None else site.train)
    app = ClientApp(mods=[LdpMod(train=DPSGDRelease(), rehearsal=sample)])
    app.train()(Site(tmp_path).train)
    reply = app(message(RecordDict({"arrays": record(MODEL)})), site.context)
    if told is None:
        assert not reply.has_error()
    else:
        assert reply.error.reason is not None
        assert reply.error.reason.startswith("ldp:refused:rehearsal: ")
        assert told in reply.error.reason
        assert site.entries() == []

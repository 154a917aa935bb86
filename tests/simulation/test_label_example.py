"""The example of private labels: its client by itself, and its command without an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from numpy.typing import NDArray

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.privacy import Unit
from tests import fixtures
from tests.simulation.here import script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "label-dp"
CLIENTS = 4


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A client of the example, with the example's policy and a ledger of its own."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    policy = tmp_path / "label_policy.yaml"
    shutil.copyfile(EXAMPLE / policy.name, policy)
    config: dict[str, Any] = {
        **{"data": "digits", "evaluate-on": "test", "seed": 1},
        **{"method": "plain", "epsilon": 1.0},
    }
    node: dict[str, Any] = {"ldp-policy": str(policy), "partition-id": 2, "num-partitions": CLIENTS}
    return Context(run_id=3, node_id=7, node_config=node, state=RecordDict(), run_config=config)


def ask(context: Context, kind: str, **arrays: NDArray[Any]) -> Message:
    from label_dp_example import client_app

    content = RecordDict({"arrays": fixtures.record(arrays)})
    return client_app.app(fixtures.message(content, kind=kind), context)


def centers() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(2, 5, 64)).astype(np.float32)


def spent(folder: Path) -> dict[str, float]:
    with Ledger.open(folder / "ledger.sqlite", read_only=True) as ledger:
        totals = {account: ledger.totals(account) for account in ledger.data_ids()}
    assert all({*total} == {Unit.LABEL} for total in totals.values())
    return {name: total[Unit.LABEL].spent(Unit.LABEL).epsilon for name, total in totals.items()}


def test_what_leaves_the_counting_round_are_counts_of_the_stored_reports(
    context: Context, tmp_path: Path
) -> None:
    from label_dp_example import data, private

    first = ask(context, "query.counts", centers=centers())
    counts = first.content.array_records["arrays"]["counts"].numpy()
    _, shared = private.share(context)
    reports = shared.reports
    true = data.of_client(context).labels
    assert counts.shape == (2, 5, 10)
    for clustering in counts:
        assert np.array_equal(clustering.sum(axis=0), np.bincount(reports, minlength=10))
    # At epsilon 1 three of four labels are flipped; a chance of 1e-6 to see fewer than half.
    assert (reports != true).mean() > 0.5
    again = ask(context, "query.counts", centers=centers())
    assert np.array_equal(again.content.array_records["arrays"]["counts"].numpy(), counts)
    assert spent(tmp_path) == {"digits/2": 1.0}


def test_soft_targets_stay_on_the_client_and_are_posteriors(context: Context) -> None:
    from label_dp_example import private

    context.run_config["method"] = "local-priors"
    priors = np.full((2, 5, 10), 0.1)
    reply = ask(context, "query.priors", centers=centers(), priors=priors)
    assert not reply.has_error()
    assert not reply.content
    _, targets, _ = private.task(context)
    _, shared = private.share(context)
    law = KaryResponse(1.0, 10).transition()
    # Under a uniform prior the posterior is the response's law itself.
    assert np.allclose(targets.numpy(), law[shared.reports], atol=1e-6)


def test_two_stages_randomize_each_label_once_for_the_price_of_one(
    context: Context, tmp_path: Path
) -> None:
    from label_dp_example import data, model, private

    context.run_config["method"] = "lp-2st"
    n = len(data.of_client(context).labels)
    ask(context, "query.priors", centers=centers(), priors=np.full((2, 5, 10), 0.1))
    images, targets, _ = private.task(context)
    assert len(images) == len(targets) == -(-n * 3 // 5)
    net = {name: value.numpy() for name, value in model.build(8, 5).state_dict().items()}
    assert not ask(context, "query.second", **net).has_error()
    images, targets, _ = private.task(context)
    assert len(images) == len(targets) == n
    assert np.allclose(targets.numpy().sum(axis=1), 1.0, atol=1e-5)
    # Whatever model is asked with later: the labels are those of the first time.
    known = np.full((n, 10), 0.1)
    _, first = private.share(context)
    second = private.share_second(context, known)
    assert sorted([*first.members, *second.members]) == list(range(n))
    assert second.prior is not None
    assert not np.allclose(second.prior, known[second.members] ** private.DRAW_POWER)
    charged = dict.fromkeys((f"digits/2#labels:train/{part}" for part in ("0", "1", "all")), 1.0)
    assert spent(tmp_path) == charged


def test_k_means_reads_no_label_and_costs_nothing(context: Context, tmp_path: Path) -> None:
    reply = ask(context, "query.clusters", centers=centers())
    numbers = reply.content.array_records["arrays"]["numbers"].numpy()
    assert numbers.sum(axis=1).tolist() == [359, 359]
    assert not (tmp_path / "ledger.sqlite").exists()


@pytest.mark.parametrize(("name", "value"), [("epsilon", 2.0), ("epsilon", 0.5), ("seed", 2)])
def test_a_run_that_asks_for_more_gets_a_constant_error(
    name: str, value: float, context: Context, tmp_path: Path
) -> None:
    """Another epsilon, or other labels than those that were randomized."""
    ask(context, "query.counts", centers=centers())
    context.run_config[name] = value
    reply = ask(context, "query.counts", centers=centers())
    assert reply.has_error()
    assert reply.error.reason == "label-dp:failed"
    assert spent(tmp_path) == {"digits/2": 1.0}


def test_methods_share_the_labels_that_were_randomized_first(
    context: Context, tmp_path: Path
) -> None:
    from label_dp_example import private

    shared = []
    for method in ("plain", "local-priors"):
        context.run_config["method"] = method
        shared.append(private.share(context)[1].reports)
    assert np.array_equal(*shared)
    assert spent(tmp_path) == {"digits/2": 1.0}


def test_the_example_runs_and_two_stages_cost_as_much_as_one(tmp_path: Path) -> None:
    command = ["--output", tmp_path, "--clients", CLIENTS, "--rounds", 2, "--workers", 1]
    command += ["--method", "local-priors", "--method", "lp-2st"]
    command += ["--set", "clusters=8", "--set", "clusterings=2", "--set", "first-stage-rounds=1"]
    done = script(EXAMPLE / "run.py", *command)
    assert done.code == 0, done.output
    line = f"simulation: the ledger has {CLIENTS} clients, the most spent is epsilon 1 per label"
    assert done.output.count(line) == 2
    once = {f"digits/{number}": 1.0 for number in range(CLIENTS)}
    assert spent(tmp_path / "seed-1") == once
    # Its stages are parts of a layout: each label is in one, and each part has spent as much.
    staged = spent(tmp_path / "seed-1" / "lp-2st")
    assert {account.partition("#")[0] for account in staged} == set(once)
    assert set(staged.values()) == {1.0}
    history = json.loads((tmp_path / "history.json").read_text())
    assert [row["epsilon_per_label"] for row in history["summary"]] == [1.0, 1.0]
    for one in history["runs"]:
        last = 3 if one["method"] == "lp-2st" else 2
        assert [row["round"] for row in one["rounds"]] == list(range(last + 1))
    assert history["runs"][0]["priors"]["clients"] == CLIENTS
    # One start, and other models after it: a few steps may leave one of them where it was.
    assert len({one["rounds"][0]["accuracy"] for one in history["runs"]}) == 1
    assert len({row["accuracy"] for one in history["runs"] for row in one["rounds"]}) > 2
    assert (tmp_path / "history.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [(["--method", "none"], "--method"), (["--data", "/nowhere/mnist.npz"], "mnist.npz")],
)
def test_a_wrong_argument_is_a_clear_error(arguments: list[str], complaint: str) -> None:
    done = script(EXAMPLE / "run.py", *arguments)
    assert done.code == 2
    assert complaint in done.text


def test_the_baseline_says_its_noise_and_its_accuracy() -> None:
    pytest.importorskip("opacus")
    done = script(EXAMPLE / "dpsgd_baseline.py", "--epochs", "2")
    assert "noise multiplier 4.50" in done.output, done.output
    assert "12 steps" in done.output
    assert "delta 1e-05 per example" in done.output
    assert "of 360 images" in done.output

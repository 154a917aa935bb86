"""Labels on the client: randomized once, charged once, kept, and refused if they changed."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flower_ldp.accounting.ledger import REFUSED_REPEAT, Ledger
from flower_ldp.clients import (
    LabelStages,
    PrivateLabels,
    RandomizedLabels,
    private_dataset,
    private_labels,
)
from flower_ldp.clients.labels import most_bytes, pack, unpack
from flower_ldp.errors import BudgetExhausted, LedgerError, RefusalError, ReleaseError
from flower_ldp.mechanisms import (
    KaryResponse,
    RandomSource,
    RROnBins,
    RRWithPrior,
    SubsetSelection,
)
from flower_ldp.policy import REFUSED_POLICY, load_policy
from flower_ldp.privacy import Unit
from tests.fixtures import context, make_site, policy_text
from tests.unit.clients.world import spent

LABELS = np.arange(3_000) % 10
RESPONSE = KaryResponse(1.0, 10, unit=Unit.LABEL)
WITH_PRIOR = RRWithPrior(1.0, 10, unit=Unit.LABEL)
STAGES = LabelStages((RESPONSE, WITH_PRIOR), (3, 2))
PRIOR = np.linspace(0.0, 0.2, 10)
RELEASES = """
  train:
    kary_response: {epsilon: 1.0, unit: label}
    subset_selection: {epsilon: 1.0, unit: label}
    rr_with_prior: {epsilon: 1.0, unit: label}
    rr_on_bins: {epsilon: 1.0, unit: label}
    label_stages: {epsilon: 1.0, unit: label}
"""


def policy(mode: str = "deployment", life: float = 1.0) -> str:
    return policy_text(RELEASES, mode=mode, budgets=f"label: {{life: {{epsilon: {life}}}}}")


POLICY = policy()


def write_policy(folder: Path, life: float) -> Path:
    path = folder / "policy.yaml"
    path.write_text(policy(life=life))
    return path


def randomized(labels: np.ndarray = LABELS, **options: object) -> RandomizedLabels:
    return private_labels(context(), labels, **{"mechanism": RESPONSE, **options})  # type: ignore[arg-type]


def total(folder: Path, account: str = "ward-7") -> float:
    return spent(folder, Unit.LABEL, account)


def test_the_second_call_gives_the_same_labels_and_costs_nothing(folder: Path) -> None:
    first = randomized()
    assert total(folder) == 1.0
    another_run = dataclasses.replace(context(), run_id=99, node_id=11)
    again = private_labels(another_run, LABELS.tolist(), mechanism=RESPONSE)
    np.testing.assert_array_equal(again.reports, first.reports)
    np.testing.assert_array_equal(again.members, np.arange(len(LABELS)))
    assert total(folder) == 1.0
    kept = (first.reports == LABELS).mean()
    keep = RESPONSE.keep_probability
    assert abs(kept - keep) < 5 * (keep * (1 - keep) / len(LABELS)) ** 0.5
    np.testing.assert_allclose(first.likelihood(), RESPONSE.likelihood(first.reports))


@pytest.mark.parametrize("unknown", [10, -1, np.nan, 2.5])
def test_an_unknown_label_is_uniform_and_costs_what_a_label_costs(
    folder: Path, unknown: float
) -> None:
    labels = LABELS.astype(float)
    labels[::2] = unknown
    reports = randomized(labels).reports
    # six standard deviations for the labels that are known, and for each of ten categories
    told, keep = (reports == LABELS)[1::2].mean(), RESPONSE.keep_probability
    assert abs(told - keep) < 6 * np.sqrt(keep * (1 - keep) / 1_500)
    counts = np.bincount(reports[::2], minlength=10)
    assert np.abs(counts - 150).max() < 6 * np.sqrt(1_500 * 0.1 * 0.9)
    assert total(folder) == 1.0
    np.testing.assert_array_equal(randomized(labels).reports, reports)


@pytest.mark.parametrize("categories", [10, 62])
def test_sets_of_labels_are_stored_as_they_were_drawn(folder: Path, categories: int) -> None:
    sets = SubsetSelection(1.0, categories, unit=Unit.LABEL)
    labels = np.arange(3_000) % categories
    first = randomized(labels, mechanism=sets)
    again = randomized(labels, mechanism=sets)
    np.testing.assert_array_equal(again.reports, first.reports)
    np.testing.assert_array_equal(again.likelihood(), sets.likelihood(first.reports))
    assert total(folder) == 1.0
    held = sets.members(first.reports)[np.arange(3_000), labels].mean()
    keep = sets.keep_probability
    assert abs(held - keep) < 6 * (keep * (1 - keep) / 3_000) ** 0.5


def test_the_first_of_two_stages_may_report_sets(folder: Path) -> None:
    stages = LabelStages((SubsetSelection(1.0, 10, unit=Unit.LABEL), WITH_PRIOR), (3, 2))
    first = randomized(mechanism=stages)
    second = randomized(mechanism=stages, stage=1, prior=PRIOR)
    assert total(folder) == 1.0
    assert (first.likelihood().shape, second.likelihood().shape) == ((1_800, 10), (1_200, 10))
    np.testing.assert_array_equal(randomized(mechanism=stages).reports, first.reports)


BINS = RROnBins(1.0, np.linspace(-5.0, 5.0, 64), np.ones(64))


def test_regression_labels_are_charged_once_and_reports_are_bins(folder: Path) -> None:
    labels = np.random.default_rng(1).normal(0.0, 3.0, 3_000)
    labels[:300] = np.nan
    first = randomized(labels, mechanism=BINS)
    again = randomized(labels.tolist(), mechanism=BINS, name="train")
    np.testing.assert_array_equal(again.reports, first.reports)
    assert total(folder) == 1.0
    kept, keep = (first.reports == BINS.read(labels))[300:].mean(), BINS.keep_probability
    assert abs(kept - keep) < 6 * (keep * (1 - keep) / 2_700) ** 0.5
    np.testing.assert_array_equal(first.likelihood(), BINS.likelihood(first.reports))
    assert set(BINS.decode(first.reports)) == set(BINS.outputs)
    # Labels that stay in their bin are the same labels, and others are refused.
    np.testing.assert_array_equal(randomized(labels + 1e-9, mechanism=BINS).reports, first.reports)
    with pytest.raises(ReleaseError, match="not those that were randomized"):
        randomized(-labels, mechanism=BINS)
    other = RROnBins(1.0, np.linspace(-5.0, 6.0, 64), np.ones(64))
    with pytest.raises(RefusalError, match="need another name"):
        randomized(labels, mechanism=other)
    assert total(folder) == 1.0


def test_a_policy_that_does_not_list_it_allows_no_regression_labels(folder: Path) -> None:
    text = POLICY.replace("rr_on_bins", "binary_response")
    (folder / "policy.yaml").write_text(text)
    with pytest.raises(RefusalError) as caught:
        randomized(LABELS, mechanism=BINS)
    assert caught.value.code == REFUSED_POLICY
    with pytest.raises(ValueError, match="rr_on_bins reports sets or bins"):
        private_dataset(context(), [(0.0, 1.5)], mechanism=BINS)
    assert total(folder) == 0.0


def test_another_name_costs_anew_and_the_budget_ends(folder: Path) -> None:
    randomized()
    with pytest.raises(BudgetExhausted):
        randomized(name="once more")
    write_policy(folder, life=2.0)
    first, second = randomized(), randomized(name="once more")
    assert (first.reports != second.reports).any()
    assert total(folder) == 2.0


@pytest.mark.parametrize("changed", [0, 1_234, 2_999])
def test_a_changed_label_is_refused_and_nothing_is_drawn(folder: Path, changed: int) -> None:
    first = randomized()
    other = LABELS.copy()
    other[changed] = (other[changed] + 1) % 10
    with pytest.raises(ReleaseError, match="not those that were randomized as 'train'"):
        randomized(other)
    with pytest.raises(ReleaseError, match="not those"):
        randomized(LABELS[::-1].copy())
    np.testing.assert_array_equal(randomized().reports, first.reports)
    assert total(folder) == 1.0


SETS = SubsetSelection(1.0, 10, 3, unit=Unit.LABEL)


@pytest.mark.parametrize(
    ("labels", "mechanism", "first"),
    [
        (LABELS[:-1], RESPONSE, RESPONSE),
        (LABELS, KaryResponse(0.5, 10, unit=Unit.LABEL), RESPONSE),
        (LABELS, KaryResponse(1.0, 11, unit=Unit.LABEL), RESPONSE),
        (LABELS, STAGES, RESPONSE),
        (LABELS, SubsetSelection(1.0, 10, 2, unit=Unit.LABEL), SETS),
    ],
)
def test_other_parameters_under_the_name_are_refused(
    folder: Path, labels: np.ndarray, mechanism: object, first: object
) -> None:
    randomized(mechanism=first)
    with pytest.raises(RefusalError, match="need another name") as caught:
        randomized(labels, mechanism=mechanism)
    assert caught.value.code == REFUSED_REPEAT
    assert total(folder) == 1.0


def test_a_charge_without_stored_reports_is_refused_for_good(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "seal", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            randomized()
    with pytest.raises(RefusalError, match="no report was sealed") as caught:
        randomized()
    assert caught.value.code == REFUSED_REPEAT


# What the owner's files say and do not say.


def test_the_policy_governs(folder: Path) -> None:
    for epsilon, name in ((1.5, "kary_response"), (1.0, "unheard")):
        with pytest.raises(RefusalError) as caught:
            randomized(mechanism=KaryResponse(epsilon, 10, name=name, unit=Unit.LABEL))
        assert caught.value.code == REFUSED_POLICY
    with pytest.raises(ValueError, match=r"unit=Unit\.LABEL"):
        randomized(mechanism=KaryResponse(1.0, 10))
    assert total(folder) == 0.0
    (folder / "ledger.sqlite").unlink()
    with pytest.raises(LedgerError, match="does not exist"):
        randomized()


def test_a_simulation_gives_each_partition_an_account(folder: Path) -> None:
    (folder / "policy.yaml").write_text(policy("simulation"))
    clients = [dataclasses.replace(context(), node_config={"partition-id": i}) for i in range(2)]
    found = [private_labels(client, LABELS, mechanism=RESPONSE).reports for client in clients]
    assert (found[0] != found[1]).any()
    assert [total(folder, f"ward-7/{i}") for i in range(2)] == [1.0, 1.0]


def stored(folder: Path) -> list[bytes]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return [report for (report,) in db.execute("SELECT report FROM report")]


def test_the_ledger_alone_cannot_tell_labels_apart(tmp_path: Path) -> None:
    """Two ledgers about the same labels hold different digests: the keys are not in them."""
    digests = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        make_site(folder, POLICY)
        own = load_policy(folder / "policy.yaml")
        PrivateLabels(own, "ward-7").randomize(LABELS, LabelStages((RESPONSE,), (1,)))
        with Ledger.open(own.ledger) as ledger:
            (entry,) = ledger.entries()
        assert json.loads(entry.parameters)["labels"] == len(LABELS)
        (report,) = stored(folder)
        digests.append(unpack(report)[2])
        key = folder / "ledger.sqlite.labels-key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.read_bytes() not in own.ledger.read_bytes()
    assert digests[0] != digests[1]


def test_equal_labels_under_two_names_have_different_digests(folder: Path) -> None:
    write_policy(folder, life=2.0)
    for name in ("a", "b"):
        randomized(name=name)
    assert len({unpack(report)[2] for report in stored(folder)}) == 2


def test_a_label_that_is_no_number_changes_no_other(folder: Path) -> None:
    text = policy(life=200.0).replace(
        "kary_response: {epsilon: 1.0", "kary_response: {epsilon: 100"
    )
    (folder / "policy.yaml").write_text(text)
    exact = KaryResponse(100.0, 10, unit=Unit.LABEL)
    found = private_labels(context(), [3, 4, "", [5], 6], mechanism=exact)  # type: ignore[list-item]
    assert found.reports[[0, 1, 4]].tolist() == [3, 4, 6]


def test_a_stage_beyond_the_number_of_releases_reserves_nothing(folder: Path) -> None:
    with (folder / "policy.yaml").open("a") as policy:
        policy.write("releases: {life: 1}\n")
    randomized(name="other", mechanism=KaryResponse(0.25, 10, unit=Unit.LABEL))
    with pytest.raises(BudgetExhausted, match="1 releases were made"):
        randomized(mechanism=LabelStages((KaryResponse(0.5, 10, unit=Unit.LABEL),) * 2, (1, 1)))
    assert total(folder) == 0.25


def test_a_key_that_is_lost_or_open_to_others_is_refused(folder: Path) -> None:
    randomized()
    key = folder / "ledger.sqlite.labels-key"
    key.chmod(0o640)
    with pytest.raises(LedgerError, match="chmod 600"):
        randomized()
    key.chmod(0o600)
    whole = key.read_bytes()
    key.write_bytes(whole + b"x")
    with pytest.raises(LedgerError, match="damaged"):
        randomized()
    key.unlink()
    with pytest.raises(ReleaseError, match="key file is another"):
        randomized()
    key.write_bytes(whole)
    randomized()


# Priors.


def test_the_prior_of_the_draw_is_stored_with_the_reports(folder: Path) -> None:
    each = np.random.default_rng(1).dirichlet(np.ones(10), size=len(LABELS))
    first = randomized(mechanism=WITH_PRIOR, prior=each)
    again = randomized(mechanism=WITH_PRIOR, prior=PRIOR)
    np.testing.assert_array_equal(again.reports, first.reports)
    np.testing.assert_array_equal(again.prior, each.astype(np.float32))
    expected = WITH_PRIOR.likelihood(first.reports, each.astype(np.float32))
    np.testing.assert_array_equal(again.likelihood(), expected)
    assert (expected[np.arange(len(LABELS)), first.reports] > 0).all()
    assert total(folder) == 1.0


# What is wrong is refused before anything is charged.


@pytest.mark.parametrize(
    ("labels", "options", "text"),
    [
        ([], {}, "at least one"),
        ([[0, 1]], {}, "vector"),
        ([0, 1], {"name": ""}, "name must have"),
        ([0, 1], {"name": "a\nb"}, "name must have"),
        ([0, 1], {"stage": 1}, "stage must be"),
        ([0, 1], {"prior": PRIOR}, "prior must be left out"),
        ([0, 1], {"mechanism": WITH_PRIOR}, "prior must be given"),
        ([0, 1], {"mechanism": WITH_PRIOR, "prior": np.ones((3, 10))}, "prior must have shape"),
        ([0, 1], {"mechanism": WITH_PRIOR, "prior": -PRIOR}, "at least 0"),
        ([0, 1], {"mechanism": WITH_PRIOR, "prior": np.full(10, 1e300)}, "finite"),
    ],
)
def test_what_is_wrong_costs_nothing(
    folder: Path, labels: list[int], options: dict[str, object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        randomized(np.array(labels), **options)
    assert total(folder) == 0.0


def test_a_prior_that_the_ledger_could_not_store_costs_nothing(folder: Path) -> None:
    many = 2**26 // 10 + 1  # numbers of 4 bytes: more than 2^28 bytes in all
    prior = np.broadcast_to(PRIOR.astype(np.float32), (many, 10))
    labels = np.zeros(many, dtype=np.int64)
    with pytest.raises(ValueError, match="more stages, which cost no more"):
        randomized(labels, mechanism=WITH_PRIOR, prior=prior)
    assert total(folder) == 0.0
    randomized(labels[:9], mechanism=WITH_PRIOR, prior=prior[:9])
    assert total(folder) == 1.0


def assert_fits(reports: np.ndarray, report_end: int, prior: np.ndarray | None) -> None:
    """What is stored is no longer than was allowed for, and that is no guess."""
    packed, allowed = pack(reports, prior, bytes(32)), most_bytes(len(reports), report_end, prior)
    assert len(packed) <= allowed
    assert allowed < 1.01 * (reports.nbytes + (0 if prior is None else prior.nbytes)) + 5_000
    np.testing.assert_array_equal(unpack(packed)[0], reports)


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("categories", [2, 10, 300, 70_000])
def test_no_stored_set_is_longer_than_was_allowed_for(categories: int, each: bool) -> None:
    rng = np.random.default_rng(categories)
    for n in (1, 400_000 // categories):
        prior = rng.random((n, categories) if each else (categories,)).astype(np.float32)
        assert_fits(rng.integers(0, categories, n), categories, prior)


@pytest.mark.parametrize("categories", [8, 9, 33, 62])
def test_no_stored_sets_are_longer_than_was_allowed_for(categories: int) -> None:
    sets = SubsetSelection(0.01, categories, unit=Unit.LABEL)
    for n in (1, 20_000):
        reports = sets.randomize_array(np.zeros(n), RandomSource.seeded(n))
        assert_fits(reports, sets.report_end, None)


def test_the_bound_on_what_is_stored_decides_before_the_charge(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every size around the ledger's: stored, or refused at no cost."""
    for place in ("flower_ldp.accounting.ledger.charges", "flower_ldp.clients.release"):
        monkeypatch.setattr(f"{place}.MOST_REPORT", 60_000)
    write_policy(folder, life=1_000.0)
    each = np.random.default_rng(1).dirichlet(np.ones(10), size=len(LABELS))
    done = 0
    for n in range(1_200, 1_800, 12):
        try:
            randomized(LABELS[:n], mechanism=WITH_PRIOR, prior=each[:n], name=f"{n}")
        except ValueError:
            pass
        else:
            done += 1
        assert total(folder) == done
    assert 0 < done < 50


@pytest.mark.parametrize("kept", [b"", b"PK", b"no archive", pack(LABELS, None, b"d")[:-30]])
def test_what_is_no_archive_is_an_error_of_the_ledger(kept: bytes) -> None:
    with pytest.raises(LedgerError, match="cannot be read"):
        unpack(kept)

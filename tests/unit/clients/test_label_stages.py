"""Stages: disjoint parts of a label set, each label randomized once for the price of one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import LabelStages, OwnerAuthorizer, PrivateLabels, ReleaseRequest
from flower_ldp.errors import BudgetExhausted, RefusalError, ReleaseError
from flower_ldp.mechanisms import CodebookEmbedding, KaryResponse, RRWithPrior
from flower_ldp.parameter_bounds import MOST_PARAMETERS
from flower_ldp.policy import REFUSED_POLICY, load_policy
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.wire.proposal import canonical
from tests.fixtures import context, policy_text
from tests.unit.clients.test_private_labels import (
    LABELS,
    POLICY,
    PRIOR,
    RELEASES,
    RESPONSE,
    STAGES,
    WITH_PRIOR,
    randomized,
    total,
    write_policy,
)


def test_stages_randomize_each_label_once_for_the_price_of_one(folder: Path) -> None:
    first = randomized(mechanism=STAGES)
    second = randomized(mechanism=STAGES, stage=1, prior=PRIOR)
    assert total(folder) == 1.0
    members = np.concatenate([first.members, second.members])
    np.testing.assert_array_equal(np.sort(members), np.arange(len(LABELS)))
    assert len(first.members) == 1_800
    assert first.mechanism is RESPONSE
    assert second.mechanism is WITH_PRIOR
    for stage, before in ((1, second), (0, first)):
        prior = PRIOR[::-1].copy() if stage else None
        again = randomized(mechanism=STAGES, stage=stage, prior=prior)
        np.testing.assert_array_equal(again.reports, before.reports)
    np.testing.assert_array_equal(second.prior, PRIOR.astype(np.float32))
    for other in (RESPONSE, LabelStages((RESPONSE, WITH_PRIOR), (1, 1))):
        with pytest.raises(RefusalError, match="another name"):
            randomized(mechanism=other)
    with pytest.raises(BudgetExhausted):
        randomized(mechanism=STAGES, name="again")


@pytest.mark.parametrize("other", ["train/1", "train#x", "train%2F1"])
def test_names_that_look_like_parts_are_layouts_of_their_own(folder: Path, other: str) -> None:
    write_policy(folder, life=2.0)
    for name in ("train", other):
        randomized(mechanism=STAGES, name=name)
        randomized(mechanism=STAGES, name=name, stage=1, prior=PRIOR)
    assert total(folder) == 2.0
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.accounts() == {"ward-7": 6}


def test_each_stage_is_one_release_and_what_is_stored_is_none(folder: Path) -> None:
    path = folder / "policy.yaml"
    limits = "\nrepeats: 1\nleast_epsilon: 1.0\n"
    path.write_text(f"{POLICY}least_epsilon: 1.1\n")
    with pytest.raises(RefusalError, match=r"at least 1\.1 per label"):
        randomized(mechanism=STAGES)
    path.write_text(f"{POLICY}releases: {{life: 1}}{limits}")
    first = randomized(mechanism=STAGES)
    for _ in range(3):
        np.testing.assert_array_equal(randomized(mechanism=STAGES).reports, first.reports)
    with pytest.raises(BudgetExhausted, match="1 releases per life"):
        randomized(mechanism=STAGES, stage=1, prior=PRIOR)
    path.write_text(f"{POLICY}releases: {{life: 2}}{limits}")
    randomized(mechanism=STAGES, stage=1, prior=PRIOR)


def test_stages_reserved_on_the_whole_of_the_data_are_found_again(folder: Path) -> None:
    """As ledgers of version 1 have them: nothing is drawn twice, and the sums add up."""
    write_policy(folder, life=2.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "flower_ldp.clients.labels.StoredLabels.home", lambda self, whole, *_, **__: whole
        )
        first = randomized(mechanism=STAGES)
    again = randomized(mechanism=STAGES)
    np.testing.assert_array_equal(again.reports, first.reports)
    randomized(mechanism=STAGES, stage=1, prior=PRIOR)
    assert total(folder) == 2.0
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        assert ledger.data_ids() == ["ward-7", "ward-7#train/0", "ward-7#train/1"]


def test_embeddings_of_data_whose_labels_went_by_stages_are_not_refused(folder: Path) -> None:
    randomized(mechanism=STAGES)
    codes = "    codes: {epsilon: 3.0, unit: example}\n"
    budgets = "example: {life: {epsilon: 3.0}}, label: {life: {epsilon: 4.0}}"
    (folder / "policy.yaml").write_text(policy_text(RELEASES + codes, budgets=budgets))
    events = (PrivacyEvent("codes", 3.0, unit=Unit.EXAMPLE),)
    request = ReleaseRequest(1, "m", "train", events, "{}", "0123/train/0", "question")
    OwnerAuthorizer().authorize(request, context()).close()
    assert total(folder) == 4.0


def test_a_label_that_changes_between_stages_is_noticed_before_the_second_draw(
    folder: Path,
) -> None:
    randomized(mechanism=STAGES)
    other = LABELS.copy()
    other[4] = 0  # of the second stage
    with pytest.raises(ReleaseError, match="not those"):
        randomized(other, mechanism=STAGES, stage=1, prior=PRIOR)
    randomized(mechanism=STAGES, stage=1, prior=PRIOR)


def test_stages_cost_the_largest_epsilon() -> None:
    half = KaryResponse(0.5, 10, unit=Unit.LABEL)
    (event,) = LabelStages((half, WITH_PRIOR, half), (1, 1, 1)).events()
    assert (event.epsilon, event.unit, event.count) == (1.0, Unit.LABEL, 1)
    assert LabelStages((half,), (1,)).events() == half.events()


@pytest.mark.parametrize("n", [0, 1, 4, 5, 17])
def test_members_of_stages_are_a_partition(n: int) -> None:
    stages = LabelStages((RESPONSE, RESPONSE, RESPONSE), (3, 1, 2))
    parts = [stages.members(stage, n) for stage in range(3)]
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(n))
    with pytest.raises(ValueError, match=r"stage must be in \[0, 3\)"):
        stages.members(3, n)


@pytest.mark.parametrize(
    ("mechanisms", "shares", "text"),
    [
        ((), (), "at least one"),
        ((RESPONSE,), (1, 1), "as many"),
        ((RESPONSE, KaryResponse(1.0, 9, unit=Unit.LABEL)), (1, 1), "same categories"),
        ((RESPONSE, KaryResponse(1.0, 10)), (1, 1), "unit=Unit.LABEL"),
        ((RESPONSE, CodebookEmbedding(1.0, 10)), (1, 1), "mechanisms of labels"),
        ((RESPONSE,), (0,), "shares must be"),
        ((RESPONSE,), (True,), "shares must be"),
        ((RESPONSE,), (1.0,), "shares must be"),
    ],
)
def test_stages_that_are_none_are_refused(
    mechanisms: tuple[KaryResponse, ...], shares: tuple[int, ...], text: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        LabelStages(mechanisms, shares)


def test_mechanisms_of_one_name_are_told_apart(folder: Path) -> None:
    disguised = RRWithPrior(1.0, 10, name="kary_response", unit=Unit.LABEL)
    randomized(mechanism=RESPONSE)
    with pytest.raises(RefusalError, match="another name"):
        randomized(mechanism=disguised, prior=PRIOR)


# What is wrong with any stage is refused before the first is charged for all.


def test_an_epsilon_between_two_units_of_the_ledger_is_charged_and_drawn(folder: Path) -> None:
    third = KaryResponse(1 / 3, 10, unit=Unit.LABEL)  # its cost is rounded up, a limit down
    stages = LabelStages((third, RRWithPrior(1 / 7, 10, unit=Unit.LABEL)), (3, 2))
    assert len(randomized(mechanism=stages).reports) == 1_800
    assert len(randomized(mechanism=stages, stage=1, prior=PRIOR).reports) == 1_200
    assert 0 < total(folder) - 1 / 3 < 2e-12


def test_a_later_stage_that_the_policy_does_not_allow_costs_nothing(folder: Path) -> None:
    unheard = KaryResponse(1.0, 10, name="unheard", unit=Unit.LABEL)
    with pytest.raises(RefusalError) as caught:
        randomized(mechanism=LabelStages((RESPONSE, unheard), (1, 1)))
    assert caught.value.code == REFUSED_POLICY
    assert total(folder) == 0.0


@pytest.mark.parametrize("stages", [STAGES, LabelStages((RESPONSE,) * 12, (1,) * 12)])
def test_a_stage_whose_account_cannot_be_named_costs_nothing(
    folder: Path, stages: LabelStages
) -> None:
    for length in range(1_010, 1_025):
        store = PrivateLabels(load_policy(folder / "policy.yaml"), "x" * length)
        try:
            store.randomize(LABELS, stages)
        except ValueError:
            assert total(folder, "x" * length) == 0.0
        else:
            assert length + len("#train/0") + (len(stages.shares) > 10) <= 1_024


def test_stages_that_cannot_be_written_down_cost_nothing(folder: Path) -> None:
    """As long as the ledger takes, so that with the number of a stage they are too long."""

    def stages(count: int, long: int) -> LabelStages:
        return LabelStages((RESPONSE,) * count, (1,) * (count - long) + (1_000,) * long)

    def missing(of: LabelStages) -> int:
        return MOST_PARAMETERS - len(canonical(of.terms(len(LABELS))))

    one, two = missing(stages(1, 0)), missing(stages(2, 0))
    count = 1 + one // (one - two)
    full = stages(count, missing(stages(count, 0)) // len("000"))
    assert 0 <= missing(full) < len(',"stage":0')
    with pytest.raises(ValueError, match="parameters must have at most"):
        randomized(mechanism=full)
    assert total(folder) == 0.0

"""Audits of paths: what counts as an outcome, and that nothing else is touched."""

from __future__ import annotations

import logging
import os

import numpy as np
import pytest
from flwr.clientapp.typing import Mod

from flower_ldp.audit_paths import CLAIMED, gate, labels
from flower_ldp.audit_paths.cases import ASKS, CHANGED, AsDeployed, AuditOwner
from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.labels import PrivateLabels
from flower_ldp.errors import RefusalError, ReleaseError
from flower_ldp.mechanisms import MagRR, RandomSource, SignDS
from flower_ldp.policy.files import ENVIRONMENT_VARIABLE
from tests.broken_paths import (
    LongerWithoutAnUpdate,
    SaysHowLong,
    SaysHowMany,
    refuses_long_updates,
)

SELECTION, MAGNITUDE = SignDS(1.5, 0.2), MagRR(0.5)


def test_a_round_through_the_gate_is_scored_by_the_exact_log_ratio() -> None:
    case = gate(SELECTION, MAGNITUDE)
    contrast = case.contrasts[0]
    assert case.epsilon == 2.0
    outcomes = [case.draw(data, RandomSource.seeded(1)) for data in contrast.pair for _ in range(5)]
    assert {kind for kind, _ in outcomes} == {"report"}
    scores = contrast.statistic(outcomes)
    # As parts of the claim; 0.001 is the sign's.
    assert np.isin(np.round(np.abs(scores), 2), (0.25, 0.5, 1.0)).all()
    assert np.isin(np.round(np.abs(scores - np.round(scores, 2)), 9), (0.001,)).all()
    assert len({content for _, content in outcomes}) > 1


def test_an_error_is_an_outcome_far_from_every_report() -> None:
    simulated = LdpMod(train=SignDSRelease())
    (contrast,) = (case := gate(SELECTION, MAGNITUDE, mod=simulated, checks=CLAIMED[3:])).contrasts
    report, error = (case.draw(data, RandomSource.seeded(1)) for data in contrast.pair)
    assert (report[0], error) == ("report", ("error", (1000, "ldp:failed")))
    near, far = contrast.statistic([report, error])
    assert abs(near) < 1.01  # the log-ratio over epsilon, and the sign's 0.001
    assert far >= 1e6


@pytest.mark.parametrize("check", CLAIMED[1:])
def test_what_the_gate_cannot_use_is_answered_with_a_report(check: str) -> None:
    (contrast,) = (case := gate(SELECTION, MAGNITUDE, checks=(check,))).contrasts
    assert {case.draw(data, RandomSource.seeded(1))[0] for data in contrast.pair} == {"report"}


def test_what_an_error_says_is_part_of_the_outcome() -> None:
    case = gate(SELECTION, MAGNITUDE, mod=SaysHowLong(), checks=CLAIMED[:1])
    (contrast,) = case.contrasts
    first, second = (case.draw(data, RandomSource.seeded(1)) for data in contrast.pair)
    assert first != second
    assert len(set(contrast.statistic([first, second]).tolist())) == 2


def test_a_refusal_that_depends_on_data_shows_in_one_draw_of_each() -> None:
    case = gate(SELECTION, MAGNITUDE, mod=refuses_long_updates(15.0), checks=CLAIMED[:1])
    (contrast,) = case.contrasts
    kinds = [case.draw(data, RandomSource.seeded(1))[0] for data in contrast.pair]
    assert kinds == ["report", "error"]


LONGER = LdpMod(train=LongerWithoutAnUpdate(), authorizer=AsDeployed())


@pytest.mark.parametrize("mod", [LONGER, SaysHowMany()])
def test_a_reply_of_another_form_shows_in_one_draw_of_each(mod: Mod) -> None:
    (contrast,) = (case := gate(SELECTION, MAGNITUDE, mod=mod, checks=CLAIMED[1:2])).contrasts
    report, other = (case.draw(data, RandomSource.seeded(1)) for data in contrast.pair)
    assert (report[0], other[0]) == ("report", "no report")
    near, far = contrast.statistic([report, other])
    assert abs(near) <= 1.1
    assert far >= 1e6


@pytest.mark.parametrize("checks", [(), ("all",), (CLAIMED[0], "else")])
def test_unknown_pairs_are_refused(checks: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="checks must be some of"):
        gate(SELECTION, MAGNITUDE, checks=checks)


def test_all_pairs_are_claimed() -> None:
    assert [one.check for one in gate(SELECTION, MAGNITUDE).contrasts] == [*CLAIMED]


def test_an_audit_uses_its_own_policy_and_leaves_all_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "/nowhere/policy.yaml")
    (contrast, *_) = (case := gate(SELECTION, MAGNITUDE)).contrasts
    with caplog.at_level(logging.INFO):
        assert case.draw(contrast.pair[0], RandomSource.seeded(1))[0] == "report"
    assert os.environ[ENVIRONMENT_VARIABLE] == "/nowhere/policy.yaml"
    assert not logging.getLogger("flower_ldp").disabled
    assert not caplog.records


def test_an_owners_folder_goes_with_it() -> None:
    owner = AuditOwner()
    folder = owner.policy.ledger.parent
    assert folder.is_dir()
    del owner
    assert not folder.exists()


def test_labels_are_asked_for_again_and_scored_by_all_answers() -> None:
    case = labels(2.0)
    assert case.epsilon == 2.0
    contrast = case.contrasts[0]
    outcomes = [case.draw(contrast.pair[0], RandomSource.seeded(1)) for _ in range(4)]
    for outcome in outcomes:
        assert len(outcome) == ASKS
        assert len(set(outcome)) == 1
        assert CHANGED in outcome[0][0]
    # Stored once: further answers tell nothing new.
    assert np.isin(contrast.statistic(outcomes), (-ASKS, 0.0, ASKS)).all()


@pytest.mark.parametrize("epsilon", [0.1, 2.0])
def test_sets_of_labels_are_scored_by_what_they_hold(epsilon: float) -> None:
    case = labels(epsilon)
    (contrast,) = [one for one in case.contrasts if "subset selection" in one.check]
    outcomes = [case.draw(contrast.pair[0], RandomSource.seeded(1)) for _ in range(4)]
    for outcome, score in zip(outcomes, contrast.statistic(outcomes), strict=True):
        assert len(set(outcome)) == 1
        members, reports = outcome[0]
        told = reports[members.index(CHANGED)]
        assert 0 < told < 8
        assert score == ASKS * (bool(told & 1) - bool(told & 2))


def test_of_two_stages_both_are_in_the_outcome() -> None:
    case = labels(2.0)
    contrast = case.contrasts[-1]
    (members, first), (others, second) = outcome = case.draw(
        contrast.pair[0], RandomSource.seeded(1)
    )
    assert sorted((*members, *others)) == list(range(6))
    place = others.index(CHANGED)
    expected = (second[place] == 0) - (second[place] == 1) + first[place] / 10
    assert contrast.statistic([outcome]).tolist() == [expected]


@pytest.mark.parametrize("error", [RefusalError("ldp:refused:budget", "spent"), ReleaseError("no")])
def test_labels_that_are_refused_are_an_outcome(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = labels(2.0)
    contrast = case.contrasts[0]

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(PrivateLabels, "randomize", refuse)
    outcome = case.draw(contrast.pair[0], RandomSource.seeded(1))
    assert outcome == (type(error).__name__,)
    assert contrast.statistic([outcome]).tolist() == [10.0 * ASKS]

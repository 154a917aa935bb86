"""The audit of private training through the gate: what is drawn, and what counts as an outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.errors import ReleaseError
from flower_ldp.mechanisms import RandomSource
from tests.extras import extra

pytest.importorskip("torch")
release = extra("flower_ldp.audit_paths.dpsgd_release")

SOURCE = RandomSource.seeded(1)


def test_the_plan_has_no_more_noise_than_its_claim_needs() -> None:
    dpsgd = extra("flower_ldp.accounting.dpsgd")
    for rounds in (1, 2):
        plan = release._plan(1.0, release.DELTA, rounds)
        dpsgd.check_noise(plan)
        assert dpsgd.SampledGaussian(plan.noise / 1.01, 1.0, rounds).delta(1.0) > release.DELTA
    assert release.DELTA < 1 / release.PATIENTS


def test_a_canary_moves_the_model_by_its_clipped_gradient_and_the_others_by_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flower_ldp.training import private

    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)
    case = release.dpsgd_release(1.0)
    moves = {}
    for contrast in case.contrasts:
        for ward in contrast.pair:
            outcome = case.draw(ward, SOURCE)
            (moves[ward.canary, ward.rounds],) = contrast.statistic([outcome]).tolist()
    clip = release.CLIP / release.PATIENTS
    others = (release.PATIENTS - 1) * clip
    # Whoever fails, as who is left out, takes nothing of the others away.
    none = ("left out", "raises", "not finite", "another shape")
    assert moves == {
        ("one way", 1): pytest.approx(others + clip),
        ("other way", 1): pytest.approx(others - clip),
        ("one way", 2): pytest.approx(2 * (others + clip)),
        ("other way", 2): pytest.approx(2 * (others - clip)),
        **{(canary, 1): pytest.approx(others) for canary in none},
    }


def test_each_plan_has_an_account_of_its_own_and_is_charged() -> None:
    case = release.dpsgd_release(1.0)
    longer = case.contrasts[1].pair[0]
    outcomes = [case.draw(longer, SOURCE) for _ in range(2)]
    assert len(set(outcomes)) == 2
    owner = case.draw.__self__._owner
    with Ledger.open(owner.policy.ledger, read_only=True) as ledger:
        assert ledger.data_ids() == ["audit/0", "audit/1"]
        kinds = [len(entry.events) for entry in ledger.entries() if entry.releases or entry.events]
    assert kinds == [1, 0, 0] * 2


def refuses(*_: Any, **__: Any) -> Any:
    raise ReleaseError("no training today")


def gives_more(original: Callable[..., Any]) -> Callable[..., Any]:
    def content(self: Any, report: bytes) -> Any:
        found = original(self, report)
        found["metrics"]["rows"] = 7
        return found

    return content


def test_what_is_no_model_of_the_plans_form_is_an_outcome_far_from_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flower_ldp.clients.dpsgd.release import OpenDPSGD

    case = release.dpsgd_release(1.0)
    (contrast, *_) = case.contrasts
    whole = case.draw(contrast.pair[0], SOURCE)
    monkeypatch.setattr(OpenDPSGD, "content", gives_more(OpenDPSGD.content))
    more = case.draw(contrast.pair[0], SOURCE)
    monkeypatch.setattr(OpenDPSGD, "content", refuses)
    error = case.draw(contrast.pair[0], SOURCE)
    assert [whole[0], more[0], error] == ["model", "no model", ("error", (1000, "ldp:failed"))]
    near, far, farther = contrast.statistic([whole, more, error])
    assert abs(near) < 100
    assert min(far, farther) >= 1e6
    assert far != farther


def test_an_app_that_fails_as_a_whole_ends_its_plan() -> None:
    case = release.dpsgd_release(1.0, trainer=refuses)
    longer = case.contrasts[1].pair[0]
    assert case.draw(longer, SOURCE) == ("error", (1000, "ldp:refused:budget"))
    kind, weight = case.draw(case.contrasts[0].pair[0], SOURCE)
    assert kind == "model"  # of noise alone
    assert np.isfinite(weight)

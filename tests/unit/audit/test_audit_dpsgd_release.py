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
    for rounds, rate in ((1, 1.0), (2, 1.0), (1, release._RATE)):
        plan = release._plan(1.0, release.DELTA, rounds, rate)
        dpsgd.check_noise(plan)
        assert dpsgd.SampledGaussian(plan.noise / 1.01, rate, rounds).delta(1.0) > release.DELTA
    assert release.DELTA < 1 / release.PATIENTS


def test_a_canary_moves_the_model_by_its_clipped_gradient_and_the_others_by_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flower_ldp.training import private

    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)
    case = release.dpsgd_release(1.0)
    moves = {
        contrast.check: [
            contrast.statistic([case.draw(ward, SOURCE)]).item() for ward in contrast.pair
        ]
        for contrast in case.contrasts
    }
    clip = release.CLIP / release.PATIENTS
    others = (release.PATIENTS - 1) * clip
    # Whoever fails, as who is left out, takes nothing of the others away.
    failing = ("planted or left out", "whose rows raise", "that is not finite", "of another shape")
    expected = {
        "canary one way or the other": (others + clip, others - clip),
        "the same, in 2 rounds": (2 * (others + clip), 2 * (others - clip)),
        **{f"canary {how}": (others + clip, others) for how in failing},
    }
    assert {check: moves[check] for check in expected} == {
        check: pytest.approx(pair) for check, pair in expected.items()
    }


def test_who_loses_a_group_moves_no_last_bit_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flower_ldp.training import private

    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)
    case = release.dpsgd_release(1.0)
    (contrast,) = (one for one in case.contrasts if one.check.startswith("last bits"))
    moves = [contrast.statistic([case.draw(ward, SOURCE)]).item() for ward in contrast.pair]
    assert moves[0] == moves[1]


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
    from flower_ldp.clients.dpsgd import OpenDPSGD

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

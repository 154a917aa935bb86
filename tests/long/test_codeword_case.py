"""The audit of codewords: its scores are exact log-ratios, and it finds a sampler that is worse."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from flower_ldp.audit import BUILDERS, Settings, audit_case
from flower_ldp.audit.auditing import of_updates
from flower_ldp.mechanisms import Codeword, CodewordReport, RandomSource


@pytest.mark.parametrize(("dimension", "blocks"), [(2, 1), (3, 1), (9, 1), (40, 1), (10, 3)])
def test_scores_are_the_exact_ratio(dimension: int, blocks: int) -> None:
    mechanism = Codeword(1.5, rotations=2, seed=3, blocks=blocks).sized(dimension)
    case = of_updates(mechanism, dimension)
    order = mechanism.plan(dimension).order
    reports = [
        CodewordReport(order, *parts)
        for parts in itertools.product(range(2), range(order), (1, -1))
    ]
    for contrast in case.contrasts:
        first, second = (
            np.array([mechanism.log_prob(report, update) for report in reports])
            for update in contrast.pair
        )
        np.testing.assert_allclose(contrast.statistic(reports), first - second, atol=1e-9)


def test_a_sampler_with_twice_the_epsilon_is_refuted() -> None:
    case = BUILDERS["codeword"](Settings(epsilon=1.0, dimension=100))
    case = replace(case, contrasts=case.contrasts[:1], reuse_pairs=case.reuse_pairs[:1])
    worse = Codeword(2.0, rotations=4)
    seeds = itertools.count(10**6)

    def seeded() -> RandomSource:
        return RandomSource.seeded(next(seeds))

    broken = replace(case, draw=lambda update, rng: worse.randomize(update, rng, 100))
    found = {result.check: result for result in audit_case(broken, 1_000, sources=seeded)}
    assert found["opposite directions"].refuted
    found = {result.check: result for result in audit_case(case, 1_000, sources=seeded)}
    assert not any(result.refuted for result in found.values())
    assert found["opposite directions"].lower_bound > 0.4


def test_updates_of_one_entry_are_no_case() -> None:
    with pytest.raises(ValueError, match=r"dimension must be in \[2, inf\)"):
        BUILDERS["codeword"](Settings(dimension=1))

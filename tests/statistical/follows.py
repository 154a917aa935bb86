"""Whether counts follow an exact law."""

from __future__ import annotations

import numpy as np

from tests.extras import extra

stats = extra("scipy.stats")

FAILURE_RATE = 1e-6


def assert_follows(counts: list[int], probabilities: list[float]) -> None:
    """Chi-square test; outcomes expected less than five times are pooled."""
    total = sum(counts)
    expected = np.array(probabilities) * total
    rare = expected < 5
    observed = np.append(np.array(counts)[~rare], np.array(counts)[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    if wanted[-1] == 0:
        assert observed[-1] == 0
        observed, wanted = observed[:-1], wanted[:-1]
    assert stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue > FAILURE_RATE

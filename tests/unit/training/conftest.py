"""What all tests of private training share: the noise of a plan is worked out once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def _noise_is_worked_out_once() -> Iterator[None]:
    """Remember the noise by its parameters: most of these tests train by one plan."""
    pytest.importorskip("opacus")
    pytest.importorskip("dp_accounting")
    from flower_ldp.training import dpsgd

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpsgd, "noise_multiplier", cache(dpsgd.noise_multiplier))
        yield

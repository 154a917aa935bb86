"""A federation that more than one file of tests asks something of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.network.federation import GUARDED, Federation
from tests.network.sites import add_site


@pytest.fixture(scope="session")
def three_sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A SuperLink and three sites: one has a small budget for each run, one a guarded node.

    The app has a gate of its own, so the guarded node lets its paid reports out.
    """
    with Federation.start(tmp_path_factory.mktemp("federation"), tls=True) as federation:
        guarded: dict[str, Any] = {"command": GUARDED, "options": ("--ldp-gate", "reports")}
        for part, how in enumerate(({"run_budget": 67.0}, {}, guarded)):
            add_site(federation, part, connect=False, **how)
        for node in federation.nodes.values():
            node.wait_until_connected()
        yield federation

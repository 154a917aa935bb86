"""Five hospitals: what their ledgers hold, and that they learn together."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number

ALWAYS_BENIGN = (
    63.2  # of the held-out patients, which is also what the untrained model is right for
)


def check(text: str) -> None:
    assert "patients at each hospital: 91 91 91 91 91 - held out: 114" in text
    assert number(r"noise multiplier +(\S+),", text) == 33.38
    spent = re.findall(r"^ward/(\d): (.*)$", text, flags=re.MULTILINE)
    once = [(str(site), "epsilon 1, delta 1e-05 per example") for site in range(5)]
    assert spent == once + once  # after the training, and after the one that was refused
    together = curve(r"^together: (.*)$", text)
    # 16,000 simulated trainings: the best of their rounds is right for 65.8 % at least
    assert together[0] == ALWAYS_BENIGN < max(together) <= 100
    assert curve(r"^a second training: (.*)$", text) == [ALWAYS_BENIGN] * 5
    for site in range(5):
        alone = curve(rf"^hospital {site} alone: (.*)$", text)
        assert alone[0] == ALWAYS_BENIGN
        assert len(set(alone)) > 1, "it was trained"


def curve(pattern: str, text: str) -> list[float]:
    """Return the shares of five models, the untrained one first."""
    found = re.search(pattern, text, flags=re.MULTILINE)
    assert found is not None, pattern
    shares = [float(one) for one in re.findall(r"(\S+)%", found[1])]
    assert len(shares) == 5
    return shares

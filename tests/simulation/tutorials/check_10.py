"""Three sites: a report of each, charged to its own ledger, and no process is left."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number


def check(text: str) -> None:
    first, last = (number(rf"on the laptop: {one}%", text) for one in (r"(\S+)", r"\S+ then (\S+)"))
    # Of 8 runs 72 to 81 %; guessing is right for a tenth.
    assert first < 15 < 25 < last
    assert "100 clients, the most of one: epsilon 8 per client" in text
    assert "hopeless" in text
    assert text.count("registered successfully") == 3
    sandboxed = "options of the nodes: --sandbox" in text
    assert sandboxed != ("NO SANDBOX on this machine" in text)
    for site in range(3):
        assert f"node {site}: charged to ward-{site}-digits: codeword epsilon 8 per client" in text
    ledgers = re.findall(r"^ward-(\d)-digits: (.*)$", text, flags=re.MULTILINE)
    assert ledgers == [(str(site), "epsilon 8 per client") for site in range(3)]
    assert 0 <= number(r"at three sites: \S+ then (\S+)%", text) <= 100
    assert "somebody listens at the SuperLink's port: False" in text

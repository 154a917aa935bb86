"""The data owner: what is charged, refused, repeated and noticed, none of which is noise."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number


def check(text: str) -> None:
    assert "error: ledger /srv/ward-7/ledger.sqlite does not exist" in text
    outcomes = re.findall(r"^round \d: (\S+)$", text, flags=re.MULTILINE)
    assert outcomes == ["charged", "charged", "ldp:refused:budget", "charged"]
    assert re.findall(r"the app was asked (\d) time", text) == ["2", "1", "0"]
    assert "the same report both times: True" in text
    assert re.search(r"^ward-7-digits +\d+ +1 +0 +0 +0$", text, flags=re.MULTILINE)
    # An audit refutes a claim that holds in a run of a thousand: only what it asked is held.
    assert number(r"opposite directions +(\S+) ", text) == 1
    assert "anchor /srv/ward-7/elsewhere/ledger-mark: holds entry 2 of" in text
    stopped = re.findall(r"Replies rejected:\s+(\S+) 1 times", text)
    assert stopped == ["ldp:refused:budget", "ldp:refused:ledger"]
    assert "error: the ledger was set back" in text
    assert re.findall(r"^entries +(\d)$", text, flags=re.MULTILINE) == ["2", "3"]
    assert "this client, in all: epsilon 3 per client" in text

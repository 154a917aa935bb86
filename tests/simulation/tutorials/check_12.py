"""A shuffler: sums of whole rounds alone, both epsilons, and the ledgers' ciphertexts."""

from __future__ import annotations

from tests.simulation.tutorials.reading import number


def check(text: str) -> None:
    assert "local 4 among 2,000: central 0.893 at delta 1e-06" in text
    # Two runs with 2,000 clients had 76 %; guessing is right for a tenth.
    assert number(r"1,500 clients, each asked once: (\S+)% of the held-out", text) > 50
    assert "at most epsilon 4 per client (worst of 1500 clients, a sum)" in text
    central = number(r"central epsilon (\S+) at delta 1e-06 among 750, for the analyzer", text)
    least = number(r"; (\S+) among 700, for a server that drops reports", text)
    assert 1.4 < central < least < 2.0
    assert "10 ciphertexts: refused, minimum" in text
    assert "750 ciphertexts: the sum of 750 reports" in text
    assert "749 ciphertexts: refused, round" in text
    assert "750 ciphertexts of {1139} bytes" in text
    assert "a client's ledger says: epsilon 4 per client\n" in text
    assert "ciphertexts that the ledgers hold: 50 of 50" in text

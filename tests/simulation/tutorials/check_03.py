"""Apps that exist: each has spent 8 a client, and says about what is true."""

from __future__ import annotations

import re

from tests.simulation.tutorials.reading import number

HEARD = re.compile(r"^ +(\d+) +(-?[\d.]+)% +± +([\d.]+)% +([\d.]+)%$", re.MULTILINE)


def check(text: str) -> None:
    # The two changes, and what stood there before.
    for line in (
        "-app = ClientApp()",
        "+app = ClientApp(mods=[LdpMod(train=CodewordRelease(), rehearsal=rehearsal)])",
        "-strategy = FedAvg(fraction_evaluate=0.0)",
        "+strategy = CodewordStrategy(Codeword(epsilon=8.0))",
    ):
        assert f"\n{line}\n" in text
    assert number(r"plain: final accuracy (\S+)\n", text) > 0.85
    # Runs of the example had 67 to 81 %.
    assert number(r"private: final accuracy (\S+)\n", text) > 0.45
    assert number(r"old-style, private: (\S+)% of 360", text) > 40
    for name, clients in (("folder", 100), ("old-style", 300), ("evaluated", 300)):
        assert f"ledger of {name}: {clients} clients, epsilon 8 per client\n" in text
    assert "at most epsilon 8 per client" in text
    said = number(r"FedAvg: clients say (\S+)%", text)
    assert abs(said - number(r"FedAvg: .* truth (\S+)%", text)) < 40
    heard = [tuple(float(one) for one in row) for row in HEARD.findall(text)]
    assert [int(row[0]) for row in heard] == [4, 8, 12, 16, 20]
    for _, told, noise, truth in heard:
        assert abs(told - truth) < 45
        # sqrt(2) / 7.5 of one client, by 20 of them
        assert 4 < noise < 4.5

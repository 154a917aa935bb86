"""The ledger stays open while the app works: its file is judged again before the report is sealed.

An app may take hours. What would have the ledger refused when it is opened has the report refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from flwr.app import Context, Message

from flower_ldp.accounting.ledger import Ledger
from tests.fixtures import make_site

pytest.importorskip("flwr.supernode.main", reason="this Flower has no such node")

from tests.long.test_one_form import gate
from tests.unit.node.test_node_reports import KINDS, POLICY, asked, payload, raw_app

KIND = KINDS["signds"]


def damaged(ledger: Path) -> None:
    with ledger.open("r+b") as file:
        file.seek(8_192)
        file.write(bytes(range(256)) * 16)


def set_back(ledger: Path) -> None:
    """Write over it: the file stays, and so does all that tells it from others."""
    shutil.copyfile(ledger.with_name("older"), ledger)


CHANGES: dict[str, Callable[[Path], object]] = {
    "linked": lambda ledger: os.link(ledger, ledger.with_name("second")),
    "writable by all": lambda ledger: ledger.chmod(0o666),
    "set back": set_back,
    "damaged": damaged,
    "cut off": lambda ledger: os.truncate(ledger, 4_096),
    "gone": Path.unlink,
}


def answer(folder: Path, change: Callable[[Path], object], fails: bool) -> Message:
    """Have the app of a second message change the file."""
    site, ledger = make_site(folder, POLICY), folder / "ledger.sqlite"
    gate()(asked(KIND), site, raw_app(KIND))
    shutil.copyfile(ledger, ledger.with_name("older"))

    def app(one: Message, context: Context) -> Message:
        change(ledger)
        if fails:
            raise ValueError("no")
        return raw_app(KIND)(one, context)

    second = asked(KIND)
    second.metadata.__dict__["_message_id"] = "m-2"
    return gate()(second, site, app)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_ledger_that_would_be_refused_takes_no_report(
    change: Callable[[Path], object], fails: bool, tmp_path: Path
) -> None:
    found = answer(tmp_path, change, fails)
    assert found.error.reason == "ldp:failed"
    if change is set_back:  # and stays what was put there, with the failure that was counted
        with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
            assert ledger.verify().entries == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_ledger_that_was_read_meanwhile_takes_the_report(fails: bool, tmp_path: Path) -> None:
    """As a backup does. Closing the file drops the locks that this process has on it."""
    found = answer(tmp_path, lambda file: shutil.copyfile(file, file.with_name("backup")), fails)
    assert len(payload(found)) == KIND.length
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.verify().sealed == 2

"""An app that trains a part replies with that part alone: what else comes along spoils nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from flower_ldp.clients import RELEASES, CodewordRelease, GaussianRelease, SignDSRelease
from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.inputs import noted
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import record, signds_proposal
from tests.unit.clients.world import asking

KINDS: Mapping[str, tuple[type[Any], Mapping[str, Any]]] = {
    "signds": (SignDSRelease, signds_proposal(SignDS(8.0, 0.25, dim_out=4)).to_fields()),
    "codeword": (CodewordRelease, UpdateProposal(Codeword(8.0, 1)).to_fields()),
    "gaussian": (GaussianRelease, UpdateProposal(Gaussian(8.0, 1e-6)).to_fields()),
}
EVERY_KIND = pytest.mark.parametrize(("release", "fields"), KINDS.values(), ids=KINDS)
HEAD = np.zeros(20, dtype=np.float32)
TRAINED = np.arange(20, dtype=np.float32)


def replied(**arrays: Any) -> RecordDict:
    return RecordDict({"a": record(arrays)})


def is_neutral(opened: Any, reply: RecordDict) -> bool:
    """Return what the report is; the words of a rehearsal must agree."""
    with noted() as notes:
        opened.check_form(opened.privatize(reply, RandomSource.seeded(0)))
    assert (opened.complaint(reply) is None) == (notes == [])
    return notes != []


@EVERY_KIND
@pytest.mark.parametrize(
    "beside",
    [
        {},
        {"head.n": np.array(3)},
        {"empty": np.zeros((0, 3), dtype=np.float32)},
        {"head.empty": np.zeros(0), "head.flag": np.zeros(2, dtype=bool)},
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_its_arrays_alone_are_a_report_whether_or_not_the_proposal_names_them(
    release: type[Any], fields: Mapping[str, Any], beside: Mapping[str, Any], named: bool
) -> None:
    """Where the app's patterns match all there is to train, a proposal about all is about these."""
    part = {"trainable": ["head.w"]} if named else {}
    content = asking({**fields, **part}, {**beside, "head.w": HEAD})
    opened = release(trainable="head.*").open(content)
    assert not is_neutral(opened, replied(**{"head.w": TRAINED}))
    assert not is_neutral(opened, replied(**beside, **{"head.w": TRAINED}))
    assert is_neutral(opened, replied(head=TRAINED))
    assert is_neutral(opened, replied(**{"head.w": TRAINED[:9]}))


@EVERY_KIND
@pytest.mark.parametrize(
    "beside",
    [
        {"trunk": Array("object", (1,), "numpy.ndarray", b"garbage")},
        {"trunk": Array("bfloat16", (30,), "torch.bf16", bytes(60))},
        {"trunk": Array(np.zeros((3, 3)))},
        {"lora": Array(np.full(3, np.nan))},
        {"lora": Array("object", (1,), "numpy.ndarray", b"garbage")},
    ],
)
def test_other_arrays_of_a_reply_are_not_even_opened(
    release: type[Any], fields: Mapping[str, Any], beside: Mapping[str, Array]
) -> None:
    model = {"trunk": np.zeros(30, dtype=np.float32), "head": HEAD}
    opened = release().open(asking({**fields, "trainable": ["head"]}, model))
    reply = RecordDict({"a": ArrayRecord({**beside, "head": Array(TRAINED)})})
    assert not is_neutral(opened, reply)
    spoiled = Array("object", (1,), "numpy.ndarray", b"garbage")
    assert is_neutral(opened, RecordDict({"a": ArrayRecord({"head": spoiled})}))


@EVERY_KIND
def test_the_nodes_own_releases_know_no_apps_part(
    release: type[Any], fields: Mapping[str, Any]
) -> None:
    """As the page of the guarded node says: a site that means a part has a gate of its own."""
    content = asking({**fields, "trainable": ["trunk"]}, {"trunk": HEAD, "head": HEAD})
    assert RELEASES["train"].open(content).complaint(replied(trunk=TRAINED)) is None
    with pytest.raises(WireError, match="trainable"):
        release(trainable="head").open(content)


def test_without_a_part_all_arrays_come_back_and_the_ledger_is_told_the_proposal_as_it_is() -> None:
    release, fields = KINDS["codeword"]
    content = asking(fields, {"w": HEAD, "n": np.array(3)})
    opened, whole = release().open(content), {"w": TRAINED, "n": np.array(4)}
    assert release(trainable="*").open(content).parameters == opened.parameters
    assert not is_neutral(opened, replied(**whole))
    for wrong in (replied(w=TRAINED), replied(**whole, more=TRAINED)):
        assert is_neutral(opened, wrong)
    both = RecordDict({"a": record({"w": TRAINED}), "statistics": record({"mean": TRAINED})})
    assert is_neutral(release(trainable="w").open(content), both)

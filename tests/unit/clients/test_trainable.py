"""An app that trains a part replies with that part alone: what else comes along spoils nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from flower_ldp.clients import RELEASES, CodewordRelease, GaussianRelease, SignDSRelease
from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS
from flower_ldp.mechanisms.inputs import noted
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal
from tests.fixtures import record, signds_proposal

KINDS: Mapping[str, tuple[type[Any], Mapping[str, Any]]] = {
    "signds": (SignDSRelease, signds_proposal(SignDS(8.0, 0.25, dim_out=4)).to_fields()),
    "codeword": (CodewordRelease, UpdateProposal(Codeword(8.0, 1)).to_fields()),
    "gaussian": (GaussianRelease, UpdateProposal(Gaussian(8.0, 1e-6)).to_fields()),
}
EVERY_KIND = pytest.mark.parametrize(("release", "fields"), KINDS.values(), ids=KINDS)
HEAD = np.zeros(20, dtype=np.float32)
TRAINED = np.arange(20, dtype=np.float32)


def proposed(fields: Mapping[str, Any], model: Mapping[str, Any], **part: Any) -> RecordDict:
    return RecordDict({"arrays": record(model), PROPOSAL_KEY: ConfigRecord({**fields, **part})})


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
    content = proposed(fields, {**beside, "head.w": HEAD}, **part)
    opened = release(trainable="head.*").open(content)
    assert not is_neutral(opened, RecordDict({"a": record({"head.w": TRAINED})}))
    assert not is_neutral(opened, RecordDict({"a": record({**beside, "head.w": TRAINED})}))
    assert is_neutral(opened, RecordDict({"a": record({"head": TRAINED})}))
    assert is_neutral(opened, RecordDict({"a": record({"head.w": TRAINED[:9]})}))


def test_the_ledger_is_told_the_proposal_as_it_is() -> None:
    release, fields = KINDS["codeword"]
    content = proposed(fields, {"head.w": HEAD, "head.n": np.array(3)})
    assert release(trainable="*").open(content).parameters == release().open(content).parameters


def test_without_a_part_all_arrays_come_back() -> None:
    release, fields = KINDS["codeword"]
    opened = release().open(proposed(fields, {"head.w": HEAD, "head.n": np.array(3)}))
    assert is_neutral(opened, RecordDict({"a": record({"head.w": TRAINED})}))
    whole = {"head.w": TRAINED, "head.n": np.array(4)}
    assert not is_neutral(opened, RecordDict({"a": record(whole)}))
    assert is_neutral(opened, RecordDict({"a": record({**whole, "more": TRAINED})}))


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
    opened = release().open(proposed(fields, model, trainable=["head"]))
    reply = RecordDict({"a": ArrayRecord({**beside, "head": Array(TRAINED)})})
    assert not is_neutral(opened, reply)
    spoiled = Array("object", (1,), "numpy.ndarray", b"garbage")
    assert is_neutral(opened, RecordDict({"a": ArrayRecord({"head": spoiled})}))


def test_of_two_records_with_arrays_none_is_the_model() -> None:
    release, fields = KINDS["codeword"]
    opened = release().open(proposed(fields, {"head": HEAD}, trainable=["head"]))
    both = {"a": record({"head": TRAINED}), "statistics": record({"mean": TRAINED})}
    assert is_neutral(opened, RecordDict({**both}))


@EVERY_KIND
def test_the_nodes_own_releases_know_no_apps_part(
    release: type[Any], fields: Mapping[str, Any]
) -> None:
    """As the page of the guarded node says: a site that means a part has a gate of its own."""
    content = proposed(fields, {"trunk": HEAD, "head": HEAD}, trainable=["trunk"])
    assert (
        RELEASES["train"].open(content).complaint(RecordDict({"a": record({"trunk": TRAINED})}))
        is None
    )
    with pytest.raises(WireError, match="trainable"):
        release(trainable="head").open(content)

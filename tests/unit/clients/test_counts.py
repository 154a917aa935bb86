"""Counts by query, through the gate, the policy and the ledger."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.clients import CountsRelease, LdpMod, Rehearsal
from flower_ldp.errors import WireError
from flower_ldp.mechanisms import JointCounts, SubsetSelection
from flower_ldp.mechanisms.integer_noise import DiscreteLaplace
from flower_ldp.privacy import Unit
from flower_ldp.wire.counts import CountsProposal, codes_of
from flower_ldp.wire.proposal import PROPOSAL_KEY
from tests.fixtures import context, message, payload

STEPS = JointCounts.steps

PHONE_POLICY = """
data_id: phone
ledger: ledger.sqlite
mode: {mode}
messages: {{query: {{subset_selection: {{epsilon: 2.0}}}}}}
budgets: {{client: {{life: {{epsilon: 8.0}}}}}}
"""
POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: {mode}
example: {example}
examples: 5
messages:
  query:
    counts: {{epsilon: 1.0, delta: {delta}, unit: example}}
budgets:
  example:
    life: {{epsilon: 30.0, delta: 0.5}}
"""
COLUMNS = {"age": [0, 40, 60, 120], "sex": ["F", "M"]}
QUESTION = CountsProposal(COLUMNS, [("age",), ("age", "sex")], 1.0)
#: Of clients with one row each.
PHONES = CountsProposal(COLUMNS, [("age", "sex")], 2.0, unit=Unit.CLIENT)
AGES, SEXES = [30.0, 45.0, 45.0, 70.0, 10.0], ["F", "M", "F", "M", "x"]
ROWS = {"age": AGES, "sex": SEXES}


def rows_of(columns: dict[str, Any]) -> RecordDict:
    """Return columns as a reply: arrays as arrays, and lists as lists."""
    lists = {name: one for name, one in columns.items() if isinstance(one, list)}
    arrays = {name: Array(one) for name, one in columns.items() if name not in lists}
    more = {"m": MetricRecord({"num-examples": 5})}
    return RecordDict({"a": ArrayRecord(arrays), "c": ConfigRecord(lists), **more})


class Ward:
    """A site that is asked for counts."""

    def __init__(
        self,
        folder: Path,
        columns: dict[str, Any] | None = None,
        release: CountsRelease | None = None,
        **policy: str,
    ) -> None:
        self.folder, self.columns = folder, ROWS if columns is None else columns
        self.release = release or CountsRelease()
        given = {"mode": "deployment", "example": "row", "delta": "0.0", **policy}
        (folder / "policy.yaml").write_text(POLICY.format(**given))
        Ledger.open(folder / "ledger.sqlite", create=True).close()

    def answer(self, sent: Message, _: Context) -> Message:
        return Message(rows_of(self.columns), reply_to=sent)

    def ask(
        self,
        message_id: str = "m-1",
        task: Callable[..., Message] | None = None,
        question: CountsProposal = QUESTION,
        **gate: Any,
    ) -> Message:
        content = RecordDict({PROPOSAL_KEY: ConfigRecord({**question.to_fields()})})
        app = ClientApp(mods=[LdpMod(query=self.release, **gate)])
        app.query()(task or self.answer)
        node = {"ldp-policy": str(self.folder / "policy.yaml")}
        given = replace(context(), node_config=node)
        return app(message(content, kind="query", message_id=message_id), given)

    def counts(self, *given: Any, **more: Any) -> list[float]:
        examples, found = QUESTION.decode(payload(self.ask(*given, **more)))
        assert examples == 5
        return (found / STEPS).tolist()

    def charged(self) -> list[str]:
        with Ledger.open(self.folder / "ledger.sqlite", read_only=True) as ledger:
            ledger.verify()
            return [str(entry.events[0].cost) for entry in ledger.entries()]


def raises(*_: object) -> Message:
    raise ValueError("patient 17 has no age")


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, size, rng: np.zeros(size, np.int64))


#: Three intervals and no value; then these by F, M and no value.
TABLES = [2, 2, 1, 0, 1, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "columns",
    [
        ROWS,
        {"age": np.array(AGES), "sex": np.array(SEXES)},
        {"age": np.array(AGES, dtype=">f8"), "sex": np.array(SEXES, dtype="S1")},
        {"age": np.array(AGES).astype(int), "sex": [f" {one}" for one in SEXES]},
        {"age": [str(one) for one in AGES], "sex": SEXES},
    ],
)
def test_rows_are_counted_in_every_table(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert Ward(tmp_path, columns).counts() == TABLES


@pytest.mark.usefixtures("silent")
def test_the_rows_of_a_patient_share_one_weight(tmp_path: Path) -> None:
    whose = ["a", "b", "b", "", "a"]
    ward = Ward(tmp_path, {**ROWS, "id": whose}, CountsRelease(groups="id"), example="patient")
    assert ward.counts() == [1, 1, 0, 0, 0.5, 0, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("missing", ["", "nan", "None", "<NA>", "NaT", " NaN"])
def test_rows_of_nobody_are_not_one_patients(tmp_path: Path, missing: str) -> None:
    """As pandas writes a missing name when it makes text of a column."""
    whose = ["a", missing, missing, "b", "c"]
    columns = {**ROWS, "age": [str(one) for one in AGES], "patient": whose}
    ward = Ward(tmp_path, columns, example="patient")
    assert ward.counts()[:4] == [2, 0, 1, 0]


@pytest.mark.parametrize("number", range(3))
def test_noise_is_added_and_a_repeated_message_costs_nothing(tmp_path: Path, number: int) -> None:
    ward = Ward(tmp_path)
    first = ward.counts()
    assert first != TABLES
    assert ward.counts() == first
    assert ward.charged() == ["epsilon 1"]
    assert ward.counts("m-2") != first
    assert ward.charged() == ["epsilon 1"] * 2


#: What one row may hold in place of an age or a sex.
ANY_AGE: list[Any] = [-1.0, 41, 1e300, math.nan, math.inf, "x", "50", True, 3 + 4j, b"70", "True"]
ANY_SEX: list[Any] = ["M", "f", "nan", 1, math.nan, True, b"F", 2.5]
ILL, ANY_ILL = [True, False, True, False], [b"x", "x", "True", b"0", 7, math.nan, 3 + 4j]


@pytest.mark.parametrize("levels", [["0", "1"], [0.0, 0.5, 1.0]])
@pytest.mark.parametrize("more", [[], ["x"], [b"x"], [3 + 4j]])
def test_truth_is_read_alike_beside_any_value(levels: Any, more: list[Any]) -> None:
    """Also as bytes, and as complex numbers that a second row turns into text."""
    for odd in ANY_ILL:
        column = np.array([*ILL, odd])
        found = codes_of(levels, np.concatenate([column, np.array(more)]) if more else column)
        assert found[:4].tolist() == [1, 0, 1, 0]


@pytest.mark.usefixtures("silent")
def test_an_integer_without_end_is_no_category(tmp_path: Path) -> None:
    """Python raises for its text, which ended the counts of the run."""
    ward = Ward(tmp_path, {"age": AGES, "sex": [1, 2, 3, 4, 10**5000]})
    assert ward.counts()[:4] == TABLES[:4]


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "whose",
    [
        np.array([1, 1.0, 2, 2, math.nan]),
        np.array([1, 1.0, 2, 2, "x"]),
        np.array([1, 1.0, 2, 2, 3 + 4j]),
        np.array([True, 1.0, 2, 2, b"x"]),
        ["1", "1.0", "2", "02", "None"],
        ["1", "1.0", "2", "02", "9007199254740993"],
        [1, 1, 9007199254740993, 9007199254740993, 9007199254740992],
    ],
)
def test_no_row_splits_the_patient_of_others(tmp_path: Path, whose: Any) -> None:
    """The first two are one patient, and so are the next two, whatever the last is."""
    ward = Ward(tmp_path, {**ROWS, "patient": whose}, example="patient")
    moved = np.array(ward.counts()[:4]) - [0.5, 1, 0.5, 0]
    assert moved.min() >= 0
    assert moved.sum() in (0, 1)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("nobody", ["", "None", "nan", " NaN", "NaT", "<NA>"])
def test_a_missing_patient_written_as_text_is_nobody(tmp_path: Path, nobody: str) -> None:
    whose = ["a", "b", nobody, nobody, nobody]
    assert sum(Ward(tmp_path, {**ROWS, "patient": whose}, example="patient").counts()[:4]) == 2


def test_a_question_too_long_for_a_ledger_is_refused_as_such() -> None:
    with pytest.raises(ValueError, match="must have at most 65536 characters"):
        CountsProposal({"age": [one / 7 for one in range(5_000)]}, [("age",)], 1.0)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(("name", "odd"), [("age", ANY_AGE), ("sex", ANY_SEX)])
def test_a_value_moves_its_own_row_alone(tmp_path: Path, name: str, odd: list[Any]) -> None:
    """Also where numpy gives all values another type for the sake of one."""
    ward = Ward(tmp_path)
    for number, value in enumerate(odd):
        column = [*ROWS[name][:4], value]
        ward.columns = {**ROWS, name: np.array(column)}
        moved = np.array(ward.counts(f"m-{number}")) - TABLES
        codes = codes_of(COLUMNS[name], [value])  # type: ignore[arg-type]
        assert 0 <= int(codes[0]) <= 3
        assert np.abs(moved[:4]).sum() <= 2
        assert np.abs(moved[4:]).sum() <= 2
        assert (moved[:4].sum(), moved[4:].sum()) == (0, 0)


def test_a_category_or_an_edge_is_what_it_says() -> None:
    values = ["1", 1, 1.0, True, "1.0", "True", 0, "0", 2, None, math.nan, "nan"]
    assert codes_of(["0", "1"], values).tolist() == [1] * 6 + [0, 0] + [2] * 4
    found = codes_of([0.0, 1.0, 2.0], [-5, 0, 0.99, 1, 2, 9, math.inf, -math.inf, None])
    assert found.tolist() == [0, 0, 0, 1, 1, 1, 1, 0, 2]
    values = np.linspace(2.0, 10.0, 97)
    edges = np.linspace(2.0, 10.0, 10)
    ours = np.bincount(codes_of(edges.tolist(), values), minlength=10)[:9]
    np.testing.assert_array_equal(ours, np.histogram(values, edges)[0])


@pytest.mark.parametrize(
    ("question", "code"),
    [
        (replace(QUESTION, epsilon=1.1), "policy"),
        (replace(QUESTION, epsilon=1e-4), "policy"),
        (replace(QUESTION, columns={**COLUMNS, "age": [0, 50, 120]}), "proposal"),
        (replace(QUESTION, columns={**COLUMNS, "id": ["1", "2"]}, tables=[("id",)]), "proposal"),
    ],
)
def test_a_question_that_may_not_be_asked_is_refused_before_the_charge(
    tmp_path: Path, question: CountsProposal, code: str
) -> None:
    ward = Ward(tmp_path, release=CountsRelease(columns=COLUMNS))
    assert ward.ask(task=raises, question=question).error.reason == f"ldp:refused:{code}"
    assert ward.charged() == []


def test_normal_noise_needs_a_delta_of_the_policy_below_one_over_the_examples(
    tmp_path: Path,
) -> None:
    columns = {f"c{number}": [0.0, 1.0, 2.0] for number in range(30)}
    many = CountsProposal(columns, [(name,) for name in columns], 1.0, 1e-3)
    ward = Ward(tmp_path, dict.fromkeys(columns, AGES))
    assert many.mechanism.factor
    assert ward.ask(question=many).error.reason == "ldp:refused:policy"
    ward = Ward(tmp_path, dict.fromkeys(columns, AGES), delta="0.3")
    large = replace(many, delta=0.2)  # times five examples is one
    assert ward.ask(question=large).error.reason == "ldp:refused:policy"
    examples, found = many.decode(payload(ward.ask(question=many)))
    estimated = many.mechanism.estimate(found).reshape(30, 3)
    assert examples == 5
    assert np.abs(estimated.mean(axis=0) - [0, 5, 0]).max() < 5 * many.mechanism.deviation / 5
    assert ward.charged() == ["epsilon 1, delta 0.001"]


@pytest.mark.parametrize(
    "task",
    [
        raises,
        lambda sent, _: Message(RecordDict(), reply_to=sent),
        lambda sent, _: Message(rows_of({"age": AGES}), reply_to=sent),
        lambda sent, _: Message(rows_of({**ROWS, "sex": SEXES[:3]}), reply_to=sent),
    ],
)
def test_an_app_that_fails_as_a_whole_ends_the_counts_of_its_run(
    tmp_path: Path, task: Callable[..., Message], caplog: pytest.LogCaptureFixture
) -> None:
    ward = Ward(tmp_path)
    before = ward.counts()
    ward.counts("m-2", task)
    assert ward.ask("m-3").error.reason == "ldp:refused:budget"
    assert ward.counts() == before  # at no charge
    assert ward.charged() == ["epsilon 1"] * 2


@pytest.mark.usefixtures("silent")
def test_what_leaves_then_is_of_no_row(tmp_path: Path) -> None:
    found = Ward(tmp_path).counts("m-1", raises)
    assert found == pytest.approx([5 / 4] * 4 + [5 / 12] * 12, abs=1 / STEPS)


@pytest.mark.parametrize(
    ("columns", "policy", "text"),
    [
        ({"age": AGES}, {}, "no column ['sex']"),
        ({**ROWS, "sex": SEXES[:3]}, {}, "of one length, got [3, 5]"),
        ({**ROWS, "age": np.zeros((5, 1))}, {}, "no column ['age']"),
        ({**ROWS, "age": np.array(AGES, dtype=np.float32)}, {}, "or a 1-D array of text, integers"),
        ({**ROWS, "age": np.array(["2020-01-01"] * 5, dtype="M8[D]")}, {}, "no column ['age']"),
        (ROWS, {"example": "patient"}, "no column 'patient' says of each row whose it is"),
    ],
)
def test_a_simulation_says_what_is_wrong(
    tmp_path: Path,
    columns: dict[str, Any],
    policy: dict[str, str],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ward = Ward(tmp_path, columns, mode="simulation", **policy)
    assert ward.ask().error.reason == "ldp:failed"
    assert text in caplog.text


def test_a_rehearsal_fails_before_the_charge(tmp_path: Path) -> None:
    ward = Ward(tmp_path)

    def sample(sent: Message, _: Context) -> Message:
        return Message(rows_of({"age": [1.0]}), reply_to=sent)

    refused = ward.ask(rehearsal=Rehearsal(query=sample)).error.reason
    assert refused.startswith("ldp:refused:rehearsal: the reply has no column ['sex']")
    assert ward.charged() == []


def test_replacing_one_patient_moves_no_more_than_the_sensitivity(tmp_path: Path) -> None:
    """Of all patients of up to two rows, through the reply that the gate reads."""
    sheets = list(itertools.product([10.0, 50.0, math.nan], ["F", "?"]))
    patients = [(), *((one,) for one in sheets), *itertools.combinations(sheets, 2)]
    opened: Any = CountsRelease().open(
        RecordDict({PROPOSAL_KEY: ConfigRecord({**QUESTION.to_fields()})})
    )
    told = []
    for rows in patients:
        kept = [(30.0, "M", "a"), *((*row, "b") for row in rows), (61.0, "F", "c")]
        age, sex, whose = (list(one) for one in zip(*kept, strict=True))
        reply = rows_of({"age": age, "sex": sex, "patient": whose})
        placed = replace(opened, example="patient")._rows(reply)
        told.append(QUESTION.mechanism.total(placed))
    moved = np.abs(np.array(told)[:, None] - told).sum(axis=2)
    assert moved.max() == QUESTION.mechanism.sensitivity == 2 * 2 * STEPS


@pytest.mark.parametrize("levels", [100, 113])
def test_blocks_of_intervals_move_as_one_table_more(levels: int) -> None:
    """All pairs of patients of up to two rows, in L1 and L2, and each block is its intervals."""
    asked = CountsProposal({"age": range(levels + 1)}, [("age",)], 1.0, quantiles=["age"])
    (starts,) = asked.blocks.values()
    assert asked.mechanism.cells == (levels + 1, len(starts))
    values = [0.5, 1.5, 8.5, levels - 0.5, math.nan]
    told = []
    for rows in [(), *((one,) for one in values), *itertools.combinations(values, 2)]:
        places = asked.places({"age": list(rows)}, len(rows))
        told.append(asked.mechanism.total((places, np.zeros(len(rows), dtype=np.int64))))
        fine, blocks = np.split(told[-1], [levels + 1])
        np.testing.assert_array_equal(np.add.reduceat(fine, starts), blocks)
    moved = np.abs(np.array(told)[:, None] - told)
    assert moved.sum(axis=2).max() == asked.mechanism.sensitivity == 2 * 2 * STEPS
    assert (moved**2).sum(axis=2).max() == 2 * 2 * STEPS**2


def test_few_intervals_have_no_blocks() -> None:
    few = {"age": range(100)}
    assert not CountsProposal(few, [("age",)], 1.0, quantiles=["age"]).blocks
    many = {"age": range(101)}
    with pytest.raises(ValueError, match="one table"):
        CountsProposal(many, [("age",)], 1.0, unit=Unit.CLIENT, quantiles=["age"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 2}, "version"),
        ({"version": True}, "version"),
        ({"mechanism": "laplace"}, "fields"),
        ({"more": 1}, "fields"),
        ({"epsilon": 1}, "fields"),
        ({"epsilon": 0.0}, "domain"),
        ({"delta": 0.6}, "domain"),
        ({"columns": "{"}, "fields"),
        ({"columns": "[" * 100_000}, "fields"),
        ({"columns": "[]"}, "fields"),
        ({"columns": '{"age": 1, "sex": ["F"]}'}, "fields"),
        ({"columns": '{"age": [1], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [2, 1], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [NaN, 1], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [[], 1], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [0, 1' + "0" * 400 + '], "sex": ["F"]}'}, "domain"),
        ({"columns": '{"age": [0, 1], "sex": ["F", 1]}'}, "domain"),
        ({"columns": '{"age": [0, 1], "sex": ["1", "1.0"]}'}, "domain"),
        ({"columns": '{"age": [0, 1], "sex": ["F", "NaN"]}'}, "domain"),
        ({"columns": '{"age": [0, 1], "sex\\n": ["F"]}'}, "domain"),
        ({"tables": "[]"}, "domain"),
        ({"tables": "[[]]"}, "domain"),
        ({"tables": '["age"]'}, "fields"),
        ({"tables": '[["age", 1]]'}, "fields"),
        ({"tables": '[["age", "age"]]'}, "domain"),
        ({"tables": '[["age"], ["age"]]'}, "domain"),
        ({"tables": '[["age", "sex"], ["sex", "age"]]'}, "domain"),
        ({"tables": '[["weight"]]'}, "domain"),
        ({"quantiles": '"age"'}, "fields"),
        ({"quantiles": "[1]"}, "fields"),
        ({"quantiles": '["weight"]'}, "domain"),
        ({"quantiles": '["sex"]', "tables": '[["sex"]]'}, "domain"),
        ({"quantiles": '["age"]', "tables": '[["age", "sex"]]'}, "domain"),
        ({"unit": "label"}, "domain"),
        ({"unit": "site"}, "domain"),
        ({"unit": 1}, "fields"),
        ({"unit": "client"}, "domain"),
    ],
)
def test_a_malformed_question_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(WireError) as caught:
        CountsProposal.from_fields({**QUESTION.to_fields(), **change})
    assert caught.value.reason == reason


def test_a_question_is_read_as_it_was_written() -> None:
    found = CountsProposal.from_fields(QUESTION.to_fields())
    assert found.to_fields() == QUESTION.to_fields()
    assert found.mechanism == QUESTION.mechanism


class Phone(Ward):
    """A client with one row."""

    def __init__(self, folder: Path, columns: dict[str, Any], mode: str = "deployment") -> None:
        super().__init__(folder, columns)
        (folder / "policy.yaml").write_text(PHONE_POLICY.format(mode=mode))

    def cells(self, *given: Any) -> list[int]:
        examples, found = PHONES.decode(payload(self.ask(*given, question=PHONES)))
        assert examples == 1
        return [int(one) for one in np.flatnonzero(found)]


def test_a_client_with_one_row_reports_a_set(tmp_path: Path) -> None:
    phone = Phone(tmp_path, {"age": [50.0], "sex": ["M"]})
    assert PHONES.sets is not None
    assert PHONES.sets.categories == 12
    for number in range(4):
        cells = phone.cells(f"m-{number}")
        assert len(cells) == PHONES.sets.size
        assert phone.cells(f"m-{number}") == cells
    assert phone.charged() == ["epsilon 2"] * 4
    assert phone.ask("m-9", question=PHONES).error.reason == "ldp:refused:budget"


@pytest.mark.parametrize(("cell", "columns"), [(4, {"age": [50.0], "sex": ["M"]}), (None, ROWS)])
def test_its_set_is_of_its_row_or_of_none(
    tmp_path: Path, cell: int | None, columns: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def randomize(self: SubsetSelection, value: int | None, rng: object) -> int:
        given.append(value)
        return (1 << self.size) - 1

    monkeypatch.setattr(SubsetSelection, "randomize", randomize)
    Phone(tmp_path, columns).cells()
    assert given == [cell]


def test_its_app_may_fail_and_is_asked_again(tmp_path: Path) -> None:
    phone = Phone(tmp_path, {"age": [50.0], "sex": ["M"]})
    assert PHONES.sets is not None
    assert len(phone.cells("m-1", raises)) == len(phone.cells("m-2")) == PHONES.sets.size
    assert phone.charged() == ["epsilon 2"] * 2


def test_a_simulation_says_that_a_client_has_more_rows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    phone = Phone(tmp_path, ROWS, mode="simulation")
    assert phone.ask(question=PHONES).error.reason == "ldp:failed"
    assert "has one row, got 5" in caplog.text


@pytest.mark.parametrize("report", [0, (1 << 62) + 1, (1 << 12) - 1, 1])
def test_what_is_no_set_of_cells_is_refused(report: int) -> None:
    with pytest.raises(WireError) as caught:
        PHONES.decode(report.to_bytes(8, "little"))
    assert caught.value.reason == "domain"

"""Every mechanism has a row, and every layer's table has an entry for it or a reason why not.

The rows join the tables by the names of the mechanisms in events. To add a mechanism is to add a
name and a row; a table that knows what no row names, or a row that names what no table knows, is
found here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from flower_ldp.audit import BUILDERS
from flower_ldp.audit_paths import PATHS
from flower_ldp.cli import audit as command
from flower_ldp.cli import plan
from flower_ldp.cli.config import ANSWERS, check
from flower_ldp.cli.output import Report
from flower_ldp.clients import RELEASES, UpdateRelease
from flower_ldp.clients.release import OpenRelease
from flower_ldp.config import SECTIONS
from flower_ldp.mechanisms import MECHANISMS, JointCounts
from flower_ldp.policy.sections import mechanism_name
from flower_ldp.wire.embedding import EMBEDDINGS
from flower_ldp.wire.evaluation import ROWS as EVALUATED
from flower_ldp.yaml_source import section_names

pytest.importorskip("flwr.supernode.main", reason="this Flower has no such node")

from tests.unit.node.test_node_reports import KINDS as PROPOSALS
from tests.unit.node.test_node_reports import asked

ROOT = Path(__file__).parents[2]
#: Samples that are no configuration of a mechanism.
POLICIES = {"client_policy.yaml", "simulation_policy.yaml"}


class Why(str):
    """The reason why a table has no entry for a mechanism."""


@dataclass(frozen=True)
class Row:
    """Where a mechanism is found in the tables, or why it is not.

    Parameters
    ----------
    proposal : str or Why
        Its name in the field ``mechanism`` of a proposal.
    guard : str or Why
        Type of the messages whose reports the guarded node checks.
    audits : tuple of str or Why
        Names for ``flower-ldp audit``.
    plan : str or Why
        Command of ``flower-ldp plan``.
    sample : str or Why
        File in ``configs/``.
    page : str or Why
        File in ``docs/`` that states what it promises.
    """

    proposal: str | Why
    guard: str | Why
    audits: tuple[str, ...] | Why
    plan: str | Why
    sample: str | Why
    page: str | Why


PART = Why("a part of another proposal, which states its epsilon")
AT_HOME = Why("its result stays with the client, or leaves within what another mechanism releases")
NO_CHOICE = Why("nothing to choose but its epsilon: config check says what it costs")
BY_PLAN = Why("a plan travels in the strategy's own configuration, or stands in the policy")
IN_APP = Why("the node refuses it: no reply shows how it was trained or counted")
BY_RUN = Why("its noise depends on numbers that only a training knows")
SPLIT = Why("the node refuses split learning: it cannot see how the bottom came to be")

TRAINED = {
    "signds": Row(
        "signds",
        "train",
        ("signds", "signds-magrr", "signds-long", "gate"),
        "signds",
        "signds.yaml",
        "signds.md",
    ),
    "magrr": Row(PART, PART, ("magrr", "signds-magrr"), "signds", "signds.yaml", "magrr.md"),
    "codeword": Row(
        "codeword",
        "train",
        ("codeword", "codeword-blocks"),
        "codeword",
        "codeword.yaml",
        "codeword.md",
    ),
    "gaussian": Row(
        "gaussian", "train", ("gaussian",), "gaussian", "dp_encrypt.yaml", "gaussian.md"
    ),
    "health": Row(
        PART,
        PART,
        Why("binary response under another name: audited as binary-response"),
        "signds",
        Why("a field of any encrypt section, health_eps: no sample asks for it by default"),
        "failures.md",
    ),
}
EVALUATIONS = {
    "laplace": Row(
        "laplace", "evaluate", ("laplace",), "laplace", "laplace_eval.yaml", "laplace.md"
    ),
    "codebook_response": Row(
        "codebook",
        "evaluate",
        ("codebook-response",),
        NO_CHOICE,
        Why("its codebook is made by a function of the server's, which no file can hold"),
        "codebook.md",
    ),
    "bounded_mean": Row(
        PART,
        PART,
        ("bounded-mean", "account", "life"),
        NO_CHOICE,
        "laplace_eval.yaml",
        "evaluation.md",
    ),
}
COUNTS = {
    "example_mean": Row(
        Why("the app's release states its price, which no server proposes"),
        IN_APP,
        ("example-mean", "gaussian-means"),
        NO_CHOICE,
        Why("an argument of the app's release: no section asks for it"),
        "dpsgd_release.md",
    ),
}
QUERIES = {
    "counts": Row(
        "counts",
        "query",
        ("joint-counts", "joint-counts-normal"),
        "counts",
        Why("a class of the server's asks for it, and no section"),
        "statistics.md",
    ),
}
LABELS = {
    "kary_response": Row(
        AT_HOME, AT_HOME, ("kary-response", "labels"), "labels", "label_dp.yaml", "label_dp.md"
    ),
    "subset_selection": Row(
        AT_HOME,
        AT_HOME,
        ("subset-selection", "labels"),
        "labels",
        "label_dp.yaml",
        "label_dp.md",
    ),
    "rr_with_prior": Row(
        AT_HOME,
        AT_HOME,
        ("rr-with-prior", "labels"),
        Why("how many labels stay true depends on the prior"),
        "label_dp.yaml",
        "label_dp.md",
    ),
    "rr_on_bins": Row(
        AT_HOME,
        AT_HOME,
        Why("k-ary response on a bin's number, which is audited as kary-response"),
        Why("how much a report tells depends on the prior"),
        Why("its grid and prior are arguments in the app: no section asks for them"),
        "label_dp.md",
    ),
    "label_stages": Row(
        AT_HOME,
        AT_HOME,
        ("labels",),
        Why("the larger of its stages' epsilons: config check says it"),
        "label_dp.yaml",
        "label_dp.md",
    ),
    "central_histograms": Row(
        AT_HOME,
        AT_HOME,
        Why("discrete Laplace noise, as bounded-mean draws it, which is audited"),
        Why("for experiments that compare with central privacy"),
        Why("for experiments that compare with central privacy"),
        "label_dp.md",
    ),
    "dpsgd": Row(BY_PLAN, IN_APP, ("dpsgd-release",), "dpsgd", "dpsgd.yaml", "dpsgd_release.md"),
}
SPLIT_LEARNING = {
    "embedding_dp": Row(
        "embedding_dp",
        SPLIT,
        ("unary-encoding", "unary-one-hot"),
        NO_CHOICE,
        "embedding_dp.yaml",
        "embedding.md",
    ),
    "codebook_embedding": Row(
        "codebook_embedding",
        SPLIT,
        ("codebook-embedding", "account"),
        NO_CHOICE,
        Why("embedding_dp.yaml with another randomizer"),
        "embedding.md",
    ),
    "bottom_training": Row(
        AT_HOME,
        SPLIT,
        Why("a training of the party's own, by the claim that the party makes of it"),
        BY_RUN,
        Why("a party claims it in code, with its bottom"),
        "embedding.md",
    ),
}
OWN = {
    "binary_response": Row(
        Why("no release has it under this name: the bits that leave are magrr and health"),
        Why("no release has it under this name"),
        ("binary-response",),
        NO_CHOICE,
        Why("no release has it under this name"),
        "magrr.md",
    ),
}
TABLE = {**TRAINED, **EVALUATIONS, **COUNTS, **QUERIES, **LABELS, **SPLIT_LEARNING, **OWN}


#: What trains from updates, by name.
TRAINED = {kind.name for kind in UpdateRelease.mechanisms}


@dataclass(frozen=True)
class Tables:
    """What the layers know, by the names that each table has."""

    mechanisms: frozenset[str]
    proposals: frozenset[str]
    guarded: frozenset[tuple[str, str]]
    audits: frozenset[str]
    plans: frozenset[str]
    samples: frozenset[str]

    @classmethod
    def shipped(cls) -> Tables:
        return cls(
            frozenset(MECHANISMS),
            frozenset({*EVALUATED, *EMBEDDINGS, *TRAINED, JointCounts.name}),
            frozenset(
                {
                    *product(["train"], TRAINED),
                    *product(["evaluate"], EVALUATED),
                    ("query", JointCounts.name),
                }
            ),
            frozenset({*BUILDERS, *PATHS}),
            # Advice chooses a mechanism; shuffled bounds what reports of others cost.
            frozenset(str(command.name) for command in plan.app.registered_commands)
            - {"advice", "shuffled"},
            frozenset(path.name for path in (ROOT / "configs").glob("*.yaml")) - POLICIES,
        )


def chosen(found: Iterable[str | Why]) -> set[str]:
    return {one for one in found if not isinstance(one, Why)}


def complaints(rows: dict[str, Row], tables: Tables) -> list[str]:
    """Return where rows and tables do not agree."""
    audits = [row.audits for row in rows.values() if not isinstance(row.audits, Why)]
    pairs = {
        "mechanisms": (set(rows), tables.mechanisms),
        "proposals": (chosen(row.proposal for row in rows.values()), tables.proposals),
        "guarded": (
            {
                (str(row.guard), str(row.proposal))
                for row in rows.values()
                if not isinstance(row.guard, Why)
            },
            tables.guarded,
        ),
        "audits": ({name for names in audits for name in names}, tables.audits),
        "plans": (chosen(row.plan for row in rows.values()), tables.plans),
        "samples": (chosen(row.sample for row in rows.values()), tables.samples),
    }
    return [
        f"{table}: {one} is in {'the row' if one in said else 'the table'} only"
        for table, (said, known) in pairs.items()
        for one in sorted(said ^ set(known), key=str)
    ]


def test_rows_and_tables_agree() -> None:
    assert complaints(TABLE, Tables.shipped()) == []


@pytest.mark.parametrize("name", TABLE)
def test_a_missing_row_is_found(name: str) -> None:
    rows = {other: row for other, row in TABLE.items() if other != name}
    assert f"mechanisms: {name} is in the table only" in complaints(rows, Tables.shipped())


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [
        (replace(Tables.shipped(), **{name: frozenset()}), f"{name}: ")
        for name in ("mechanisms", "proposals", "guarded", "audits", "plans", "samples")
    ],
)
def test_a_table_that_lacks_what_a_row_names_is_found(tables: Tables, complaint: str) -> None:
    found = complaints(TABLE, tables)
    assert found
    assert all(one.startswith(complaint) and one.endswith("the row only") for one in found)


@pytest.mark.parametrize("name", TABLE)
def test_a_policy_knows_the_name_and_what_else_the_thing_is_called(name: str) -> None:
    assert mechanism_name(name) == name
    row = TABLE[name]
    if not isinstance(row.proposal, Why):
        assert row.proposal in (name, *MECHANISMS[name])


@pytest.mark.parametrize("name", TABLE)
def test_the_page_is_there_and_says_what_it_costs(name: str) -> None:
    page = (ROOT / "docs" / TABLE[name].page).read_text(encoding="utf-8")
    assert re.search("epsilon|ε", page)


@pytest.mark.parametrize("sample", sorted(Tables.shipped().samples))
def test_a_sample_loads_and_is_explained(sample: str) -> None:
    path = ROOT / "configs" / sample
    (section,) = [name for name in SECTIONS if name in section_names(path)]
    assert SECTIONS[section](path)
    report = Report(as_json=True)
    check(report, path)
    assert report.facts["kind"] == section
    assert "epsilon" in json.dumps(report.facts, default=str)


def test_every_kind_of_file_is_explained() -> None:
    assert list(ANSWERS) == list(SECTIONS)


def test_the_guard_reads_the_releases_and_no_others() -> None:
    assert set(RELEASES) == {kind.type for kind in PROPOSALS.values()}
    assert set(PROPOSALS) == {*TRAINED, *EVALUATED, JointCounts.name}


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_guard_checks_what_is_released(name: str) -> None:
    kind = PROPOSALS[name]
    opened = RELEASES[kind.type].open(asked(kind).content)
    assert type(opened).check_form is not OpenRelease.check_form
    assert opened.request(asked(kind).metadata).events == opened.events


def test_a_reason_is_a_sentence() -> None:
    for row in TABLE.values():
        for value in vars(row).values():
            assert not isinstance(value, Why) or len(value.split()) >= 4


def test_the_help_of_audit_names_every_audit_and_no_other() -> None:
    said = (command.audit.__doc__ or "").partition("one of")[2].partition("\n\n")[0]
    plain = re.sub(r"\([^)]*\)", "", said)
    assert {one.strip(" .\n") for one in plain.split(",")} == {*BUILDERS, *PATHS}

"""``flower-ldp data``: a look at the owner's own table, offline, before anything is promised.

Its numbers about the owner's data have no noise: they are for the owner's eyes, and nothing may
leave. To notice groups that are cut otherwise the next time, it keeps a code of each row and of its
group (HMAC-SHA256). Without the key, in a file beside, the codes tell nothing.
"""

import csv
import hmac
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from flower_ldp.cli.output import File, Report, command, group, wrong
from flower_ldp.clients.keys import own_key
from flower_ldp.errors import ConfigError, error_text
from flower_ldp.facts import Fact, keyed, shown
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.policy import load_policy
from flower_ldp.safe_files import replacing

_CHECK = "flower-ldp data check ward.csv --group patient --policy client_policy.yaml"
app = group(_CHECK)

#: How many lines of rows without a group are printed.
_SHOWN = 10
_KEY_SUFFIX = ".key"
#: What there is to do where nothing can be compared.
_AFRESH = "delete the file to remember this table afresh"


@dataclass
class Table:
    """Rows and whose they are: group sizes, lines without a group, each distinct row's group."""

    groups: Counter[str] = field(default_factory=Counter)
    without: list[int] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    twice: int = 0


@command(app, "check", _CHECK)
def check(
    report: Report,
    file: File,
    group: str,
    row: str | None = None,
    max_rows: Annotated[int | None, Bounded("[1, 1000]")] = None,
    policy: Path | None = None,
    remember: Path | None = None,
) -> None:
    """Say which rows have no patient, how many patients there are, and how many rows they have.

    What it prints is about private data and has no noise: it is for the owner alone.

    Parameters
    ----------
    file
        A table of rows, CSV with a head.
    group
        Column that says whose a row is.
    row
        Column that tells rows apart; by default all but the group.
    max_rows
        Rows of a patient that count in a step.
    policy
        The policy, whose number of patients is compared.
    remember
        File that remembers the groups, to see if they are cut otherwise.
    """
    table = _table(file, group, row)
    counts = sorted(table.groups.values())
    total = sum(counts) + len(table.without)
    above = None if max_rows is None else sum(count > max_rows for count in counts)
    mean = f", {sum(counts) / len(counts):.3g} on average" if counts else ""
    first = table.without[:_SHOWN]
    report.tell(
        Fact("rows", total, "rows"),
        Fact("without_group", len(table.without)),
        Fact("lines", first),
        Fact("patients", len(counts), "patients"),
        Fact("rows_of_a_patient.least", min(counts, default=0), "rows of a patient, least"),
        Fact("rows_of_a_patient.most", max(counts, default=0), "   most", mean),
        Fact("rows_of_a_patient.above_max_rows", above, f"   patients above {max_rows}"),
    )
    if not total:
        report.problem("the table has no rows")
    if table.without:
        lines = shown(first) + (", ..." if len(table.without) > _SHOWN else "")
        number = f"{len(table.without):,} rows"
        report.problem(f"{number} have no group and count as zero: lines {lines}")
    if table.twice:
        report.warn(f"{table.twice:,} rows are there twice, by what tells rows apart")
    if policy is not None:
        _compare_policy(policy, len(counts), report)
    if remember is not None:
        _remembered(remember, table, report)


def _table(file: Path, group_column: str, row_column: str | None) -> Table:
    table = Table()
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)  # a quote left open would swallow rows
            head = next(reader, [])
            at = _column(head, "--group", group_column)
            name = None if row_column is None else _column(head, "--row", row_column)
            for row in filter(None, reader):
                whose = "".join(row[at : at + 1])
                if not whose.strip():
                    table.without.append(reader.line_num)
                    continue
                others = [*row[:at], *row[at + 1 :]]
                own = json.dumps(others if name is None else row[name : name + 1])
                table.groups[whose] += 1
                table.twice += own in table.rows
                table.rows[own] = whose
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file}: cannot be read: {error_text(error)}") from error
    return table


def _column(head: Sequence[str], option: str, name: str) -> int:
    if name not in head:
        raise wrong(option, f"must be a column of the table, got {name!r}")
    return head.index(name)


def _compare_policy(path: Path, patients: int, report: Report) -> None:
    policy = load_policy(path)
    report.facts["policy"] = {"example": policy.example, "examples": policy.examples}
    if policy.example != "patient":
        report.problem("the policy has no 'example: patient': what is promised is per row")
    if policy.examples != patients:
        stated = "no number" if policy.examples is None else f"{policy.examples:,}"
        report.problem(f"the policy says {stated} of examples, the table has {patients:,} patients")


def _remembered(file: Path, table: Table, report: Report) -> None:
    """Compare groups with those of the last time, and remember these."""
    place = file.with_name(file.name + _KEY_SUFFIX)
    if file.exists() and not place.exists():
        raise ConfigError(f"{file}: its key {place.name} is missing: restore it, or {_AFRESH}")
    try:
        key = own_key(place)
        now = {_code(key, row): _code(key, whose) for row, whose in table.rows.items()}
        if not file.exists():
            report.line(f"Groups are remembered in {file}.")
        elif not _compare(json.loads(file.read_bytes()), now, report):
            return
        with replacing(file, mode=0o600) as stream:
            stream.write(json.dumps(now).encode())
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: cannot be used: {error}") from error


def _compare(before: dict[str, str], now: dict[str, str], report: Report) -> bool:
    """Report changes; return whether the new table may take the place of the old one."""
    known = {(before[row], now[row]) for row in now.keys() & before.keys()}
    compared = len(now.keys() & before.keys())
    counts = (Counter(pair[at] for pair in known).values() for at in (0, 1))
    cut, joined = (sum(number > 1 for number in numbers) for numbers in counts)
    changed = bool(cut or joined)
    report.tell(*keyed("groups", compared=compared, cut=cut, joined=joined, changed=changed))
    if before and not known:
        report.problem(f"no row was there the last time to compare: correct it, or {_AFRESH}")
        return False
    if cut:
        several = "each is protected as several, and pays as one"
        report.problem(f"{cut:,} patients of the last time are several now: {several}")
    if joined:
        report.problem(f"{joined:,} patients have rows that were of several the last time")
    if not changed:
        report.line(f"{compared:,} rows were there the last time, in the same groups.")
    return not changed


def _code(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()[:32]

"""What ``flower-ldp data check`` says about a table of rows and whose they are: for the owner.

It reads the owner's data and prints numbers about it, so it is for the owner's eyes: nothing of it
is noised, and nothing of it may leave.

What it remembers of a table, to see whether groups were cut otherwise the next time, is a code of
each row and of its group (HMAC-SHA256) under a key in a file beside it: without the key the codes
tell nothing.
"""

from __future__ import annotations

import csv
import hmac
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flower_ldp.cli.costs import check_count, wrong
from flower_ldp.cli.output import Report
from flower_ldp.clients.dpsgd.groups import MOST_ROWS
from flower_ldp.clients.own_key import own_key
from flower_ldp.errors import ConfigError
from flower_ldp.files import replacing
from flower_ldp.policy import load_policy
from flower_ldp.yaml_source import error_text

#: How many lines of rows without a group are printed.
_SHOWN = 10
_KEY_SUFFIX = ".key"
#: What there is to do where nothing can be compared.
_AFRESH = "delete the file to remember this table afresh"


@dataclass(frozen=True)
class CheckOptions:
    """What was asked, as the options of ``flower-ldp data check`` say it."""

    file: Path
    group: str
    row: str | None
    max_rows: int | None
    policy: Path | None
    remember: Path | None

    def __post_init__(self) -> None:
        check_count("--max-rows", self.max_rows, MOST_ROWS)


@dataclass
class Table:
    """Rows and whose they are.

    Parameters
    ----------
    groups : dict of str to int
        How many rows each group has.
    without : list of int
        Numbers of the lines of rows without a group.
    rows : dict of str to str
        Of each row that can be told from others, its group.
    """

    groups: Counter[str] = field(default_factory=Counter)
    without: list[int] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    twice: int = 0


def answer(options: CheckOptions, report: Report) -> None:
    """Check all that was asked."""
    table = _table(options)
    counts = sorted(table.groups.values())
    total = sum(counts) + len(table.without)
    many = sum(count > options.max_rows for count in counts) if options.max_rows else 0
    report.facts.update(
        rows=total,
        without_group=len(table.without),
        lines=table.without[:_SHOWN],
        patients=len(counts),
        rows_of_a_patient={
            "least": counts[0] if counts else 0,
            "most": counts[-1] if counts else 0,
            "above_max_rows": many if options.max_rows else None,
        },
    )
    rows = [("rows", f"{total:,}"), ("patients", f"{len(counts):,}")]
    if counts:
        mean = sum(counts) / len(counts)
        span = f"{counts[0]:,} to {counts[-1]:,}, {mean:.3g} on average"
        rows.append(("rows of a patient", span))
    if options.max_rows:
        rows.append((f"   more than {options.max_rows:,}", f"{many:,} patients"))
    report.pairs(rows)
    if not total:
        report.problem("the table has no rows")
    if table.without:
        lines = ", ".join(map(str, table.without[:_SHOWN]))
        more = ", ..." if len(table.without) > _SHOWN else ""
        report.problem(
            f"{len(table.without):,} rows have no group and count as zero: lines {lines}{more}"
        )
    if table.twice:
        report.warn(f"{table.twice:,} rows are there twice, by what tells rows apart")
    _policy(options, len(counts), report)
    _remembered(options, table, report)


def _table(options: CheckOptions) -> Table:
    table = Table()
    for line, group, row in _rows(options):
        if not group.strip():
            table.without.append(line)
            continue
        table.groups[group] += 1
        table.twice += row in table.rows
        table.rows[row] = group
    return table


def _rows(options: CheckOptions) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the group and what tells each row from others."""
    try:
        with options.file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream, strict=True)  # a quote left open would swallow rows
            head = next(reader, [])
            at = _column(head, "--group", options.group)
            name = None if options.row is None else _column(head, "--row", options.row)
            for row in reader:
                if row:
                    others = [*row[:at], *row[at + 1 :]]
                    own = others if name is None else row[name : name + 1]
                    yield reader.line_num, "".join(row[at : at + 1]), json.dumps(own)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        told = error_text(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{options.file}: cannot be read: {told}") from error


def _column(head: Sequence[str], option: str, name: str) -> int:
    if name not in head:
        raise wrong(option, f"must be a column of the table, got {name!r}")
    return head.index(name)


def _policy(options: CheckOptions, patients: int, report: Report) -> None:
    if options.policy is None:
        return
    policy = load_policy(options.policy)
    report.facts["policy"] = {"example": policy.example, "examples": policy.examples}
    if policy.example != "patient":
        report.problem("the policy has no 'example: patient': what is promised is per row")
    if policy.examples != patients:
        stated = "no number" if policy.examples is None else f"{policy.examples:,}"
        report.problem(f"the policy says {stated} of examples, the table has {patients:,} patients")


def _remembered(options: CheckOptions, table: Table, report: Report) -> None:
    """Compare groups with those of the last time, and remember these."""
    if options.remember is None:
        return
    place = options.remember.with_name(options.remember.name + _KEY_SUFFIX)
    if options.remember.exists() and not place.exists():
        raise ConfigError(
            f"{options.remember}: its key {place.name} is missing: restore it, or {_AFRESH}"
        )
    try:
        key = own_key(place)
        now = {_code(key, row): _code(key, group) for row, group in table.rows.items()}
        before, same = _read(options.remember), True
        if before is None:
            report.line(f"Groups are remembered in {options.remember}.")
        else:
            same = _compare(before, now, report)
        if same:
            with replacing(options.remember, mode=0o600) as stream:
                stream.write(json.dumps(now).encode())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{options.remember}: cannot be used: {error}") from error


def _compare(before: dict[str, str], now: dict[str, str], report: Report) -> bool:
    """Say what changed; return whether the new table may take the place of the old one."""
    known = [(before[row], now[row]) for row in now.keys() & before.keys()]
    cut = _several((old, new) for old, new in known)
    joined = _several((new, old) for old, new in known)
    facts = {"compared": len(known), "cut": cut, "joined": joined, "changed": bool(cut or joined)}
    report.facts["groups"] = facts
    if before and not known:
        report.problem(
            f"no row was there the last time, so nothing is compared: correct it, or {_AFRESH}"
        )
        return False
    if cut:
        report.problem(
            f"{cut:,} patients of the last time are several now: each would be protected as one of "
            "several, and pay for none of the others"
        )
    if joined:
        report.problem(f"{joined:,} patients have rows that were of several the last time")
    if not (cut or joined):
        report.line(f"{len(known):,} rows were there the last time, in the same groups.")
    return not (cut or joined)


def _several(pairs: Iterator[tuple[str, str]]) -> int:
    """Return how many of the first are paired with several of the second."""
    found: dict[str, set[str]] = {}
    for one, other in pairs:
        found.setdefault(one, set()).add(other)
    return sum(len(others) > 1 for others in found.values())


def _read(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    found = json.loads(path.read_bytes())
    if not isinstance(found, dict):
        raise ValueError("it holds no groups")
    return {str(row): str(group) for row, group in found.items()}


def _code(key: bytes, text: str) -> str:
    return hmac.digest(key, text.encode(), "sha256").hex()[:32]

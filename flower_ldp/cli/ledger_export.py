"""Where an export goes: to stdout as it comes, or to a file that is complete or not there."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

from flower_ldp.cli.output import wrong
from flower_ldp.files import replacing

#: The fields of a row, in the order of the columns.
COLUMNS = (
    "entry",
    "at",
    "data_id",
    "run_id",
    "message_id",
    "message_type",
    "fingerprint",
    "parameters",
    "sealed",
    "releases",
    "mechanism",
    "unit",
    "epsilon",
    "delta",
    "count",
    "waived",
)

_FORMULA = ("=", "+", "-", "@")

Rows = Iterable[Mapping[str, Any]]


def check_target(target: Path, ledger: Path) -> None:
    """Refuse to write over the ledger, its journal, or what is no regular file.

    Raises
    ------
    typer.BadParameter
        Naming the target.
    """
    real, source = Path(os.path.realpath(target)), Path(os.path.realpath(ledger))
    same = real.exists() and source.exists() and os.path.samefile(real, source)
    if same or real in (source, source.with_name(source.name + "-journal")):
        raise wrong("--output", f"{target} is the ledger itself")
    # /dev/stdout may lead to a regular file, which must not be replaced under the shell either.
    device = Path(os.path.abspath(target)).parts[1:2] in (("dev",), ("proc",))
    if device or (real.exists() and not stat.S_ISREG(real.stat().st_mode)):
        raise wrong("--output", f"{target} is no regular file; without it rows go to stdout")


def to_stdout(rows: Rows, as_csv: bool) -> None:
    """Write rows as they come."""
    _write(rows, as_csv, sys.stdout)
    sys.stdout.flush()


def to_file(rows: Rows, as_csv: bool, target: Path) -> int:
    """Write rows to a file and return their number; replace the file only when all is on disk.

    Raises
    ------
    OSError
        If it cannot be written; the target is then as it was.
    """
    real = Path(os.path.realpath(target))  # a link stays a link
    # What was released is the owner's to show.
    with replacing(real, mode=0o600) as file:
        stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
        count = _write(rows, as_csv, stream)
        stream.detach()
    return count


def _cell(value: object) -> object:
    """Return a field of a CSV file; a spreadsheet would calculate what begins as a formula.

    The server chooses some of the text, as a message's identity.
    """
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value


def _write(rows: Rows, as_csv: bool, stream: TextIO) -> int:
    table = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    if as_csv:
        table.writeheader()
    count = 0
    for row in rows:
        if as_csv:
            table.writerow({name: _cell(value) for name, value in row.items()})
        else:
            stream.write(json.dumps(row) + "\n")
        count += 1
    return count

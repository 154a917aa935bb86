"""``flower-ldp extension``: the digest by which an owner allows a mechanism from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Report, command, group
from flower_ldp.extensions.files import normal, read_distribution

_DIGEST = "flower-ldp extension digest one-bit-ldp"
app = group("Mechanisms from elsewhere: what a policy has to say to allow one.", _DIGEST)


@command(app, "digest", _DIGEST)
def digest(
    report: Report,
    distribution: Annotated[
        str, typer.Argument(metavar="DISTRIBUTION", help="Its name, as pip has it.")
    ],
    site: Annotated[
        Path | None,
        typer.Option(
            "--site",
            metavar="FOLDER",
            help="The site-packages of another installation, in place of this one's.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Print the digest of an installed distribution, and the lines of a policy that allow it.

    It is over the files as they are now; nothing of them is run. Not 0 if no policy could allow it:
    files that its list does not name, links, compiled code, imports that the digest does not cover.
    """
    found = read_distribution(distribution, None if site is None else [str(site)])
    names = sorted(found.entries)
    report.facts.update(distribution=normal(found.name), version=found.version, digest=found.digest)
    report.facts["extensions"] = names
    if not names:
        report.problem(f"{found.name} names no mechanism: no entry point of the group")
    report.line(found.digest)
    for name in names:
        report.line(
            f"\nextensions:\n  {name}:\n    distribution: {normal(found.name)}\n"
            f"    version: '{found.version}'\n    digest: {found.digest}\n"
            "    epsilon: 1.0  # the least that a report is charged: yours to choose"
        )

"""``flower-ldp installed``: a list of components, and whether files are those of a release."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, Report, epilog, reporting

app = typer.Typer(
    help="What is installed: its components, and whether its files are those of a release.",
    epilog=epilog(
        "flower-ldp installed sbom --output flower-ldp.cdx.json", "flower-ldp installed check"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: The distribution of this package.
OWN = "flower-ldp"
_Site = Annotated[
    Path | None,
    typer.Option(
        "--site",
        metavar="FOLDER",
        help="The site-packages of another installation, in place of this one's.",
        exists=True,
        file_okay=False,
    ),
]


@app.command(cls=Command, epilog=epilog("flower-ldp installed sbom --output flower-ldp.cdx.json"))
def sbom(
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to a file, in place of stdout."),
    ] = None,
    timestamp: Annotated[
        bool, typer.Option("--timestamp", help="Say when the list was made.")
    ] = False,
    site: _Site = None,
    as_json: JsonOption = False,
) -> None:
    """Write a list of components in CycloneDX 1.6 (JSON): this package and all that it needs.

    The same installation gives the same bytes, but for --timestamp. What apps need besides is not
    in it. It needs the extra sbom.
    """
    from flower_ldp.files import replacing

    if as_json and output is None:
        raise typer.BadParameter(
            "needs --output: without it the list itself goes to stdout", param_hint="--json"
        )
    with reporting(as_json) as report:
        try:
            from flower_ldp.installed.closure import closure
            from flower_ldp.installed.sbom import sbom as listed
        except ModuleNotFoundError as error:
            report.problem(str(error))
            return
        found = closure(OWN, site)
        for name in found.missing:
            report.warn(f"{name} is asked for and is not installed")
        text = listed(found, datetime.now(UTC) if timestamp else None)
        if output is None:
            sys.stdout.write(text)
            return
        with replacing(output, mode=0o644) as stream:
            stream.write(text.encode())
        report.facts.update(
            output=str(output),
            components=1 + len(found.others),
            extras=list(found.extras),
            missing=list(found.missing),
        )
        extras = ", ".join(found.extras) or "none"
        report.line(f"{output}: {1 + len(found.others)} components, extras: {extras}")


@app.command(cls=Command, epilog=epilog("flower-ldp installed check --wheel FILE"))
def check(
    wheel: Annotated[
        Path | None,
        typer.Option(
            "--wheel",
            metavar="FILE",
            help="The release; else the list that was installed with the files.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    site: _Site = None,
    as_json: JsonOption = False,
) -> None:
    """Compare this package's installed files with a release; not 0 if they differ.

    Check the wheel's SHA-256 first, by another program. A package that was changed may have a
    changed check: judge it from another installation, with --site.
    """
    from flower_ldp.installed.checking import check_installed, digest_of_file
    from flower_ldp.installed.files import contents, find_distribution

    with reporting(as_json) as report:
        one = find_distribution(OWN, site)
        found = check_installed(one, wheel)
        digest = None if wheel is None else digest_of_file(wheel)
        report.facts.update(
            version=one.version,
            contents=contents(one),
            wheel=digest,
            compared=found.compared,
            changed=list(found.changed),
            missing=list(found.missing),
            added=list(found.added),
        )
        if digest is not None:
            report.line(f"wheel       sha256:{digest}")
        report.line(f"contents    sha256:{contents(one)}")
        report.line(f"{OWN} {one.version}: {found.compared} files compared")
        _complain(report, "changed", found.changed)
        _complain(report, "missing", found.missing)
        _complain(report, "of no release", found.added)


def _complain(report: Report, what: str, paths: tuple[str, ...]) -> None:
    for path in paths:
        report.problem(f"{what}: {path}")

"""``flower-ldp app``: what an owner pins of an app, and what differs between two of its bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import Command, JsonOption, epilog, reporting

app = typer.Typer(
    help="Digests of apps and of this environment, for the policy of a guarded node.",
    epilog=epilog("flower-ldp app digest ./my-app", "flower-ldp app environment"),
    no_args_is_help=True,
    rich_markup_mode=None,
)

_App = Annotated[Path, typer.Argument(metavar="APP", help="An app's folder, or its bundle (.fab).")]


@app.command(cls=Command, epilog=epilog("flower-ldp app digest ./my-app"))
def digest(path: _App, as_json: JsonOption = False) -> None:
    """Print the digest of an app's bundle, which a policy lists under apps.

    Of a folder it is the digest of the bundle that this machine's Flower makes of it. Read the app
    first: its bundle is what you vouch for.
    """
    from flower_ldp.apps import bundle_of, read_bundle

    with reporting(as_json) as report:
        bundle = read_bundle(bundle_of(path))
        report.facts.update(
            digest=bundle.digest, app=bundle.app, version=bundle.version, files=dict(bundle.files)
        )
        report.line(bundle.digest)
        report.line(f"{bundle.app} {bundle.version}, {len(bundle.files)} files")


@app.command(cls=Command, epilog=epilog("flower-ldp app compare ./my-app received.fab"))
def compare(first: _App, second: _App, as_json: JsonOption = False) -> None:
    """Say what differs between the bundles of two apps; not 0 if their digests do."""
    from flower_ldp.apps import bundle_of, differences, read_bundle

    with reporting(as_json) as report:
        one, other = (read_bundle(bundle_of(path)) for path in (first, second))
        found = differences(one, other)
        report.facts.update(
            first=one.digest,
            second=other.digest,
            only_first=found["only in the first"],
            only_second=found["only in the second"],
            differing=found["differs"],
        )
        if one.digest == other.digest:
            report.line(f"the same bundle: {one.digest}")
            return
        for what, names in found.items():
            for name in names:
                report.line(f"{what}: {name}")
        if not any(found.values()):
            report.line("the same files, packed otherwise: another release of Flower or of zlib")
        report.problem(f"two digests: {one.digest} and {other.digest}")


@app.command(cls=Command, epilog=epilog("flower-ldp app environment"))
def environment(as_json: JsonOption = False) -> None:
    """Print the digest of this interpreter and of what is installed for it.

    Run it by the interpreter that starts the guarded node. It does not show what was changed after
    an installation, nor what is not Python.
    """
    from flower_ldp.apps import this_environment

    with reporting(as_json) as report:
        found = this_environment()
        report.facts.update(
            digest=found.digest,
            python=found.python,
            installed=[list(row) for row in found.installed],
        )
        report.line(found.digest)
        report.line(f"{found.python.splitlines()[0]}: {len(found.installed)} distributions")

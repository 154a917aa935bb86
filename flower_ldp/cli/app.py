"""``flower-ldp app``: what an owner pins of an app, and what differs between two of its bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.apps import bundle_of, differences, read_bundle, this_environment
from flower_ldp.cli.output import Report, command, group

app = group(
    "Digests of apps and of this environment, for the policy of a guarded node.",
    *("flower-ldp app digest ./my-app", "flower-ldp app environment"),
)

_App = Annotated[Path, typer.Argument(metavar="APP", help="An app's folder, or its bundle (.fab).")]


@command(app, "digest", "flower-ldp app digest ./my-app")
def digest(report: Report, path: _App) -> None:
    """Print the digest of an app's bundle, which a policy lists under apps.

    Of a folder it is the digest of the bundle that this machine's Flower makes of it. Read the app
    first: its bundle is what you vouch for.
    """
    bundle = read_bundle(bundle_of(path))
    report.facts.update(
        digest=bundle.digest, app=bundle.app, version=bundle.version, files=dict(bundle.files)
    )
    report.line(bundle.digest)
    report.line(f"{bundle.app} {bundle.version}, {len(bundle.files)} files")


@command(app, "compare", "flower-ldp app compare ./my-app received.fab")
def compare(report: Report, first: _App, second: _App) -> None:
    """Say what differs between the bundles of two apps; not 0 if their digests do."""
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


@command(app, "environment", "flower-ldp app environment")
def environment(report: Report) -> None:
    """Print the digest of this interpreter and of what is installed for it.

    Run it by the interpreter that starts the guarded node. It does not show what was changed after
    an installation, nor what is not Python.
    """
    found = this_environment()
    report.facts.update(
        digest=found.digest, python=found.python, installed=[list(row) for row in found.installed]
    )
    report.line(found.digest)
    report.line(f"{found.python.splitlines()[0]}: {len(found.installed)} distributions")

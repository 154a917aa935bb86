"""``flower-ldp new``, ``app`` and ``extension``: an app to start from, and digests for policies.

``new`` fills this package's templates, which end in ``.txt``: a name between two ``@`` is replaced.
"""

import re
import shlex
import shutil
import tomllib
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from flower_ldp.app_digests import bundle_of, differences, read_bundle, this_environment
from flower_ldp.cli.output import Report, command, group, single
from flower_ldp.errors import ConfigError
from flower_ldp.extensions.loading import normal, read_distribution
from flower_ldp.facts import Fact
from flower_ldp.mechanisms import name_complaint

_HERE = Path(__file__).parent
#: As Flower has it for apps and their folders.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PUBLISHER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PLACE = re.compile(r"@([A-Z]+)@")
_POLICY = "simulation_policy.yaml"
_EXTENSION = "flower-ldp extension digest one-bit-ldp"

app = group("flower-ldp app digest ./my-app", "flower-ldp app environment")
extension = group(_EXTENSION)
new = single()
App: TypeAlias = Annotated[Path, typer.Argument(metavar="APP")]


@command(app, "digest", "flower-ldp app digest ./my-app")
def digest(report: Report, path: App) -> None:
    """Print the digest of an app's bundle, which a policy lists under apps.

    Of a folder it is the digest of the bundle that this machine's Flower makes of it. Read the app
    first: its bundle is what you vouch for.

    Parameters
    ----------
    path
        An app's folder, or its bundle (.fab).
    """
    bundle = read_bundle(bundle_of(path))
    report.facts.update(vars(bundle), files=dict(bundle.files))
    report.line(f"{bundle.digest}\n{bundle.app} {bundle.version}, {len(bundle.files)} files")


@command(app, "compare", "flower-ldp app compare ./my-app received.fab")
def compare(report: Report, first: App, second: App) -> None:
    """Say what differs between the bundles of two apps; not 0 if their digests do.

    Parameters
    ----------
    first
        An app's folder, or its bundle (.fab).
    second
        Another one's.
    """
    one, other = (read_bundle(bundle_of(path)) for path in (first, second))
    found = differences(one, other)
    report.tell(
        Fact("first", one.digest, "the first"),
        Fact("second", other.digest, "the second"),
        Fact("only_first", found["only in the first"], "only in the first"),
        Fact("only_second", found["only in the second"], "only in the second"),
        Fact("differing", found["differs"], "differs"),
    )
    if one.digest == other.digest:
        report.line("the same bundle")
        return
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
    report.facts.update(vars(found), digest=found.digest)
    told = f"{found.python.splitlines()[0]}: {len(found.installed)} distributions"
    report.line(f"{found.digest}\n{told}")


@command(extension, "digest", _EXTENSION)
def extension_digest(
    report: Report,
    distribution: Annotated[str, typer.Argument()],
    site: Annotated[Path | None, typer.Option(exists=True, file_okay=False)] = None,
) -> None:
    """Print the digest of an installed distribution, and the lines of a policy that allow it.

    It is over the files as they are now; nothing of them is run. Not 0 if no policy could allow it:
    files that its list does not name, links, compiled code, imports that the digest does not cover.

    Parameters
    ----------
    distribution
        Its name, as pip has it.
    site
        The site-packages of another installation.
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


#: What of the clients' data is protected, and by what; a mechanism is no app.
Kind: TypeAlias = Literal[
    "codeword", "signds", "gaussian", "evaluation", "labels", "split", "release", "mechanism"
]
#: Nodes of each kind's simulations, and classes and features of its made-up data. SignDS chooses
#: among the largest changes: fewer than fifty of them are few.
_SIZES: dict[Kind, tuple[str, str]] = {
    "codeword": ("100", "3, 8"),
    "signds": ("100", "8, 25"),
    "gaussian": ("100", "3, 8"),
    "evaluation": ("1000", "3, 8"),
    "labels": ("10", "3, 8"),
    "split": ("2", ""),
    "release": ("5", ""),
    "mechanism": ("", ""),
}


@command(new, "new", "flower-ldp new my-app --kind labels")
def write_app(
    report: Report, folder: App, kind: Kind = "codeword", publisher: str = "your-name"
) -> None:
    """Write an app that trains on made-up data, with a policy for simulations.

    It runs in flower-ldp simulate, in flwr run and, with data of your own, on your machines,
    unchanged. No file is replaced: the folder must not be there yet.

    Parameters
    ----------
    folder
        The app's folder, whose name is the app's.
    kind
        codeword: each client is asked once. signds, gaussian: a private report in every round.
        evaluation: clients train or are evaluated, once. labels: only labels are protected. split:
        parties with other features of the same records; needs torch. release: an app that asks for
        counts, by a release of your own with its tests. mechanism: no app, but a distribution with
        a mechanism of your own, and its tests.
    publisher
        Who publishes the app, as Flower's pyproject.toml has it.
    """
    found = texts(folder.absolute().name, kind, publisher)
    folder.mkdir(parents=True)
    try:
        for name, text in found.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except BaseException:
        # The next try would be refused by what is there of this one.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    start = f"cd {shlex.quote(str(folder))} && python -m pytest"
    if kind != "mechanism":
        words = ["flower-ldp", "simulate", str(folder), "--nodes", _SIZES[kind][0]]
        start = shlex.join([*words, "--policy", str(folder / _POLICY)])
    report.facts.update(folder=str(folder), kind=kind, files=sorted(found), start=start)
    report.line(f"{folder}: {len(found)} files. Run it:\n  {start}")


def texts(name: str, kind: Kind, publisher: str) -> dict[str, str]:
    """Return all files of an app or a mechanism's distribution, by their paths.

    Raises
    ------
    ConfigError
        If a name is not allowed, or would hide an installed module.
    """
    if not _NAME.fullmatch(name):
        letters = "a letter, then letters, digits and hyphens, 32 at most"
        raise ConfigError(f"{name!r} is no name of an app: {letters}")
    package = name.replace("-", "_").lower()
    if kind == "mechanism" and (complaint := name_complaint(package)):
        raise ConfigError(complaint)
    if not package.isidentifier() or iskeyword(package) or find_spec(package) is not None:
        raise ConfigError(f"an app named {name} would hide the module {package}: choose another")
    if not _PUBLISHER.fullmatch(publisher):
        raise ConfigError(f"{publisher!r} is no publisher: letters, digits, '-', '_' and '.'")
    # Those of this kind alone at last.
    own = [kind] if kind == "mechanism" else ["app", kind]
    found = {
        template.relative_to(folder).as_posix().removesuffix(".txt"): template.read_text("utf-8")
        for folder in (_HERE / "templates" / part for part in ("any", *own))
        for template in sorted(folder.rglob("*.txt"))
    }
    nodes, shape = _SIZES[kind]
    places = {"NAME": name, "PACKAGE": package, "PUBLISHER": publisher, "NODES": nodes}

    def filled(text: str) -> str:
        return _PLACE.sub(lambda at: places[at[1]], text)

    project = tomllib.loads(filled(found["pyproject.toml"]))["project"]
    places |= {"SHAPE": shape, "DESCRIPTION": project["description"]}
    found = {path.replace("PACKAGE", package): filled(text) for path, text in found.items()}
    if kind != "mechanism":
        found.setdefault(_POLICY, (_HERE / "samples" / _POLICY).read_text(encoding="utf-8"))
    return found

"""What ``flower-ldp new`` writes: templates of the package with an app's names put in.

The templates end in ``.txt``, since they are no modules of this package. What stands between two
``@`` is replaced.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from flower_ldp.cli.new_mechanism import places_of, templates_of
from flower_ldp.errors import ConfigError

#: The kind that is no app.
MECHANISM = "mechanism"
#: As Flower has it for apps and their folders.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,31}")
_PUBLISHER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PLACE = re.compile(r"@([A-Z]+)@")

_OF_PARTITION = (
    "On your own machines each node has a file of its own: give `flower-supernode` "
    "`--node-config 'data=\"/srv/site.npz\"'`\nand name its policy by `FLOWER_LDP_POLICY`."
)
_OF_PARTY = (
    "On your own machines each node is a party: give `flower-supernode` "
    '`--node-config \'party="left" party-folder="/var/lib/party"\'`\n'
    "and name its policy by `FLOWER_LDP_POLICY`, as for the server, which holds the labels."
)


@dataclass(frozen=True)
class _Start:
    """What differs between the kinds, besides their modules."""

    description: str
    nodes: int
    requirement: str
    task: str
    config: str
    deployment: str = _OF_PARTITION
    shape: str = "3, 8"


_KINDS: Mapping[str, _Start] = {
    "codeword": _Start(
        "A Flower app that asks each client once, at a total epsilon of 8",
        100,
        "flower-ldp>=0.2",
        "task.py.txt",
        "num-server-rounds = 10\n"
        "epsilon = 8.0        # of a report, and so of the run: each client is asked once\n"
        "length = 3.0         # of the first step; noise has no say in it\n"
        "local-steps = 5\nlearning-rate = 0.5",
    ),
    "signds": _Start(
        "A Flower app whose clients report a few indices and a random sign",
        100,
        "flower-ldp>=0.2",
        "task.py.txt",
        "num-server-rounds = 5\n"
        "epsilon = 4.0        # of a report: a client that answers n rounds spends n times that\n"
        "top-fraction = 0.25  # of the weights: those that change the most\n"
        "step = 0.02          # of a weight, for each report that names it\n"
        "fraction-train = 1.0\n"
        "local-steps = 5\nlearning-rate = 0.5",
        # SignDS chooses among the largest changes: fewer than fifty of them are few.
        shape="8, 25",
    ),
    "labels": _Start(
        "A Flower app whose clients randomize their labels once, at epsilon 1",
        10,
        "flower-ldp>=0.2",
        "task.py.txt",
        "num-server-rounds = 5\n"
        "epsilon = 1.0        # of a label, once; the clients' policy must allow it\n"
        "local-steps = 2\nlearning-rate = 0.2",
    ),
    "split": _Start(
        "A Flower app of two parties with other features of the same records",
        2,
        "flower-ldp[torch]>=0.2",
        "split/task.py.txt",
        "epsilon = 4.0          # of a record's code, at each party, once\n"
        "label-epsilon = 4.0    # of a label, in all runs; another value is another draw\n"
        'party-folder = "outputs/parties"   # where parties keep their bottoms in a simulation',
        _OF_PARTY,
    ),
}


def write(folder: Path, kind: str, publisher: str) -> list[str]:
    """Write an app, and return its files' paths within the folder.

    Parameters
    ----------
    folder : Path
        Not there yet; its name is the app's.
    kind : str
        A key of the table above, or ``"mechanism"``.
    publisher : str
        For the app's pyproject.toml.

    Raises
    ------
    ConfigError
        If a name is none that Flower takes, or the app would hide a module that is installed.
    FileExistsError
        If the folder is there.
    """
    found = _texts(_named(folder), kind, publisher)
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
    return sorted(found)


def start_of(folder: Path, kind: str) -> str:
    """Return the command that runs an app, or a mechanism's tests."""
    if kind == MECHANISM:
        return f"cd {shlex.quote(str(folder))} && python -m pytest"
    policy = folder / "simulation_policy.yaml"
    words = ["flower-ldp", "simulate", str(folder), "--nodes", str(_KINDS[kind].nodes)]
    return shlex.join([*words, "--policy", str(policy)])


def _named(folder: Path) -> str:
    """Return the app's name."""
    name = folder.absolute().name
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of an app: a letter, then letters, digits and hyphens, 32 at most"
        )
    module = _package(name)
    if not module.isidentifier() or iskeyword(module) or find_spec(module) is not None:
        raise ConfigError(f"an app named {name} would hide the module {module}: choose another")
    return name


def _package(name: str) -> str:
    return name.replace("-", "_").lower()


def _texts(name: str, kind: str, publisher: str) -> dict[str, str]:
    """Return all files of an app, by their paths."""
    if not _PUBLISHER.fullmatch(publisher):
        raise ConfigError(f"{publisher!r} is no publisher: letters, digits, '-', '_' and '.'")
    package = _package(name)
    if kind == MECHANISM:
        return _mechanism_texts(name, package, publisher)
    start = _KINDS[kind]
    places = {
        "NAME": name,
        "PACKAGE": package,
        "PUBLISHER": publisher,
        "DESCRIPTION": start.description,
        "REQUIREMENT": start.requirement,
        "CONFIG": start.config,
        "SHAPE": start.shape,
        "NODES": str(start.nodes),
        "DEPLOYMENT": start.deployment,
    }

    def filled(template: str) -> str:
        return _filled(template, places)

    policy = files("flower_ldp.cli").joinpath("samples", "simulation_policy.yaml")
    return {
        "pyproject.toml": filled("pyproject.toml.txt"),
        "README.md": filled("README.md.txt"),
        ".gitignore": filled("gitignore.txt"),
        "simulation_policy.yaml": policy.read_text(encoding="utf-8"),
        f"{package}/__init__.py": f'"""{start.description}."""\n',
        f"{package}/task.py": filled(start.task),
        f"{package}/client_app.py": filled(f"{kind}/client_app.py.txt"),
        f"{package}/server_app.py": filled(f"{kind}/server_app.py.txt"),
    }


def _mechanism_texts(name: str, package: str, publisher: str) -> dict[str, str]:
    """Return all files of a mechanism's distribution, by their paths."""
    places = places_of(name, package, publisher)
    found = {path: _filled(text, places) for path, text in templates_of(package).items()}
    return {**found, f"{package}/__init__.py": f'"""{places["DESCRIPTION"]}."""\n'}


def _filled(template: str, places: Mapping[str, str]) -> str:
    """Return a template's text with what belongs in its places."""
    text = files("flower_ldp.cli").joinpath("templates", *template.split("/"))
    return _PLACE.sub(lambda at: places[at[1]], text.read_text(encoding="utf-8"))

"""``flower-ldp doctor``: what is here, what is missing for what, and whether it can be used.

Distributions that may be missing are imported where they are used, so the other checks still run.
"""

import os
import platform
import shutil
import sqlite3
import sys
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from flower_ldp import __version__
from flower_ldp.cli.output import Report, command, single
from flower_ldp.facts import Fact

app = single()
_PACKAGE = Path(__file__).parents[1]
#: The extras that a user chooses by what they are for, in the order of pyproject.toml: the modules
#: that must be there, and what does not work without them.
EXTRAS = {
    "torch": (("torch",), "split learning, losses for randomized labels"),
    "simulation": (("ray",), "simulated nodes of flwr run (flower-ldp simulate needs none)"),
    "plots": (("matplotlib",), "plots of the examples"),
    "accounting": (("scipy",), "flower-ldp audit"),
    "dpsgd": (("torch", "scipy"), "DP-SGD, flower-ldp plan dpsgd"),
    "adapters": (("torch", "scipy", "peft"), "adapters of a large model by DP-SGD"),
    "evaluation": (("sklearn",), "scores of clusters, images of the examples"),
    "shuffle": (
        ("cryptography.hazmat.primitives.hpke", "starlette", "uvicorn"),
        "shuffled reports, the analyzer",
    ),
}


@command(app, "doctor", "flower-ldp doctor", "flower-ldp doctor --policy client_policy.yaml --json")
def doctor(report: Report, policy: Path | None = None) -> None:
    """Say what is installed, what is missing for what, and if policy and ledger can be used.

    Run it as the user, and in the environment, of the client. Nothing is changed, but what a crash
    left half written in the ledger is undone. What is missing for a part that is not used is no
    error.

    Parameters
    ----------
    policy
        The clients' policy, in place of the variable FLOWER_LDP_POLICY.
    """
    report.tell(
        Fact("version", __version__, "flower-ldp"),
        Fact("package", str(_PACKAGE), "   in"),
        Fact("python", platform.python_version(), "Python", f", {sys.executable}"),
        Fact("system", f"{platform.system()} {platform.machine()}", "system"),
        Fact("sqlite", sqlite3.sqlite_version, "SQLite"),
    )
    _installed(report)
    _system(report)
    _owner(policy, report)


def _version_of(name: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(name)
    return None


def versions_of(wanted: Requirement) -> str:
    """Return a requirement's bounds, the lower one first."""
    return ",".join(sorted(map(str, wanted.specifier), reverse=True))


def admits(wanted: Requirement, version: str) -> bool:
    """Return whether a version is within the bounds; of ``1.32.0rc1`` the numbers count."""
    try:
        return wanted.specifier.contains(Version(version).base_version)
    except InvalidVersion:
        return not wanted.specifier


def requirements(extra: str = "") -> list[Requirement]:
    """Return the requirements of the package, or of an extra.

    Raises
    ------
    PackageNotFoundError
        If the package is not installed but found as a folder.
    """
    return [
        one
        for one in map(Requirement, metadata.requires("flower-ldp") or [])
        if (one.marker is None or one.marker.evaluate({"extra": extra}))
        and bool(extra) == ("extra" in str(one.marker))
    ]


def _unfit(wanted: Requirement) -> str:
    found = _version_of(wanted.name)
    fits = found is None or admits(wanted, found)
    return "" if fits else f"{wanted.name} {found} is not {versions_of(wanted)}"


def _installed(report: Report) -> None:
    """Say of each requirement, of extras too, whether its version fits."""
    try:
        wanted = {name: requirements(name) for name in ("", *EXTRAS)}
    except metadata.PackageNotFoundError:
        report.warn("flower-ldp is not installed but found as a folder: versions are not checked")
        wanted = {}
    needed = []
    for one in wanted.get("", ()):
        found, bounds = _version_of(one.name), versions_of(one)
        needed.append({"name": one.name, "found": found, "needed": bounds})
        wrong = f"{one.name} is missing" if found is None else _unfit(one)
        if wrong:
            report.problem(f"{wrong}: pip install '{one.name}{bounds}'")
    report.table("installed", "What the package needs", needed)
    if not wanted:
        report.facts["installed"] = None
    report.table(
        "extras",
        "Extras: pip install 'flower-ldp[NAME]'",
        [
            {
                "name": name,
                "missing": [module for module in modules if find_spec(module) is None],
                "unfit": [text for one in wanted.get(name, ()) if (text := _unfit(one))],
                "use": use,
            }
            for name, (modules, use) in EXTRAS.items()
        ],
    )


def _system(report: Report) -> None:
    """Say what runs an app here, a guarded node, and whether random bytes come without waiting."""
    from flower_ldp.node import FlowerChanged, NoLinux, check_here

    why, sandbox, seeded = "", shutil.which("bwrap"), True
    try:
        check_here()
    except (metadata.PackageNotFoundError, FlowerChanged, NoLinux) as error:
        why = str(error)
    if sys.platform == "linux":
        try:
            os.getrandom(32, os.GRND_NONBLOCK)
        except BlockingIOError:
            seeded = False
            report.problem("the system's generator is not seeded yet: a client waits until it is")
    ray, command = _version_of("ray"), shutil.which("flwr")
    no_flwr = "not on the PATH; flower-ldp simulate needs none"
    no_ray = "missing: flwr run simulates no nodes without it; flower-ldp simulate does"
    no_sandbox = "missing: --sandbox needs it (apt install bubblewrap)"
    known = "this system and this Flower are known"
    report.tell(
        Fact("engine.flwr", command, "command flwr", text=command or no_flwr),
        Fact("engine.ray", ray, "Ray", text=ray or no_ray),
        Fact("guarded_node.usable", not why, "guarded node", text=why or known),
        Fact("guarded_node.reason", why),
        Fact("guarded_node.bubblewrap", sandbox, "   bubblewrap", text=sandbox or no_sandbox),
        Fact("entropy", seeded, "random bytes without waiting"),
    )


def _owner(policy: Path | None, report: Report) -> None:
    """Look at policy and ledger as a client that is started like this would find them."""
    report.facts.update(policy=None, ledger=None)
    try:
        from flower_ldp.cli.policy import ledger_of
        from flower_ldp.policy.files import ENVIRONMENT_VARIABLE, load_own_policy, policy_path
    except ModuleNotFoundError as error:
        report.problem(f"neither policy nor ledger can be read: {error}")
        return
    path = policy_path({}) if policy is None else policy
    if path is None:
        report.line(f"Policy: none is named, by {ENVIRONMENT_VARIABLE} or a node's ldp-policy.")
        report.line("Nothing leaves a client but a refusal.")
        return
    held, doubts = load_own_policy(path)
    report.warn(*doubts)
    report.facts["policy"] = {"file": str(path), "data_id": held.data_id, "mode": held.mode}
    report.line(f"Policy: {path}, for {held.data_id}, mode {held.mode}.")
    ledger_of(held, report)

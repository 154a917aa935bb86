"""What ``flower-ldp doctor`` finds: versions, extras, guarded node, policy, ledger, entropy.

What needs a distribution that may be missing is imported where it is used, so that the rest is told
all the same.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flower_ldp import __version__
from flower_ldp.cli.output import Report
from flower_ldp.cli.requirements import Requirement, of_extra, requirements
from flower_ldp.errors import LdpError

_DISTRIBUTION = "flower-ldp"
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Extra:
    """What an extra of the package brings.

    Parameters
    ----------
    name : str
        As in ``pip install 'flower-ldp[name]'``.
    modules : tuple of str
        That must be there.
    use : str
        What does not work without it.
    """

    name: str
    modules: tuple[str, ...]
    use: str

    def missing(self) -> list[str]:
        """Return the modules that are not there; none is imported."""
        return [name for name in self.modules if find_spec(name) is None]


#: The extras that a user chooses by what they are for, in the order of pyproject.toml.
EXTRAS = (
    Extra("torch", ("torch",), "split learning, losses for randomized labels"),
    Extra("simulation", ("ray",), "simulated nodes of flwr run (flower-ldp simulate needs none)"),
    Extra("plots", ("matplotlib",), "plots of the examples"),
    Extra("accounting", ("dp_accounting", "scipy"), "totals with a delta, flower-ldp audit"),
    Extra("dpsgd", ("torch", "dp_accounting", "scipy"), "DP-SGD, flower-ldp plan dpsgd"),
    Extra("evaluation", ("sklearn",), "scores of clusters, images of the examples"),
)


def answer(policy: Path | None, report: Report) -> None:
    """Look at everything that a run depends on; state what is wrong, and go on."""
    _versions(report)
    _extras(report)
    _engine(report)
    _node(report)
    _owner(policy, report)
    _entropy(report)


def _versions(report: Report) -> None:
    report.facts.update(
        version=__version__,
        package=str(_PACKAGE),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        sqlite=sqlite3.sqlite_version,
    )
    report.pairs(
        [
            ("flower-ldp", f"{__version__}, {_PACKAGE}"),
            ("Python", f"{platform.python_version()}, {sys.executable}"),
            (
                "system",
                f"{platform.system()} {platform.machine()}, SQLite {sqlite3.sqlite_version}",
            ),
        ]
    )
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        report.warn("flower-ldp is not installed but found as a folder: versions are not checked")
        report.facts["installed"] = None
        return
    rows: list[dict[str, Any]] = []
    for wanted in requirements(lines):
        found = _version_of(wanted.name)
        rows.append({"name": wanted.name, "found": found, "needed": wanted.versions})
        _judge(wanted, found, report)
    report.facts["installed"] = rows
    report.table(
        "What the package needs",
        ("distribution", "found", "needed"),
        [(row["name"], row["found"] or "missing", row["needed"]) for row in rows],
    )


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _judge(wanted: Requirement, found: str | None, report: Report) -> None:
    if found is None:
        report.problem(f"{wanted.name} is missing: pip install '{wanted}'")
    elif not wanted.admits(found):
        report.problem(f"{wanted.name} {found} is not {wanted.versions}: pip install '{wanted}'")


def _extras(report: Report) -> None:
    rows = [
        {"name": one.name, "missing": one.missing(), "unfit": _unfit(one.name), "use": one.use}
        for one in EXTRAS
    ]
    report.facts["extras"] = rows
    report.table(
        "Extras: pip install 'flower-ldp[NAME]'",
        ("extra", "missing or unfit", "what it is for"),
        [
            (str(row["name"]), ", ".join([*row["missing"], *row["unfit"]]) or "-", str(row["use"]))
            for row in rows
        ],
    )


def _unfit(extra: str) -> list[str]:
    """Return what is installed in a version that an extra does not ask for."""
    try:
        lines = metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    found = [(wanted, _version_of(wanted.name)) for wanted in of_extra(extra, lines)]
    return [
        f"{wanted.name} {version} is not {wanted.versions}"
        for wanted, version in found
        if version is not None and not wanted.admits(version)
    ]


def _engine(report: Report) -> None:
    """Say what runs an app here: this package always, Flower's engine with Ray alone."""
    ray, command = _version_of("ray"), shutil.which("flwr")
    report.facts["engine"] = {"ray": ray, "flwr": command}
    if command is None:
        report.line("Engine: the command flwr is not on the PATH; flower-ldp simulate needs none.")
    elif ray is None:
        report.line("Engine: flwr run simulates no nodes without Ray; flower-ldp simulate does.")
    else:
        report.line(
            f"Engine: flwr run simulates nodes with Ray {ray}, flower-ldp simulate without."
        )


def _node(report: Report) -> None:
    """Say whether a guarded node could run here; not to be able to is no error."""
    from flower_ldp.node.here import FlowerChanged, NoLinux, check_here

    why, sandbox = "", shutil.which("bwrap")
    try:
        check_here()
    except metadata.PackageNotFoundError:
        why = "flwr is missing"
    except (FlowerChanged, NoLinux) as error:
        why = str(error)
    report.facts["guarded_node"] = {"usable": not why, "reason": why, "bubblewrap": sandbox}
    report.line(f"Guarded node: {why or 'this system and this Flower are known'}.")
    if not why and sandbox is None:
        report.line("Its --sandbox needs bubblewrap, which is missing (apt install bubblewrap).")


def _owner(policy: Path | None, report: Report) -> None:
    """Look at policy and ledger as a client that is started like this would find them."""
    report.facts.update(policy=None, ledger=None)
    try:
        from flower_ldp.cli.policy_answers import ledger_of
        from flower_ldp.policy import load_own_policy
        from flower_ldp.policy.files import ENVIRONMENT_VARIABLE, policy_path
    except ModuleNotFoundError as error:
        report.problem(f"neither policy nor ledger can be read: {error}")
        return
    try:
        path = policy_path({}) if policy is None else policy
        if path is None:
            report.line(
                f"Policy: none is named (by {ENVIRONMENT_VARIABLE}, or ldp-policy in a node's "
                "configuration): nothing leaves a client but a refusal."
            )
            return
        held, doubts = load_own_policy(path)
    except LdpError as error:
        report.problem(str(error))
        return
    for doubt in doubts:
        report.warn(doubt)
    report.facts["policy"] = {"file": str(path), "data_id": held.data_id, "mode": held.mode}
    report.line(f"Policy: {path}, for {held.data_id}, mode {held.mode}.")
    ledger_of(held, report)


def _entropy(report: Report) -> None:
    """Ask the system for random bytes, without waiting for its generator to be seeded."""
    seeded = True
    if sys.platform == "linux":
        try:
            os.getrandom(32, os.GRND_NONBLOCK)
        except BlockingIOError:
            seeded = False
    report.facts["entropy"] = seeded
    if seeded:
        report.line("Entropy: the system's generator is seeded.")
    else:
        report.problem("the system's generator is not seeded yet: a client waits until it is")

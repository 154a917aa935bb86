"""What ``flower-ldp simulate`` does: read the settings, run the app, say what came of it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from flower_ldp.cli.output import Report
from flower_ldp.errors import ConfigError, LdpError
from flower_ldp.policy import load_policy
from flower_ldp.policy.files import ENVIRONMENT_VARIABLE, no_environment
from flower_ldp.refusals import HINTS
from flower_ldp.simulation import (
    Faults,
    Federation,
    find_federation,
    load_folder,
    read_settings,
    run_in_process,
)
from flower_ldp.simulation.contexts import Keeping
from flower_ldp.strategies import RunStopped

Settings = Mapping[str, bool | float | int | str]


@dataclass(frozen=True)
class Asked:
    """The command's arguments; see its help."""

    folder: Path
    connection: str | None
    nodes: int | None
    run_config: tuple[str, ...]
    federation_config: tuple[str, ...]
    node_config: tuple[str, ...]
    policy: Path | None
    workers: int
    strict: bool
    contexts: Keeping
    faults: tuple[str, ...]


def run(asked: Asked, report: Report, *, as_json: bool) -> None:
    """Run the app that was asked for.

    Raises
    ------
    ConfigError
        If the folder, a setting or the policy cannot be used.
    """
    federation = _federation(asked, report)
    settings = read_settings(asked.run_config)
    own, faults = _node_config(asked.node_config), _faults(asked.faults)
    with _obeying(asked.policy, report), _printing_to_stderr(as_json), _logging(federation):
        try:
            app = load_folder(asked.folder, settings)
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            return _failed("the app cannot be loaded", error, report)
        report.facts.update(
            app=str(asked.folder),
            nodes=federation.nodes,
            nodes_from=federation.source,
            run_config=dict(app.run_config),
            strict=asked.strict,
            workers=asked.workers,
        )
        begun = time.monotonic()
        outcomes: Counter[str] = Counter()
        with _ending(report):
            run_in_process(
                app.server,
                app.client,
                federation.nodes,
                run_config=app.run_config,
                node_config=own,
                strict=asked.strict,
                contexts=asked.contexts,
                workers=asked.workers,
                faults=faults,
                outcomes=outcomes,
            )
            if outcomes and not outcomes[""]:
                codes = [code for code, _ in outcomes.most_common()]
                counts = ", ".join(f"{code} {outcomes[code]:,} times" for code in codes)
                hints = (f". {HINTS[code]}" for code in codes if code in HINTS)
                report.problem(f"every reply was a refusal: {counts}{''.join(hints)}")
        seconds = time.monotonic() - begun
    report.facts["seconds"] = round(seconds, 3)
    report.line(f"ran {seconds:.1f} s, {federation.nodes:,} nodes ({federation.source})")


@contextlib.contextmanager
def _ending(report: Report) -> Iterator[None]:
    """State how the server app ended, if it did so otherwise than by returning."""
    try:
        yield
    except SystemExit as error:
        if error.code:
            report.problem(f"the app ended the run: {error.code}")
    except (LdpError, RunStopped) as error:
        report.problem(str(error))
    except Exception as error:
        _failed("the server app failed", error, report)


def _federation(asked: Asked, report: Report) -> Federation:
    found = find_federation(asked.folder, asked.connection, asked.federation_config)
    if found.unused:
        names = ", ".join(found.unused)
        report.warn(f"{found.source}: {names}: about Flower's engine, and not used here")
    if asked.nodes is not None:
        return Federation(asked.nodes, "--nodes", found.verbose)
    if found.source == "Flower's default":
        report.warn(f"nothing says how many nodes: {found.nodes}, as flwr run; --nodes says it")
    return found


def _node_config(items: tuple[str, ...]) -> Settings:
    found = read_settings(items)
    for name in ("partition-id", "num-partitions"):
        if name in found:
            raise ConfigError(f"{name} is given to each node and cannot be set for all")
    return found


def _faults(items: tuple[str, ...]) -> Faults | None:
    found = read_settings(items)
    names = {one.name.replace("_", "-") for one in fields(Faults)} - {"schedule", "plan"}
    if unknown := found.keys() - names:
        raise ConfigError(f"--faults has {', '.join(sorted(names))}, got {', '.join(unknown)}")
    try:
        given: Any = {name.replace("-", "_"): value for name, value in found.items()}
        return replace(Faults(), **given) if found else None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--faults: {error}") from error


@contextlib.contextmanager
def _obeying(policy: Path | None, report: Report) -> Iterator[None]:
    """Name the policy to the clients, as the environment of the engine would."""
    if policy is None:
        yield
        return
    if not load_policy(policy).is_simulation:
        report.warn(f"{policy}: its mode is deployment: all nodes are one owner, with one budget")
    with no_environment():
        os.environ[ENVIRONMENT_VARIABLE] = str(policy.resolve())
        try:
            yield
        finally:
            del os.environ[ENVIRONMENT_VARIABLE]


@contextlib.contextmanager
def _printing_to_stderr(wanted: bool) -> Iterator[None]:
    """Keep what the app prints off stdout, which is for one JSON object."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)  # programs that the app starts write to the number
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextlib.contextmanager
def _logging(federation: Federation) -> Iterator[None]:
    """Let Flower's log show details if the federation is set so."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.DEBUG if federation.verbose else before)
    try:
        yield
    finally:
        log.setLevel(before)


def _failed(what: str, error: BaseException, report: Report) -> None:
    """Print the traceback, from the app's own frames on, and state the problem."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    traceback.print_exception(type(error), error, own, file=sys.stderr)
    report.problem(f"{what}: {type(error).__name__}: {error}")

"""``flower-ldp simulate``: an app's folder, run in this process."""

import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from flower_ldp import simulation
from flower_ldp.cli.output import Report, command, single
from flower_ldp.errors import ConfigError, LdpError
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.policy.files import ENVIRONMENT_VARIABLE, load_policy, no_environment
from flower_ldp.refusals import HINTS
from flower_ldp.strategies import RunStopped

app = single()


@command(app, "simulate", "flower-ldp simulate my-app --nodes 50 --policy simulation_policy.yaml")
@dataclass(frozen=True)
class Simulation:
    """Run a Flower app in this process: no SuperLink, no Ray, no copy of the app.

    The folder, its configuration and the size of the federation are read as flwr run reads them,
    and no file of Flower's is written. Output of the app is printed as it comes. With one worker
    a breakpoint in the app works, and an exception has its own traceback.

    Ctrl-C ends the run at once with exit code 130; what the app has written by then is kept.

    Parameters
    ----------
    app_dir
        With the app's pyproject.toml.
    superlink
        Name of the connection that sets the federation, as for flwr run.
    nodes
        Simulated nodes; by default as flwr run has it.
    run_config
        KEY=VALUE of the app's configuration, the value as in TOML, or a .toml file.
    federation_config
        As of flwr run: num-supernodes=N; what is about its engine is not used.
    node_config
        KEY=VALUE of every node's configuration.
    policy
        The clients' policy, in place of the variable FLOWER_LDP_POLICY.
    workers
        Processes for the clients; with 1, all is in this one.
    strict
        Whether messages go through Flower's bytes, as over a network.
    contexts
        Where a node's state is between two messages.
    faults
        What goes wrong, KEY=VALUE: probabilities away, slow, lost and leaving; slow-seconds; seed.
    """

    app_dir: Annotated[Path, typer.Argument(exists=True, file_okay=False)]
    superlink: Annotated[str | None, typer.Argument()] = None
    nodes: Annotated[int | None, Bounded("[1, inf)")] = None
    run_config: Annotated[list[str] | None, typer.Option("--run-config", "-c")] = None
    federation_config: list[str] | None = None
    node_config: list[str] | None = None
    policy: Path | None = None
    workers: Annotated[int, Bounded("[1, inf)")] = 1
    strict: Annotated[bool, typer.Option("--strict/--fast")] = True
    contexts: Literal["memory", "disk", "drop"] = "memory"
    faults: list[str] | None = None

    def answer(self, report: Report) -> None:
        """Run the app; ConfigError if the folder, a setting or the policy cannot be used."""
        federation = self._federation(report)
        settings = simulation.read_settings(self.run_config or [])
        own, faults = simulation.read_settings(self.node_config or []), _faults(self.faults or [])
        if taken := own.keys() & {"partition-id", "num-partitions"}:
            raise ConfigError(f"{min(taken)} is given to each node and cannot be set for all")
        with _surroundings(federation, self.policy, report):
            try:
                app = simulation.load_folder(self.app_dir, settings)
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                return _failed("the app cannot be loaded", error, report)
            report.facts.update(app=str(self.app_dir), strict=self.strict, workers=self.workers)
            report.facts.update(nodes=federation.nodes, nodes_from=federation.source)
            report.facts["run_config"] = dict(app.run_config)
            begun = time.monotonic()
            outcomes: Counter[str] = Counter()
            try:
                simulation.run_in_process(
                    app.server,
                    app.client,
                    federation.nodes,
                    run_config=app.run_config,
                    node_config=own,
                    strict=self.strict,
                    contexts=self.contexts,
                    workers=self.workers,
                    faults=faults,
                    outcomes=outcomes,
                )
                if outcomes and not outcomes[""]:
                    codes = outcomes.most_common()
                    counts = ", ".join(f"{code} {count:,} times" for code, count in codes)
                    hints = "".join(f". {HINTS[code]}" for code, _ in codes if code in HINTS)
                    report.problem(f"every reply was a refusal: {counts}{hints}")
            except SystemExit as error:
                if error.code:
                    report.problem(f"the app ended the run: {error.code}")
            except (LdpError, RunStopped) as error:
                report.problem(str(error))
            except Exception as error:
                _failed("the server app failed", error, report)
            seconds = time.monotonic() - begun
        report.facts["seconds"] = round(seconds, 3)
        report.line(f"ran {seconds:.1f} s, {federation.nodes:,} nodes ({federation.source})")

    def _federation(self, report: Report) -> simulation.Federation:
        found = simulation.find_federation(
            self.app_dir, self.superlink, self.federation_config or []
        )
        if found.unused:
            names = ", ".join(found.unused)
            report.warn(f"{found.source}: {names}: about Flower's engine, and not used here")
        if self.nodes is not None:
            return simulation.Federation(self.nodes, "--nodes", found.verbose)
        if found.source == "Flower's default":
            report.warn(f"nothing says how many nodes: {found.nodes}, as flwr run; --nodes says it")
        return found


def _faults(items: Sequence[str]) -> simulation.Faults | None:
    found = simulation.read_settings(items)
    names = {one.name.replace("_", "-") for one in fields(simulation.Faults)} - {"schedule", "plan"}
    if unknown := found.keys() - names:
        raise ConfigError(f"--faults has {', '.join(sorted(names))}, got {', '.join(unknown)}")
    try:
        given: Any = {name.replace("-", "_"): value for name, value in found.items()}
        return replace(simulation.Faults(), **given) if found else None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"--faults: {error}") from error


@contextmanager
def _surroundings(
    federation: simulation.Federation, policy: Path | None, report: Report
) -> Iterator[None]:
    """Give the app what the engine would: a level of Flower's log, and the policy's variable.

    With ``--json`` what it prints is kept off stdout.
    """
    with ExitStack() as undone:
        log = logging.getLogger("flwr")
        undone.callback(log.setLevel, log.level)
        if federation.verbose:
            log.setLevel(logging.DEBUG)
        if policy is not None:
            if not load_policy(policy).is_simulation:
                report.warn(f"{policy}: mode deployment: all nodes are one owner with one budget")
            undone.enter_context(no_environment())
            undone.callback(os.environ.pop, ENVIRONMENT_VARIABLE, None)
            os.environ[ENVIRONMENT_VARIABLE] = str(policy.resolve())
        if report.as_json:
            sys.stdout.flush()
            kept = os.dup(1)
            undone.callback(os.close, kept)
            undone.callback(os.dup2, kept, 1)
            os.dup2(2, 1)  # programs that the app starts write to the number
            undone.enter_context(redirect_stdout(sys.stderr))
        yield


def _failed(what: str, error: BaseException, report: Report) -> None:
    """Print the traceback from the app's own frames on, and state the problem."""
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename == __file__:
        own = own.tb_next
    traceback.print_exception(type(error), error, own, file=sys.stderr)
    report.problem(f"{what}: {type(error).__name__}: {error}")

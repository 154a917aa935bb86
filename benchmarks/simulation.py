"""Flower's simulation engine beside this package's run in one process: speed and memory.

Each measurement is a process of its own, on two cores, watched from outside.

* ``rounds``: all nodes are asked in each round; seconds of a round, without the first, which
  starts processes. Clients that do nothing, that send back another LeNet-5 (d = 61,706), and that
  take one step on one of scikit-learn's digits. Flower's engine, this package's with messages
  as over a network (``strict``) and without (``fast``), and strict with two worker processes.
* ``command``: from the command to the last round of the digits example that is the README's main
  job, ``examples/asked-once``, in either engine; and of ``examples/signds``, in which 50 clients
  train a CNN for 30 rounds, so that training is most of it.
* ``once``: 60,000 clients of one record, asked once.
* ``memory``: 10,000 clients send back a LeNet-5 each, which FedAvg averages.

    python benchmarks/simulation.py --output benchmarks/results/simulation.json

Ratios compare measurements of one call of this script. A run of Flower's engine that takes longer
than ``--limit`` seconds is ended; what it would have reached if it had been done just then stands
for it, so the ratio is a lower bound. Needs ``/proc``.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import _options as options
import typer
from _environment import report
from _examples import EXAMPLES
from _runs import say
from _watched import EVERY, Watched, watch

HERE = Path(__file__).resolve().parent
WAYS = ("flower", "strict", "fast", "strict-2")
#: At least so many times as fast as Flower's engine.
FASTER = {"nothing strict": 5.0, "nothing fast": 20.0, "lenet strict": 2.0, "command": 4.0}
#: At most so many seconds, and so much memory.
ONCE_SECONDS, MEMORY_MIB = 600.0, 3_072.0
Measured = dict[str, Any]


class Part(str, Enum):
    """What is measured."""

    ROUNDS = "rounds"
    COMMAND = "command"
    ONCE = "once"
    MEMORY = "memory"


def measured(
    kind: str, way: str, nodes: int, rounds: int, *more: str, limit: float = 3_600
) -> Measured:
    """Run one app in one engine; return its rounds, memory and processor time.

    If it takes longer than ``limit`` seconds, it is ended, and what it would have reached if it
    had been done just then is an upper bound of its speed.
    """
    command = [sys.executable, str(HERE / "_simulated.py"), kind, way]
    command += ["--nodes", str(nodes), "--rounds", str(rounds), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    seen = watch(command, limit, environment)
    seconds = [json.loads(line)["seconds"] for _, line in seen.lines if _is(line, "ended")]
    begun = [when for when, line in seen.lines if _is(line, "begun")]
    unfinished = seen.code == -1 and len(seconds) < rounds
    if len(seconds) < rounds and not unfinished:
        raise RuntimeError(f"{' '.join(command)} failed:\n{_tail(seen)}")
    if unfinished:
        seconds.append(max(EVERY, limit - (begun[-1] if len(begun) > len(seconds) else 0.0)))
    # The first round starts processes and reads data; where there is no other it has to do.
    found = {
        "kind": kind,
        "way": way,
        "nodes": nodes,
        "seconds": seconds,
        "unfinished": unfinished,
        "messages_a_second": nodes / statistics.median(seconds[1:] or seconds),
        **_costs(seen),
    }
    say(found)
    return found


def _is(line: str, what: str) -> bool:
    return line.startswith(f'{{"{what}"')


def _costs(seen: Watched) -> Measured:
    return {
        "seconds_in_all": seen.seconds,
        "cpu_seconds": seen.cpu,
        "peak_mib": seen.peak / 2**20,
    }


def _tail(seen: Watched) -> str:
    return "\n".join(line for _, line in seen.lines[-30:])


def in_rounds(nodes: int, rounds: int, limit: float) -> list[Measured]:
    """Measure rounds of so many nodes in all engines, one after another."""
    many, found = nodes > 1_000, []
    # For a LeNet-5 see the part "memory"; Flower's engine would need minutes.
    for kind in ("nothing", "record") if many else ("nothing", "lenet", "record"):
        for way in WAYS:
            of_way = limit if way == "flower" else 3_600
            found.append(measured(kind, way, nodes, 2 if many else rounds, limit=of_way))
    return found


def by_command(example: str, *more: str) -> dict[str, Measured]:
    """Time an example from its command to its last round, in either engine."""
    found = {}
    for engine in ("simulation", "process"):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(EXAMPLES / example / "run.py"), "--engine", engine]
            command += ["--no-baseline", "--output", folder, *more]
            seen = watch(command, 1_200, {**os.environ, "OMP_NUM_THREADS": "1"})
        rounds = [(when, line) for when, line in seen.lines if line.startswith("round ")]
        last = rounds[-1][1].split()[1].rstrip(":").split("/") if rounds else ["", "none"]
        if seen.code or last[0] != last[1]:
            raise RuntimeError(f"{' '.join(command)} failed:\n{_tail(seen)}")
        name = "flower" if engine == "simulation" else "process"
        found[name] = {"rounds": int(last[1]), "last_round": rounds[-1][0], **_costs(seen)}
        say({example: name, **found[name]})
    return found


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Return how many times as fast as Flower's engine each way is, at the worst."""
    found: dict[str, float] = {}
    speeds = {
        (one["kind"], one["nodes"], one["way"]): one["messages_a_second"]
        for one in result.get("rounds", [])
    }
    for (kind, nodes, way), speed in speeds.items():
        theirs = speeds[kind, nodes, "flower"]
        if way != "flower":
            name = f"{kind} {way}"
            found[name] = min(found.get(name, speed / theirs), speed / theirs)
    for name, part in (("command", "example"), ("signds", "signds")):
        if command := result.get(part):
            found[name] = command["flower"]["last_round"] / command["process"]["last_round"]
    return found


def missed(result: dict[str, Any]) -> list[str]:
    """Return the goals that were measured and not met."""
    names = [
        f"{name}: {result['ratios'][name]:.1f} times as fast, the goal is {goal:.0f}"
        for name, goal in FASTER.items()
        if result["ratios"].get(name, goal) < goal
    ]
    if "once" in result and result["once"]["seconds_in_all"] > ONCE_SECONDS:
        names.append(f"once: {result['once']['seconds_in_all']:.0f} s")
    if "memory" in result and result["memory"]["peak_mib"] > MEMORY_MIB:
        names.append(f"memory: {result['memory']['peak_mib']:.0f} MiB")
    return names


def main(
    part: Annotated[list[Part] | None, typer.Option(help="Repeatable; default: all.")] = None,
    nodes: Annotated[list[int], typer.Option(help="Of rounds; repeatable.")] = [100, 10_000],  # noqa: B006
    rounds: Annotated[int, typer.Option(min=2, help="Of 1,000 nodes and fewer.")] = 6,
    limit: Annotated[float, typer.Option(help="Seconds of a run of Flower's.")] = 80.0,
    clients: Annotated[int, typer.Option(help="Of examples/signds.")] = 50,
    once: Annotated[int, typer.Option(help="Clients asked once.")] = 60_000,
    models: Annotated[int, typer.Option(help="Clients with a LeNet-5.")] = 10_000,
    output: options.Report = None,
) -> None:
    """Measure all parts; exit status 1 if a goal is missed."""
    if not Path("/proc/self/statm").exists():
        raise typer.BadParameter("memory and processor time are read in /proc, which is not there")
    parts = part or list(Part)
    result: dict[str, Any] = {}
    if Part.ROUNDS in parts:
        result["rounds"] = [one for count in nodes for one in in_rounds(count, rounds, limit)]
    if Part.COMMAND in parts:
        result["example"] = by_command("asked-once")
        result["signds"] = by_command("signds", "--clients", str(clients))
    if Part.ONCE in parts:
        result["once"] = measured("record", "strict", once, 1, "--contexts", "drop")
    if Part.MEMORY in parts:
        result["memory"] = measured("lenet", "strict", models, 1, "--average")
    result["ratios"] = ratios(result)
    say(result["ratios"])
    result["missed"] = missed(result)
    for name in result["missed"]:
        print(f"MISSED {name}")
    report(output, result)
    raise typer.Exit(int(bool(result["missed"])))


if __name__ == "__main__":
    typer.run(main)

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

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from _environment import write_report
from _simulation_table import table
from _watched import EVERY, Watched, watch

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent / "examples"
PARTS = ("rounds", "command", "once", "memory")
WAYS = ("flower", "strict", "fast", "strict-2")
#: At least so many times as fast as Flower's engine.
FASTER = {"nothing strict": 5.0, "nothing fast": 20.0, "lenet strict": 2.0, "command": 4.0}
#: At most so many seconds, and so much memory.
ONCE_SECONDS, MEMORY_MIB = 600.0, 3_072.0
Measured = dict[str, Any]


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
    return {
        "kind": kind,
        "way": way,
        "nodes": nodes,
        "seconds": seconds,
        "unfinished": unfinished,
        "messages_a_second": nodes / statistics.median(seconds[1:] or seconds),
        **_costs(seen),
    }


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


def in_rounds(options: argparse.Namespace) -> list[Measured]:
    """Measure rounds in all engines, one after another."""
    found = []
    for nodes in options.nodes:
        for kind in ("nothing", "lenet", "record"):
            many = nodes > 1_000
            if many and kind == "lenet":
                continue  # see the part "memory"; Flower's engine would need minutes
            for way in WAYS:
                rounds = 2 if many else options.rounds
                limit = options.limit if way == "flower" else 3_600
                one = measured(kind, way, nodes, rounds, limit=limit)
                _print(one)
                found.append(one)
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
        print(f"{example:<10} {name:<9} last round after {rounds[-1][0]:.1f} s", flush=True)
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


def _print(one: Measured) -> None:
    below = "<" if one["unfinished"] else " "
    print(
        f"{one['kind']:<9} {one['way']:<9} {one['nodes']:>6} nodes "
        f"{below}{one['messages_a_second']:>9.1f} messages/s {one['peak_mib']:>7.0f} MiB "
        f"{one['seconds_in_all']:>7.1f} s {one['cpu_seconds']:>7.1f} s CPU",
        flush=True,
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable; default: all")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 10_000], help="of rounds")
    parser.add_argument("--rounds", type=int, default=6, help="of 1,000 nodes and fewer")
    parser.add_argument("--limit", type=float, default=80.0, help="seconds of a run of Flower's")
    parser.add_argument("--clients", type=int, default=50, help="of examples/signds")
    parser.add_argument("--once", type=int, default=60_000, help="clients asked once")
    parser.add_argument("--models", type=int, default=10_000, help="clients with a LeNet-5")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    if not Path("/proc/self/statm").exists():
        parser.error("memory and processor time are read in /proc, which is not there")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    parts = options.part or PARTS
    result: dict[str, Any] = {}
    if "rounds" in parts:
        result["rounds"] = in_rounds(options)
    if "command" in parts:
        result["example"] = by_command("asked-once")
        result["signds"] = by_command("signds", "--clients", str(options.clients))
    if "once" in parts:
        result["once"] = measured("record", "strict", options.once, 1, "--contexts", "drop")
        _print(result["once"])
    if "memory" in parts:
        result["memory"] = measured("lenet", "strict", options.models, 1, "--average")
        _print(result["memory"])
    result["ratios"] = ratios(result)
    print(f"\n{table(result)}\n")
    result["missed"] = missed(result)
    for name in result["missed"]:
        print(f"MISSED {name}")
    if options.output is not None:
        write_report(options.output, "benchmarks/simulation.py", arguments, result)
    return int(bool(result["missed"]))


if __name__ == "__main__":
    raise SystemExit(main())

"""Processes that randomize labels and come to harm; each prints what happened.

python label_worker.py together POLICY NAME COUNT  children that ask at once, and their answers
python label_worker.py kills POLICY SEED COUNT     children killed with SIGKILL, one by one

An answer is the reports, or the code of a refusal. Children are forks: they import nothing anew.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from flower_ldp.clients import LabelStages, PrivateLabels
from flower_ldp.errors import RefusalError
from flower_ldp.mechanisms import KaryResponse
from flower_ldp.policy import load_policy
from flower_ldp.privacy import Unit

LABELS = np.arange(5_000) % 10
STAGES = LabelStages((KaryResponse(1.0, 10, unit=Unit.LABEL),), (1,))
#: A child is killed after at most so many times the time that it takes when left alone.
LIFETIME = 2.0


def randomize(policy: Path, name: str) -> str:
    """Return the reports as digits, or the code of a refusal."""
    store = PrivateLabels(load_policy(policy), "ward-7")
    try:
        found = store.randomize(LABELS, STAGES, name=name)
    except RefusalError as error:
        return error.code
    return "".join(map(str, found.reports.tolist()))


def together(policy: Path, name: str, count: int) -> list[str]:
    """Let children ask for the same reports at once; return what each was given."""
    held, gate = os.pipe()
    children = [_child(policy, name, held, gate) for _ in range(count)]
    os.close(held)
    os.close(gate)  # the last end of the pipe that children wait for: they start
    told = []
    for pid, inward in children:
        with os.fdopen(inward) as answers:
            told.append(answers.read())
        os.waitpid(pid, 0)
    return told


def _child(policy: Path, name: str, held: int | None = None, gate: int = -1) -> tuple[int, int]:
    """Fork a child that asks, after the pipe ``held`` is closed if there is one.

    Returns its process ID, and where its answer is to be read.
    """
    inward, outward = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(inward)
        if held is not None:
            os.close(gate)
            os.read(held, 1)
        os.write(outward, randomize(policy, name).encode())  # shorter than a pipe's buffer
        os._exit(0)
    os.close(outward)
    return pid, inward


def kills(policy: Path, seed: int, count: int) -> list[tuple[str, str]]:
    """Kill children at random moments; return each name with every answer that was given."""
    moments = random.Random(seed)
    told: list[tuple[str, str]] = []
    began = time.monotonic()
    for number in range(5):
        randomize(policy, f"whole {number}")
    alone = (time.monotonic() - began) / 5
    for number in range(count):
        name = f"set {number // 4}"  # four children a name, one after the other
        pid, inward = _child(policy, name)
        time.sleep(moments.uniform(0, LIFETIME * alone))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(inward) as answers:
            told.append((name, answers.read()))
    return told


def main() -> None:
    what, policy, *rest = sys.argv[1:]
    if what == "together":
        result: object = together(Path(policy), rest[0], int(rest[1]))
    else:
        result = kills(Path(policy), int(rest[0]), int(rest[1]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

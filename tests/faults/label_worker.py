"""Processes that randomize labels and come to harm; each prints what happened.

python label_worker.py once POLICY NAME         prints the reports, or the code of a refusal
python label_worker.py kills POLICY SEED COUNT  children killed with SIGKILL, one by one
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
        inward, outward = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(inward)
            answer = randomize(policy, name).encode()
            os.write(outward, answer)  # shorter than a pipe's buffer
            os._exit(0)
        os.close(outward)
        time.sleep(moments.uniform(0, LIFETIME * alone))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(inward) as answers:
            told.append((name, answers.read()))
    return told


def main() -> None:
    what, policy, *rest = sys.argv[1:]
    if what == "once":
        print("ready", flush=True)
        sys.stdin.readline()
        result: object = randomize(Path(policy), rest[0])
    else:
        result = kills(Path(policy), int(rest[0]), int(rest[1]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

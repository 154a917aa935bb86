"""Speed of adding up SignDS reports on the server against adding dense updates.

Reports of h distinct uniform dimensions out of d and one fair sign are encoded as clients
encode them. Three ways of adding them up are timed on one thread:

* **bytes**: ``decode_report`` with all its checks, then ``sum_of_signs``;
* **messages**: real Flower messages through ``read_reports`` (sender, record and payload checks,
  decoding, counting, adding up): all that a strategy does with replies;
* **dense**: ``total += vector`` on float32 vectors of d entries and nothing else: no
  parsing and no checks. A few vectors are timed; the rest is extrapolated.

Making a report, a message or a vector is never in the time: inputs are made in chunks,
with the clock stopped, so that memory holds one chunk.

    python benchmarks/aggregation.py --output benchmarks/results/aggregation.json
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, TypeVar

import _options as options
import numpy as np
import typer
from _environment import report
from _messages import SERVER, train_message
from _runs import say
from _timing import clocked
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flower_ldp.mechanisms.signds import Selection, SignDS, sum_of_signs
from flower_ldp.mechanisms.signds_round import (
    SignDSRound,
    decode_report,
    encode_report,
)
from flower_ldp.mechanisms.subset_code import encoded_length
from flower_ldp.strategies.replies import ReplyValidator
from flower_ldp.strategies.rounds import HealthMonitor
from flower_ldp.wire.proposal import PAYLOAD_KEY, REPORT_KEY

ItemT = TypeVar("ItemT")
_CHUNK = 2_000
_FIRST_NODE = 2


class Stopwatch:
    """Wall-clock time of a loop, less the time that its inputs took to make."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._excluded = 0.0

    def inputs(self, count: int, make: Callable[[int, int], list[ItemT]]) -> Iterator[ItemT]:
        """Yield what is made of a chunk's start and length, with the clock stopped meanwhile."""
        for start in range(0, count, _CHUNK):
            began = time.perf_counter()
            chunk = make(start, min(_CHUNK, count - start))
            self._excluded += time.perf_counter() - began
            yield from chunk

    @property
    def seconds(self) -> float:
        """Time so far."""
        return time.perf_counter() - self._started - self._excluded


def make_payloads(
    rng: np.random.Generator, count: int, dimension: int, dim_out: int
) -> list[bytes]:
    """Return encoded reports of uniform subsets, with fair signs and magnitude bits."""
    payloads = []
    for coins in rng.integers(0, 2, (count, 2)).tolist():
        indices = np.sort(rng.choice(dimension, dim_out, replace=False, shuffle=False))
        payloads.append(encode_report(indices, 2 * coins[0] - 1, coins[1], dimension=dimension))
    return payloads


def make_messages(payloads: list[bytes], first_node: int) -> list[Message]:
    """Return replies of consecutive nodes, as they come out of Flower's grid."""
    return [
        train_message(
            RecordDict({REPORT_KEY: ConfigRecord({PAYLOAD_KEY: payload})}),
            source=node,
            target=SERVER,
            name=f"reply-{node}",
            answers=f"ask-{node}",
        )
        for node, payload in enumerate(payloads, start=first_node)
    ]


def time_bytes(reports: int, dimension: int, dim_out: int) -> tuple[float, NDArray[np.int32]]:
    """Return the seconds to decode and add up reports, and their sum."""
    rng, watch = np.random.default_rng(0), Stopwatch()
    decode = partial(decode_report, dimension=dimension, dim_out=dim_out, has_bit=True)
    payloads = watch.inputs(reports, lambda _, n: make_payloads(rng, n, dimension, dim_out))
    total = sum_of_signs((Selection(*decode(one)[:2]) for one in payloads), dimension)
    return watch.seconds, total


def time_messages(reports: int, dimension: int, dim_out: int) -> tuple[float, NDArray[np.int32]]:
    """Return the seconds from Flower messages to the sum of signs, and the sum."""
    rng, mechanism = np.random.default_rng(0), SignDS(epsilon=100.0, k=0.2, dim_out=dim_out)
    asked = SignDSRound(mechanism, magnitude_epsilon=1.0, magnitude_threshold=1e-3)
    mechanism.plan(dimension)  # kept, and no part of the time
    judge = ReplyValidator(range(_FIRST_NODE, _FIRST_NODE + reports))

    def make(start: int, length: int) -> list[Message]:
        payloads = make_payloads(rng, length, dimension, dim_out)
        return make_messages(payloads, _FIRST_NODE + start)

    watch = Stopwatch()
    decode = HealthMonitor(None).decoder(partial(asked.decode, dimension=dimension))
    total = asked.total(judge.decode(watch.inputs(reports, make), decode), dimension)
    seconds = watch.seconds
    if judge.accepted != reports:
        raise RuntimeError(f"{reports - judge.accepted} of {reports} replies were rejected")
    return seconds, total


def time_dense(reports: int, dimension: int) -> list[float]:
    """Return the seconds of each addition of a dense float32 vector."""
    rng = np.random.default_rng(0)
    total = np.zeros(dimension, dtype=np.float32)
    # The first touch of fresh memory is not the addition's doing.
    total.fill(1.0)
    vectors = (rng.standard_normal(dimension, dtype=np.float32) for _ in range(reports))
    return [clocked(partial(np.add, total, vector, out=total))().wall for vector in vectors]


def main(
    reports: Annotated[int, typer.Option(min=1)] = 100_000,
    dimension: Annotated[int, typer.Option(min=1, help="d")] = 10_000_000,
    dim_out: Annotated[int, typer.Option(min=1, help="h")] = 238,
    dense_reports: Annotated[int, typer.Option(min=1, help="Vectors to time.")] = 50,
    output: options.Report = None,
) -> None:
    """Find times, rates, sizes and ratios."""
    bytes_seconds, total = time_bytes(reports, dimension, dim_out)
    message_seconds, message_total = time_messages(reports, dimension, dim_out)
    if not np.array_equal(total, message_total):
        raise RuntimeError("the two ways disagree on the sum")
    dense = time_dense(dense_reports, dimension)
    mean, least = float(np.mean(dense)), float(np.min(dense))
    # Mean, not median: an extrapolated total is a number of mean additions.
    dense_seconds = mean * reports
    size = 2 + encoded_length(dimension, dim_out)
    result = {
        "reports": reports,
        "dimension": dimension,
        "dim_out": dim_out,
        "bytes": {"seconds": bytes_seconds, "reports_per_second": reports / bytes_seconds},
        "messages": {"seconds": message_seconds, "reports_per_second": reports / message_seconds},
        "dense": {
            "timed_reports": len(dense),
            "seconds_per_report": {
                "mean": mean,
                "median": float(np.median(dense)),
                "least": least,
            },
            "extrapolated_seconds": dense_seconds,
            "reports_per_second": reports / dense_seconds,
        },
        "times_faster_than_dense": {
            "bytes": dense_seconds / bytes_seconds,
            "messages": dense_seconds / message_seconds,
            # The harder comparison: every dense addition as fast as the fastest seen.
            "bytes_against_least": least * reports / bytes_seconds,
        },
        "payload_bytes": {"report": size, "dense": 4 * dimension, "ratio": 4 * dimension / size},
    }
    say(result)
    report(output, result)


if __name__ == "__main__":
    typer.run(main)

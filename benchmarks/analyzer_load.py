"""What an analyzer needs for a round of many sealed reports: seconds and memory.

One process opens, compares and adds up a batch of codewords, and computes both central epsilons.
The reports are uniform codewords: their content takes no time.

    python benchmarks/analyzer_load.py --output benchmarks/results/analyzer_load.json
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Annotated

import _options as options
import typer
from _environment import report

from flower_ldp.mechanisms import Codeword, CodewordReport, RandomSource
from flower_ldp.shuffle import ReportAnalyzer
from flower_ldp.shuffle.batch import Batch
from flower_ldp.shuffle.sealing import KEY_FIELD
from flower_ldp.wire.proposal import UpdateProposal, canonical

_RUN = 1
#: Bytes in a unit of ``ru_maxrss``.
_UNIT = 1 if sys.platform == "darwin" else 1024


def main(
    reports: Annotated[int, typer.Option(min=1, help="In the batch.")] = 10_000,
    weights: Annotated[int, typer.Option(min=2, help="Of the update.")] = 7_850,
    epsilon: Annotated[float, typer.Option(help="Local, of a report.")] = 4.0,
    repeats: options.Repeats = 5,
    output: options.Report = None,
) -> None:
    """Measure rounds of one batch each."""
    mechanism, rng = Codeword(epsilon).sized(weights), RandomSource.from_os()
    plan, seconds, processor = mechanism.plan(weights), [], []
    analyzer = ReportAnalyzer(reports // 2)
    for _ in range(repeats):
        key = analyzer.new_key(_RUN)
        fields = {**UpdateProposal(mechanism).to_fields(), "dimension": weights}
        text = canonical({**fields, KEY_FIELD: key.to_bytes().hex()})
        drawn = (
            CodewordReport(plan.order, rng.below(plan.rotations), rng.below(plan.order), 1)
            for _ in range(reports)
        )
        sealed = tuple(key.seal(mechanism.encode(one, weights), text) for one in drawn)
        data = Batch(text, sealed).to_bytes()
        before = time.perf_counter(), time.process_time()
        found = analyzer.sums(Batch.from_bytes(data))
        seconds.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
    megabytes = peak / 1e6
    typer.echo(f"{reports:,} reports: {min(seconds):.2f} to {max(seconds):.2f} s, of which")
    typer.echo(f"{min(processor):.2f} to {max(processor):.2f} s of processor; {megabytes:.0f} MB")
    measured = {"seconds": seconds, "processor_seconds": processor, "peak_bytes": peak}
    claim = {"central_epsilon": found.central_epsilon, "delta": found.delta}
    sizes = {"reports": found.accepted, "weights": weights, "bytes_of_batch": len(data)}
    report(output, {**sizes, **measured, **claim})


if __name__ == "__main__":
    typer.run(main)

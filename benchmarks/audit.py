"""Audits of the shipped mechanisms and of the planted broken ones, and what they can reach.

Three tables: bounds from operating-system entropy, for shipped samplers and for those of
``tests/broken.py``; what the bound typically reaches for a tight mechanism, computed; and how
many draws refute the subtlest of the broken ones, computed.

    python benchmarks/audit.py --output benchmarks/results/audit.json

Exit status 1 if a shipped mechanism is refuted or no check of a broken one is. The checks of one
sampler hold together with 99.9 %.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from _environment import write_report

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from flower_ldp.audit import BUILDERS, Case, Settings, audit_case  # noqa: E402
from flower_ldp.audit.bounds import draws_to_refute, expected_bound  # noqa: E402
from flower_ldp.audit.cases import nested_units, signds_long  # noqa: E402
from flower_ldp.audit_paths import gate, labels  # noqa: E402
from flower_ldp.audit_paths.dpsgd_release import dpsgd_release  # noqa: E402
from flower_ldp.mechanisms import BoundedMean, CodebookEmbedding, MagRR, SignDS  # noqa: E402
from tests import broken, broken_paths  # noqa: E402

CONFIDENCE = 0.999


def shipped() -> list[Case]:
    return [
        *(BUILDERS["binary-response"](Settings(epsilon)) for epsilon in (0.5, 1.0, 4.0)),
        *(
            BUILDERS[name](Settings(epsilon))
            for name in ("magrr", "signds", "codeword")
            for epsilon in (1.0, 4.0)
        ),
        signds_long(SignDS(1.0, 0.2)),
        nested_units(BoundedMean(0.75, 0.0, 1.0), CodebookEmbedding(0.25, 10)),
        gate(SignDS(0.75, 0.2), MagRR(0.25)),
        labels(1.0),
        *(dpsgd_release(epsilon) for epsilon in (1.0, 4.0)),
    ]


def planted() -> list[Case]:
    selection = SignDS(4.0, 0.2)
    case, response = BUILDERS["signds"](Settings(4.0)), BUILDERS["binary-response"](Settings())
    long = SignDS(1.0, 0.2)
    return [
        replace(
            signds_long(long),
            mechanism="signds-long, equals counted twice (epsilon 1)",
            draw=broken.signds_counting_equals_twice(long),
        ),
        replace(
            nested_units(
                BoundedMean(8.0, 0.0, 1.0),
                CodebookEmbedding(1.0, 10),
                broken.each_unit_by_itself,
            ),
            mechanism="account, each unit by itself (client 8, example 1)",
        ),
        replace(
            gate(SignDS(0.75, 0.2), MagRR(0.25), mod=broken_paths.refuses_long_updates(15.0)),
            mechanism="gate, long updates refused (epsilon 1)",
        ),
        _steps_repeated(),
        _rows_stacked(),
        replace(
            case,
            mechanism="signds, ties by s u_j >= tau (epsilon 4)",
            draw=broken.signds_with_naive_ties(selection),
        ),
        *(broken.laplace_with_sensitivity_1(epsilon) for epsilon in (1.0, 2.0)),
        *(broken.argmax_of_noisy_label(epsilon) for epsilon in (0.5, 1.0, 2.0)),
        replace(
            case,
            mechanism="signds, seed constant (epsilon 4)",
            draw=broken.with_constant_seed(case.draw),
        ),
        replace(
            response,
            mechanism="binary-response, seed kept for three releases (epsilon 1)",
            draw=broken.with_seed_kept_for(response.draw, 3),
            draw_many=None,
            draws=60_000,
        ),
    ]


def _steps_repeated() -> Case:
    # So large a delta is told by few plans, each of which is a ledger's work.
    repeats = dpsgd_release(1.0, delta=0.45, patients=2, trainer=broken_paths.repeats_each_step)
    return replace(
        repeats,
        mechanism="dpsgd-release, each step repeated (epsilon 1, delta 0.45)",
        contrasts=repeats.contrasts[:1],
        draws=300,
    )


def _rows_stacked() -> Case:
    stacks = dpsgd_release(1.0, trainer=broken_paths.stacks_rows)
    return replace(
        stacks,
        mechanism="dpsgd-release, rows stacked (epsilon 1, delta 0.05)",
        contrasts=stacks.contrasts[-2:],
    )


def audited(cases: list[Case], scale: float) -> list[dict[str, Any]]:
    print("| mechanism | check | claim | lower bound | draws | verdict |")
    print("|---|---|---|---|---|---|")
    rows = []
    for case in cases:
        start = time.perf_counter()
        results = audit_case(case, max(100, int(scale * case.draws)), confidence=CONFIDENCE)
        for result in results:
            print(
                f"| {case.mechanism} | {result.check} | {result.claimed:g} "
                f"| {result.lower_bound:.3f} | {result.draws:,} | {result.verdict} |",
                flush=True,
            )
        rows.append(
            {
                "mechanism": case.mechanism,
                "refuted": any(result.refuted for result in results),
                "seconds": round(time.perf_counter() - start, 1),
                "checks": [asdict(result) for result in results],
            }
        )
    print()
    return rows


def reached() -> list[dict[str, float]]:
    draws = (10_000, 100_000, 1_000_000)
    print("| claim, tight | " + " | ".join(f"{n:,} draws" for n in draws) + " |")
    print("|---|" + "---|" * len(draws))
    rows = []
    for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0):
        keep = 1.0 / (1.0 + math.exp(-epsilon))
        bounds = [
            max(0.0, expected_bound(keep, 1.0 - keep, n // 2, confidence=CONFIDENCE)) for n in draws
        ]
        print(f"| {epsilon:g} | " + " | ".join(f"{bound:.2f}" for bound in bounds) + " |")
        rows += [
            {"epsilon": epsilon, "draws": n, "bound": bound}
            for n, bound in zip(draws, bounds, strict=True)
        ]
    print()
    return rows


def needed() -> list[dict[str, float]]:
    print("| claim | true epsilon | draws for power 0.99 | draws for power 1 - 1e-6 |")
    print("|---|---|---|---|")
    rows = []
    each = 1.0 - (1.0 - CONFIDENCE) / 2
    for claim in (0.5, 1.0, 2.0):
        p, q = broken.argmax_probabilities(claim)
        # Half of the draws choose the event.
        some, nearly_all = (
            2 * draws_to_refute(p, q, claim, confidence=each, wanted=wanted)
            for wanted in (0.99, 1 - 1e-6)
        )
        truth = math.log(p / q)
        print(f"| {claim:g} | {truth:.3f} | {some:,} | {nearly_all:,} |")
        rows.append({"claim": claim, "truth": truth, "0.99": some, "1-1e-6": nearly_all})
    print()
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the draws")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    good, bad = audited(shipped(), options.scale), audited(planted(), options.scale)
    body = {
        "confidence": CONFIDENCE,
        "shipped": good,
        "planted": bad,
        "reached": reached(),
        "needed": needed(),
    }
    if options.output:
        write_report(options.output, "benchmarks/audit.py", arguments, body)
    wrong = [row["mechanism"] for row in good if row["refuted"]]
    wrong += [row["mechanism"] for row in bad if not row["refuted"]]
    for name in wrong:
        print(f"unexpected verdict: {name}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Audits of the shipped mechanisms and of the planted broken ones, and what they can reach.

Three tables: bounds from operating-system entropy, for shipped samplers and for those of
``tests/broken.py``; what the bound typically reaches for a tight mechanism, computed; and how
many draws refute the subtlest of the broken ones, computed.

    python benchmarks/audit.py --output benchmarks/results/audit.json

Exit status 1 if a shipped mechanism is refuted or no check of a broken one is. The checks of one
sampler hold together with 99.9 %.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from dataclasses import asdict, replace
from typing import Annotated

import _examples  # noqa: F401
import _options as options
import typer
from _environment import report
from _runs import Run, say, table

from flower_ldp.audit import BUILDERS, Case, Settings, audit_case
from flower_ldp.audit.cases import nested_units, signds_long
from flower_ldp.audit_paths import gate, labels
from flower_ldp.audit_paths.dpsgd_release import dpsgd_release
from flower_ldp.mechanisms import BoundedMean, CodebookEmbedding, MagRR, SignDS
from tests import broken, broken_paths
from tests.audit_power import draws_to_refute, expected_bound

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
    long = SignDS(1.0, 0.2)
    case, response = BUILDERS["signds"](Settings(4.0)), BUILDERS["binary-response"](Settings())
    counting = broken.signds_counting_equals_twice(long)
    units = BoundedMean(8.0, 0.0, 1.0), CodebookEmbedding(1.0, 10)
    # So large a delta is told by few plans, each of which is a ledger's work.
    repeats = dpsgd_release(1.0, delta=0.45, patients=2, trainer=broken_paths.repeats_each_step)
    stacks = dpsgd_release(1.0, trainer=broken_paths.stacks_rows)
    ties = broken.signds_with_naive_ties(SignDS(4.0, 0.2))
    constant, kept = (
        broken.with_constant_seed(case.draw),
        broken.with_seed_kept_for(response.draw, 3),
    )
    units_left_out = nested_units(*units, broken.each_unit_by_itself)
    refusing = gate(SignDS(0.75, 0.2), MagRR(0.25), mod=broken_paths.refuses_long_updates(15.0))
    noisy = [broken.laplace_with_sensitivity_1(epsilon) for epsilon in (1.0, 2.0)]
    noisy += [broken.argmax_of_noisy_label(epsilon) for epsilon in (0.5, 1.0, 2.0)]
    named = {
        "signds-long, equals counted twice (epsilon 1)": replace(signds_long(long), draw=counting),
        "account, each unit by itself (client 8, example 1)": units_left_out,
        "gate, long updates refused (epsilon 1)": refusing,
        "dpsgd-release, each step repeated (epsilon 1, delta 0.45)": replace(
            repeats, contrasts=repeats.contrasts[:1], draws=300
        ),
        "dpsgd-release, rows stacked (epsilon 1, delta 0.05)": replace(
            stacks, contrasts=stacks.contrasts[-2:]
        ),
        "signds, ties by s u_j >= tau (epsilon 4)": replace(case, draw=ties),
        **{one.mechanism: one for one in noisy},
        "signds, seed constant (epsilon 4)": replace(case, draw=constant),
        "binary-response, seed kept for three releases (epsilon 1)": replace(
            response, draw=kept, draw_many=None, draws=60_000
        ),
    }
    return [replace(one, mechanism=name) for name, one in named.items()]


def audited(cases: list[Case], scale: float) -> list[Run]:
    rows = []
    for case in cases:
        start = time.perf_counter()
        results = audit_case(case, max(100, int(scale * case.draws)), confidence=CONFIDENCE)
        for result in results:
            say({"mechanism": case.mechanism, **asdict(result)})
        rows.append(
            {
                "mechanism": case.mechanism,
                "refuted": any(result.refuted for result in results),
                "seconds": round(time.perf_counter() - start, 1),
                "checks": [asdict(result) for result in results],
            }
        )
    return rows


def reached() -> list[Run]:
    """Return what the bound typically reaches for a tight mechanism."""
    rows = []
    for epsilon, draws in itertools.product((0.5, 1.0, 2.0, 4.0, 8.0), (10**4, 10**5, 10**6)):
        keep = 1.0 / (1.0 + math.exp(-epsilon))
        bound = expected_bound(keep, 1.0 - keep, draws // 2, confidence=CONFIDENCE)
        rows.append({"epsilon": epsilon, "draws": draws, "bound": max(0.0, bound)})
    table(rows)
    return rows


def needed() -> list[Run]:
    """Return how many draws refute the subtlest of the broken mechanisms."""
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
        rows.append({"claim": claim, "truth": truth, "0.99": some, "1-1e-6": nearly_all})
    table(rows)
    return rows


def main(
    scale: Annotated[float, typer.Option(help="Factor on the draws.")] = 1.0,
    output: options.Report = None,
) -> None:
    """Audit all; exit status 1 if a shipped mechanism is refuted or a broken one is not."""
    good, bad = audited(shipped(), scale), audited(planted(), scale)
    body = {"confidence": CONFIDENCE, "shipped": good, "planted": bad}
    report(output, {**body, "reached": reached(), "needed": needed()})
    wrong = [row["mechanism"] for row in good if row["refuted"]]
    wrong += [row["mechanism"] for row in bad if not row["refuted"]]
    for name in wrong:
        print(f"unexpected verdict: {name}", file=sys.stderr)
    raise typer.Exit(int(bool(wrong)))


if __name__ == "__main__":
    typer.run(main)

"""The answer of ``flower-ldp plan codeword``: sizes, bytes, worth beside SignDS, and costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from flower_ldp.cli.costs import Cost, check_count, check_delta, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.codeword import Codeword
from flower_ldp.mechanisms.codeword_plan import CodewordPlan
from flower_ldp.mechanisms.sampling.hadamard import MAX_ORDER
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.signds_round import report_length

#: Below this many weights a plan of SignDS would be none to compare with.
_LEAST_SIGNDS = 8


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan codeword`` say it."""

    epsilon: float
    params: int
    favoured: int
    rotations: int
    blocks: int
    rounds: int
    clients: int | None
    delta: float

    def __post_init__(self) -> None:
        if not 2 <= self.params <= MAX_ORDER:
            raise wrong("--params", f"must be in [2, {MAX_ORDER}], got {self.params}")
        check_count("--rounds", self.rounds)
        check_count("--clients", self.clients, 2**32 - 1)
        check_delta(self.delta)

    def mechanism(self) -> Codeword:
        """Return the mechanism, if the options are within its intervals."""
        try:
            mechanism = Codeword(self.epsilon, self.favoured, self.rotations, blocks=self.blocks)
            mechanism.plan(self.params)
        except ValueError as error:
            option = "--" + str(error).split()[0]
            raise wrong(option, str(error)) from error
        return mechanism


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    mechanism = options.mechanism()
    plan = mechanism.plan(options.params)
    report.facts.update(mechanism="codeword", parameters=asdict(options))
    rows = _code(options, plan, report)
    if options.params >= _LEAST_SIGNDS:
        rows += _beside_signds(options, plan, report)
    report.pairs(rows)
    report.line()
    cost = Cost.of(mechanism.events(), options.rounds, options.delta, report)
    report.pairs(cost.lines())
    cost.tell_meaning(report)


def _code(options: PlanOptions, plan: CodewordPlan, report: Report) -> list[tuple[str, str]]:
    size = plan.report_bytes
    cosine = None if options.clients is None else plan.cosine_of_sum(options.clients)
    report.facts["code"] = {
        "n": plan.order,
        "favoured": plan.favoured,
        "codewords": plan.codewords,
        "rotations": plan.rotations,
        "blocks": plan.blocks,
        "bits": plan.bits,
        "efficiency": plan.efficiency,
        "reports": options.clients,
        "cosine": cosine,
    }
    report.facts["bytes_up"] = {
        "per_round": size,
        "total": size * options.rounds,
        "dense_float32_per_round": 4 * plan.dimension,
    }
    codes = f"{plan.rotations:,} codes of {plan.codewords:,} codewords"
    rows = [
        ("n, rows of a code", f"{plan.order:,} for {plan.dimension:,} weights; {codes}"),
        ("   in blocks", f"{plan.blocks:,} of {plan.block_size:,} weights"),
        ("K, codewords favoured", f"{plan.favoured:,}"),
        ("bits of a report", f"{plan.bits}"),
        ("bytes up a client and round", f"{size:,} (dense float32: {4 * plan.dimension:,})"),
        ("bytes up a client in all", f"{size * options.rounds:,}"),
        ("efficiency of a report", f"{number(plan.efficiency)}"),
    ]
    if cosine is not None:
        rows.append(("cosine of a round's step", f"{cosine:.3f} from {options.clients:,} reports"))
    return rows


def _beside_signds(
    options: PlanOptions, plan: CodewordPlan, report: Report
) -> list[tuple[str, str]]:
    """Say what SignDS's reports are worth at the same epsilon, with the sizes that it chooses."""
    other = SignDS(options.epsilon).plan(options.params, quiet=True)
    efficiency = other.efficiency
    size = report_length(dimension=other.dimension, dim_out=other.dim_out)
    mine, its, of = plan.efficiency, efficiency, "efficiency of a report"
    cosine = None
    if options.clients is not None:
        cosine = other.cosine_of_sum(options.clients)
        mine, its = plan.cosine_of_sum(options.clients), cosine
        of = f"cosine of {options.clients:,} reports"
    better = "codeword" if mine > its else "signds"
    report.facts["signds"] = {"efficiency": efficiency, "cosine": cosine, "bytes_up": size}
    report.facts["better"] = better
    said = f"efficiency {number(efficiency)}, {size:,} bytes"
    if cosine is not None:
        said = f"{said}, cosine {cosine:.3f}"
    return [("   of SignDS, its sizes chosen", said), ("better", f"{better}, by the {of}")]

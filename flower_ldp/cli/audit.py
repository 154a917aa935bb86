"""``flower-ldp audit``: try to refute the epsilon that a shipped mechanism claims."""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress

from flower_ldp.audit import BUILDERS, AuditResult, Case, Settings, audit_case
from flower_ldp.audit_paths import PATHS, NoSuchClaimError
from flower_ldp.cli.output import Report, command, is_extra, single, wrong
from flower_ldp.parameter_bounds import Bounded

#: What every answer says, since a green line is easily read as a proof.
CAVEAT = (
    "An audit can refute a claim and never prove one: 'not refuted' says only that these events "
    "under these inputs gave no contradiction. The proofs are in the documentation of the "
    "mechanisms."
)
ALL = "all"
_NAMES = ("check", "delta", "lower_bound", "reach", "draws", "event", "refuted", "verdict")
Builders: TypeAlias = Mapping[str, Callable[[Settings], Case]]
app = single()


@command(app, "audit", "flower-ldp audit signds --epsilon 4")
def audit(
    report: Report,
    mechanism: Annotated[str, typer.Argument()],
    epsilon: float = 1.0,
    draws: Annotated[int | None, Bounded("[100, inf)")] = None,
    params: Annotated[int, Bounded("[8, inf)")] = 1_000,
    k: float = 0.2,
    dim_out: Annotated[int, Bounded("[0, inf)")] = 0,
    delta: float = 0.01,
    confidence: Annotated[float, Bounded("(0, 1)")] = 0.999,
) -> None:
    """Draw from a shipped sampler and bound its epsilon from below, beside the claim.

    \b
    MECHANISM is all, or one of
      binary-response, kary-response, subset-selection, rr-with-prior,
      codebook-response,
      unary-encoding, unary-one-hot, codebook-embedding,
      laplace, bounded-mean, example-mean, joint-counts,
      joint-counts-normal, gaussian-means, gaussian, magrr, signds,
      signds-magrr (a round of both), signds-long (crafted long updates),
      codeword, codeword-blocks (a code of about ten blocks),
      account (what releases about client and example tell together),
      gate (an app behind LdpMod, policy, ledger and wire, errors included),
      labels (the store of randomized labels),
      life (an account by zCDP, under a server that adapts),
      dpsgd-release (private training with a canary through LdpMod, policy, ledger
      and wire, and patients whose rows fail; without its extra, all leaves it out).

    The inputs are the worst pair of each mechanism. The bound is Clopper-Pearson's, on an
    event that was chosen on the other half of the draws. Three releases in a row, each with
    fresh operating-system entropy, are checked for repeated noise.

    A refuted claim is what ends it with exit code 1. A package that is missing is wrong usage.

    Parameters
    ----------
    mechanism
        A name of the list above, or all.
    epsilon
        Claimed epsilon per release, above 0 and at most 100.
    draws
        Draws under each input; left out, some seconds' worth of each mechanism.
    params
        signds: entries of the update.
    k
        signds: fraction that counts as largest.
    dim_out
        signds: reported dimensions; 0 to choose.
    delta
        gaussian, gaussian-means, life: claimed delta, in [1e-18, 0.5].
    confidence
        With which all printed bounds hold together.
    """  # noqa: D301  # the help's layout wants the character itself
    builders = {**BUILDERS, **PATHS}
    if mechanism not in (*builders, ALL):
        known = ", ".join((*builders, ALL))
        raise wrong("MECHANISM", f"{mechanism!r} is none of {known}")
    settings = Settings(epsilon=epsilon, dimension=params, k=k, dim_out=dim_out, delta=delta)
    with warnings.catch_warnings():
        # A top set too small to be useful is no less private.
        warnings.filterwarnings("ignore", category=UserWarning, module="flower_ldp")
        found = _run(_cases(builders, mechanism, settings, report), draws, confidence)
    report.facts["confidence"] = confidence
    report.table(
        "checks",
        f"Lower bounds on epsilon per release; {100 * confidence:g} % that all of them hold",
        [
            {
                "mechanism": case.mechanism,
                "claimed_epsilon": result.claimed,
                **{name: getattr(result, name) for name in _NAMES},
            }
            for case, result in found
        ],
        *("mechanism", "check", ("claim", "claimed_epsilon")),
        *(("lower bound", lambda row: f"{row['lower_bound']:.3f}"), "draws", "verdict"),
    )
    report.warn(CAVEAT)
    for name in sorted({case.mechanism for case, result in found if result.refuted}):
        report.problem(f"{name}: the claim is refuted")


def _cases(builders: Builders, mechanism: str, settings: Settings, report: Report) -> list[Case]:
    """Build the cases; of all, those that the epsilon and the installed packages allow."""
    cases = []
    for name in builders if mechanism == ALL else (mechanism,):
        try:
            cases.append(builders[name](settings))
        except (ModuleNotFoundError, ValueError) as error:  # each name has its own
            if mechanism == ALL and (isinstance(error, NoSuchClaimError) or is_extra(error)):
                report.warn(f"{name} is left out: {error}")
            elif isinstance(error, ValueError):
                raise typer.BadParameter(str(error)) from error
            else:
                raise
    return cases


def _run(cases: list[Case], draws: int | None, confidence: float) -> list[tuple[Case, AuditResult]]:
    """Audit the cases, with a bar on a terminal's stderr."""
    console, total = Console(stderr=True), sum(case.checks for case in cases)
    found = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        for case in cases:
            name = case.mechanism.partition(" ")[0]

            def start(check: str, total: int, name: str = name) -> Callable[[int], None]:
                return partial(bar.advance, bar.add_task(f"{name}: {check}", total=total))

            share = 1.0 - (1.0 - confidence) * case.checks / total
            results = audit_case(case, draws, confidence=share, progress=start)
            found += [(case, result) for result in results]
    return found

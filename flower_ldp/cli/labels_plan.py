"""The answer of ``flower-ldp plan labels``: how many labels stay true, and what they cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from flower_ldp.cli.costs import check_count, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.kary_response import KaryResponse
from flower_ldp.mechanisms.subset_selection import (
    MAX_SET_CATEGORIES,
    SubsetSelection,
    mutual_information,
)
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning


@dataclass(frozen=True)
class PlanOptions:
    """What was asked, as the options of ``flower-ldp plan labels`` say it."""

    epsilon: float | None
    keep_probability: float | None
    classes: int
    labels: int | None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.keep_probability is None):
            raise wrong("--epsilon", "give one of --epsilon and --keep-probability")
        if not 2 <= self.classes <= 2**31:
            raise wrong("--classes", f"must be in [2, 2^31], got {self.classes}")
        if self.keep_probability is not None and not 1 / self.classes < self.keep_probability < 1:
            raise wrong(
                "--keep-probability",
                f"must be in (1 / classes, 1) = ({1 / self.classes:g}, 1), "
                f"got {self.keep_probability}",
            )
        check_count("--labels", self.labels, 10**12)

    def mechanism(self) -> KaryResponse:
        """Return the response that keeps a label so often."""
        option, epsilon = "--epsilon", self.epsilon
        if epsilon is None:
            option, keep = "--keep-probability", self.keep_probability or math.nan
            epsilon = math.log(keep * (self.classes - 1)) - math.log1p(-keep)
        try:
            return KaryResponse(epsilon, self.classes, unit=Unit.LABEL)
        except ValueError as error:
            raise wrong(option, str(error)) from error


def answer(options: PlanOptions, report: Report) -> None:
    """Answer all that was asked."""
    mechanism = options.mechanism()
    spent = compose(mechanism.events())[Unit.LABEL]
    keep = mechanism.keep_probability
    # Not 1 - keep, which cancels where epsilon is large.
    flip = (mechanism.categories - 1) * keep * math.exp(-mechanism.epsilon)
    report.facts.update(
        mechanism="kary_response",
        parameters=asdict(options),
        response={
            "keep_probability": keep,
            "flip_rate": flip,
            "each_other": keep * math.exp(-mechanism.epsilon),
        },
        epsilon={"unit": "label", "relation": Unit.LABEL.relation, "once": spent.epsilon},
        meaning={"label": meaning(spent)},
    )
    rows = [
        ("a label stays true", f"with probability {number(keep)}"),
        ("   and is flipped", f"with {number(flip)}, to each other one as often"),
    ]
    if options.labels is not None:
        rows += _labels(options.labels, flip, spent.epsilon, report)
    if mechanism.categories <= MAX_SET_CATEGORIES:
        rows.append(_sets(mechanism, report))
    cost = f"{spent.epsilon:.15g} per label, pure, once: rounds of training add nothing"
    coarser = ("   per example and client", "no promise")
    report.pairs([*rows, ("epsilon", cost), coarser])
    report.line()
    report.line(f"One label: {meaning(spent)}")
    report.line("Features are not protected, nor how many labels there are.")


def _sets(mechanism: KaryResponse, report: Report) -> tuple[str, str]:
    """Answer what sets of labels in place of labels would tell, at the same epsilon."""
    sets = SubsetSelection(mechanism.epsilon, mechanism.categories)
    alone = mutual_information(mechanism.epsilon, mechanism.categories, 1)
    told = sets.mutual_information
    report.facts["subset_selection"] = {
        "size": sets.size,
        "keep_probability": sets.keep_probability,
        "information": told,
        "information_kary": alone,
    }
    if sets.size == 1:
        return "subset selection", "tells no more: at this epsilon sets of one label are best"
    return (
        "subset selection",
        f"sets of {sets.size} hold it with probability {sets.keep_probability:.3g} and tell "
        f"{told / alone:.3g} times as much",
    )


def _labels(labels: int, flip: float, epsilon: float, report: Report) -> list[tuple[str, str]]:
    whole = PrivacySpent(Unit.CLIENT, epsilon * labels)
    report.facts["labels"] = {
        "number": labels,
        "flipped": flip * labels,
        "epsilon_each": epsilon,
        "epsilon_if_all_change": whole.epsilon,
    }
    return [
        (f"of {labels:,} labels", f"{number(flip * labels)} are expected to be flipped"),
        (
            "   what they cost",
            f"epsilon {epsilon:.15g} each: every label has noise of its own",
        ),
        (
            "   if all may change",
            f"epsilon {number(whole.epsilon)} for all of them together",
        ),
    ]

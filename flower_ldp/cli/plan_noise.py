"""``flower-ldp plan gaussian``, ``laplace`` and ``labels``: noise on updates, rows and labels."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from flower_ldp.accounting.composition import composed_epsilon
from flower_ldp.cli import plan_costs as costs
from flower_ldp.cli.output import Report, usage, wrong
from flower_ldp.facts import Fact, keyed, note
from flower_ldp.mechanisms import (
    KaryResponse,
    Laplace,
    LaplacePlan,
    NoProtectionWarning,
)
from flower_ldp.mechanisms.gaussian import Gaussian, classical_deviation, gaussian_delta
from flower_ldp.mechanisms.labels import MAX_SET_CATEGORIES, SubsetSelection, mutual_information
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import PrivacySpent, Unit, compose
from flower_ldp.wire.evaluation import EvalProposal, eval_report_length

_LEAST_DELTA = 1e-12


@dataclass(frozen=True)
class GaussianRun:
    """Plan normal noise on clipped updates: how much, and what rounds come to together.

    The noise is that of the exact curve, for updates up to 2 C apart. Beside it stands the
    textbook's formula, with the delta that it really has.

    Parameters
    ----------
    epsilon
        Per round and client, in [0.001, 100].
    delta
        Per round and client, in [1e-18, 0.5].
    clip_norm
        Length to which longer updates are scaled, C.
    rounds
        Rounds, each of which asks the client.
    total_delta
        Of all rounds together; the sum if left out.
    params
        Trained weights, or a subspace's dimensions; for the bytes.
    clients
        Clients of a round.
    """

    epsilon: float
    delta: float
    clip_norm: float = 1.0
    rounds: costs.Rounds = 1
    total_delta: Annotated[float | None, Bounded("[1e-12, 1)")] = None
    params: costs.PerhapsCount = None
    clients: costs.PerhapsCount = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        mechanism = Gaussian(self.epsilon, self.delta, self.clip_norm)
        costs.warn_of_delta(self.delta, self.clients, report)
        textbook = classical_deviation(self.epsilon, self.delta)
        true = gaussian_delta(self.epsilon, 1.0 / textbook)
        theirs = 2.0 * self.clip_norm * textbook
        told = "more than asked for" if true > self.delta else "less than asked for: needless noise"
        params, rounds = self.params, self.rounds
        report.facts.update(mechanism="gaussian", parameters=asdict(self))
        report.tell(
            *mechanism.describe(),
            *costs.mean_of(mechanism.deviation, self.clients, "reports"),
            Fact("noise.textbook_deviation", theirs, "   by the textbook", ", 2C as distance"),
            Fact("noise.textbook_delta", true, "   its true delta", f", {told}"),
            *([] if params is None else costs.bytes_up(1 + params, rounds, params)),
        )
        (event,) = mechanism.events()
        sums = compose([replace(event, count=self.rounds)])[Unit.CLIENT]
        together = self._together(mechanism.shift, sums, report)
        after = f", after {self.rounds:,} rounds, a sum"
        facts = costs.price(sums, "total_sum", "in all", after, meant="total")
        facts += keyed("epsilon", total_composed=None, total_composed_delta=None)
        if together is not None:
            fixed, law = " (if rounds and noise are fixed beforehand)", "   by the normal law"
            facts += costs.price(together, "total_composed", law, fixed, meant="total")
            facts += keyed("epsilon", total_composed_delta=together.delta)
        delta = sums.delta if self.total_delta is None else self.total_delta
        if 0.0 < delta < 1.0:
            facts += costs.by_zcdp([replace(event, count=self.rounds)], delta)
        facts += [*keyed("epsilon", total_sum_delta=sums.delta), costs.FINER_UNITS]
        report.tell(*facts, *costs.price(compose([event])[Unit.CLIENT], "round", "epsilon a round"))

    def _together(self, shift: float, pure: PrivacySpent, report: Report) -> PrivacySpent | None:
        """Return the epsilon of all rounds on one curve, at the sum's delta if none is asked."""
        delta = pure.delta if self.total_delta is None else self.total_delta
        if pure.delta >= 1:
            report.warn(f"the rounds' deltas add up to {pure.delta:g}: their sum says nothing")
        if not _LEAST_DELTA <= delta < 1:
            return None
        epsilon = composed_epsilon([shift] * self.rounds, delta=delta)
        if math.isinf(epsilon):
            report.warn("on the normal law's curve the epsilon of all rounds is above 100")
            return None
        return PrivacySpent(Unit.CLIENT, epsilon, delta)


@dataclass(frozen=True)
class LaplaceNoise:
    """Plan Laplace noise on rows of probabilities: which noise gives which epsilon, and back.

    A row may change in any way, by up to 2 in the sum of its changes: the true epsilon is twice the
    one that is published for the same noise.

    Parameters
    ----------
    epsilon
        True epsilon, per row and client, in [1e-6, 1e6].
    noise_below
        In place of it: bound on the noise, kept with --probability.
    published_epsilon
        In place of it: one over the noise's scale, as texts publish it.
    probability
        How often noise is below the bound.
    classes
        Probabilities in a row; for the bytes.
    rows
        Rows of a client in a round.
    rounds
        Rounds, each of which asks the client.
    clients
        Clients of a round.
    delta
        Of the bound by privacy loss distributions.
    """

    epsilon: float | None = None
    noise_below: float | None = None
    published_epsilon: float | None = None
    probability: costs.Share = 0.9
    classes: Annotated[int | None, Bounded("[2, 1048576]")] = None
    rows: Annotated[int, Bounded("[1, 1048576]")] = 1
    rounds: costs.Rounds = 1
    clients: costs.PerhapsCount = None
    delta: costs.Share = 1e-5

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        plan, mechanism = self._chosen(report)
        reports = None if self.clients is None else self.clients * self.rows
        report.facts.update(mechanism="laplace", parameters=asdict(self))
        facts = costs.laplace_noise(plan, self.probability)
        facts += costs.mean_of(math.sqrt(2.0) * plan.scale, reports, "rows of a round")
        if self.classes is not None:
            facts += costs.bytes_up(eval_report_length(EvalProposal(mechanism, {})), self.rounds)
        report.tell(*facts)
        report.tell(*costs.composed(mechanism.events(), self.rounds, self.delta))

    def _chosen(self, report: Report) -> tuple[LaplacePlan, Laplace]:
        """Return the setting that was named in one of three ways, and its mechanism."""
        names = ("epsilon", "published_epsilon", "noise_below")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise wrong("--epsilon", "give one of --epsilon, --noise-below and --published-epsilon")
        option = "--" + given[0].replace("_", "-")
        with usage(option), report.warnings_of(NoProtectionWarning):
            if self.noise_below is not None:
                plan = LaplacePlan.from_noise(self.noise_below, self.probability)
            elif self.published_epsilon is not None:
                plan = LaplacePlan.from_published(self.published_epsilon)
            else:
                plan = LaplacePlan(self.epsilon or 0.0)
            return plan, Laplace(plan.epsilon, self.classes or 2, self.rows)


@dataclass(frozen=True)
class RandomizedLabels:
    """Plan randomized labels: how many stay true, and what that costs each of them.

    K-ary randomized response, which needs no prior, and what sets of labels would tell at the same
    price. Each label is randomized once: its cost does not grow with the training.

    Parameters
    ----------
    classes
        Number of different labels.
    epsilon
        Per label, once, in (0, 100].
    keep_probability
        In place of it: how often a label stays true.
    labels
        Labels of a client, or of all of them.
    """

    classes: Annotated[int, Bounded("[2, 2147483648]")]
    epsilon: float | None = None
    keep_probability: float | None = None
    labels: Annotated[int | None, Bounded("[1, 1000000000000]")] = None

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        mechanism = self._mechanism()
        keep, spent = mechanism.keep_probability, compose(mechanism.events())[Unit.LABEL]
        other = keep * math.exp(-mechanism.epsilon)
        # Not 1 - keep, which cancels where epsilon is large.
        flip = (mechanism.categories - 1) * other
        report.facts.update(mechanism="kary_response", parameters=asdict(self))
        report.tell(
            Fact("response.keep_probability", keep, "chance that a label stays true"),
            Fact("response.flip_rate", flip, "   that it is flipped", ", to each other alike"),
            Fact("response.each_other", other),
            *self._all(flip, spent.epsilon),
            *_sets(mechanism),
            *costs.price(spent, "once", "epsilon", ", once: training adds nothing", meant="label"),
            note("not protected", "features, how many labels there are, and a client as a whole"),
        )

    def _mechanism(self) -> KaryResponse:
        if (self.epsilon is None) == (self.keep_probability is None):
            raise wrong("--epsilon", "give one of --epsilon and --keep-probability")
        epsilon, keep = self.epsilon, self.keep_probability
        if keep is not None:
            check_in(f"({1 / self.classes}, 1)", "keep_probability", keep)
            epsilon = math.log(keep * (self.classes - 1)) - math.log1p(-keep)
        return KaryResponse(epsilon or 0.0, self.classes, unit=Unit.LABEL)

    def _all(self, flip: float, epsilon: float) -> list[Fact]:
        """Say what becomes of all labels, if their number is given."""
        if self.labels is None:
            return []
        flipped, in_all = flip * self.labels, epsilon * self.labels
        own, together = " each: every label has noise of its own", " for all of them together"
        return [
            Fact("labels.number", self.labels, "labels"),
            Fact("labels.flipped", flipped, "   expected to be flipped"),
            Fact("labels.epsilon_each", epsilon, "   epsilon of each", own),
            Fact("labels.epsilon_if_all_change", in_all, "   epsilon if all may change", together),
        ]


def _sets(mechanism: KaryResponse) -> list[Fact]:
    """Say what sets of labels would tell, at the same epsilon."""
    if mechanism.categories > MAX_SET_CATEGORIES:
        return []
    sets = SubsetSelection(mechanism.epsilon, mechanism.categories)
    alone = mutual_information(mechanism.epsilon, mechanism.categories, 1)
    times = sets.mutual_information / alone if alone else 1.0  # of hardly any epsilon, nothing
    holds = f"sets of {sets.size} hold it with probability {sets.keep_probability:.3g}"
    told = f"{holds} and tell {times:.3g} times as much"
    if sets.size == 1:
        told = "tells no more: at this epsilon sets of one label are best"
    return [
        Fact("subset_selection.size", sets.size, "subset selection", text=told),
        *keyed("subset_selection", keep_probability=sets.keep_probability),
        *keyed("subset_selection", information=sets.mutual_information, information_kary=alone),
    ]

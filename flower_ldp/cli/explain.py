"""``flower-ldp explain``: what a setting of other software gives, by the exact curve."""

import math
import warnings
from dataclasses import asdict, dataclass
from typing import Annotated, TypeAlias

from flower_ldp.cli.output import File, Report, command, group
from flower_ldp.cli.plan_costs import Count, Rounds, price
from flower_ldp.config import (
    DPEncryptConfig,
    LaplaceEvalConfig,
    SignDSConfig,
    VerticalConfig,
    load_config,
    load_vertical_config,
)
from flower_ldp.facts import Fact, keyed, note, number
from flower_ldp.mechanisms import NoProtectionWarning, gaussian
from flower_ldp.parameter_bounds import Bounded, check_in
from flower_ldp.privacy import PrivacySpent, Unit, at_least, meaning
from flower_ldp.strategies import other_software
from flower_ldp.yaml_source import section_names

_LOCALDP = "localdp --clipping-norm 1 --sensitivity 1 --epsilon 10 --delta 1e-5"
_CENTRAL = "central --noise-multiplier 1 --sampled-clients 20 --delta 1e-5"
_MINDSPORE = "flower-ldp explain mindspore dp_encrypt.yaml --rounds 100"
app = group(_MINDSPORE)

#: From about 34 on, MindSpore's bits and labels are flipped with a probability of 0 in its floats.
_MOST_EPS = 30.0
#: What software passes on as it is.
_LOCAL_RAW = (
    "metrics and numbers of examples, replies to evaluate and query messages, arrays without a "
    "dimension (as BatchNorm's counter) or of integers, an update with a NaN in it, and the error "
    "of a client whose update is exactly zero"
)
_CENTRAL_RAW = (
    "the server and all who see what arrives there: it is for the models alone. Nor metrics, "
    "numbers of examples, how many clients answered, the error at an update that is exactly zero, "
    "arrays without a dimension and updates with a NaN in them"
)
_MINDSPORE_RAW = "the number of examples, and an update of zeros, at which no model is sent"
_CENTRAL_COVERED = (
    "the models that the server hands out, if it adds its noise as it says around FedAvg (one "
    "client can move a step or a median further), and if all clients of a round answer"
)
_ADAPTIVE = (
    "adaptive clipping: the noise is made for the clip after its update; where that shrank, the "
    "true epsilon is larger. For zeros in place of one it is larger still: whether a client was "
    "clipped is 0 or 1, and the noise on it is made for half of that"
)
_RENYI = " (Renyi; as zeros for one)"
#: Where an epsilon is read off (Balle and Wang 2018, Theorem 8).
_CURVE = note("curve", "delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)")
#: A size of which what is made is neither infinite nor zero.
Size: TypeAlias = Annotated[float, Bounded("[1e-30, 1e30]")]
Delta: TypeAlias = Annotated[float, Bounded("[1e-18, 1)")]


def _bound(epsilon: float) -> str:
    return at_least(epsilon, 7) if math.isfinite(epsilon) else "none: there is no noise"


def _finite(value: float) -> float | None:
    """Return a number for JSON, which has no infinity."""
    return value if math.isfinite(value) else None


def _worth(epsilon: float, delta: float) -> str | None:
    return meaning(PrivacySpent(Unit.CLIENT, epsilon, delta)) if math.isfinite(epsilon) else None


def _noise(
    noise: other_software.NormalNoise, epsilon: float, delta: float, rounds: int, made: str
) -> list[Fact]:
    """Return the true epsilon beside the stated one, and the noise that would keep that.

    ``noise`` is that of each of ``rounds`` messages; ``made`` says how its deviation is computed.
    """
    one, total = noise.epsilon(delta), noise.epsilon(delta, rounds)
    worth = {"round": _worth(one, delta), "total": _worth(total, delta)}
    of = f"mu = {_bound(noise.shift)}" + (" = distance / deviation" if noise.deviation else "")
    opposite = ": clipped updates may point in opposite directions"
    several = f"   of {rounds:,} messages" if rounds > 1 else ""
    once = f"{_bound(one)} at delta {delta:g}, per client and message"
    true = needed = None
    if gaussian.SMALLEST_EPSILON <= epsilon <= gaussian.LARGEST_EPSILON:
        true = gaussian.gaussian_delta(epsilon, noise.shift) if noise.deviation else 1.0
        if delta <= gaussian.LARGEST_DELTA:
            needed = noise.distance / gaussian.largest_shift(epsilon, delta)
    told = "" if true is None else f"{at_least(true, 7)}, of one message"
    keeps = "" if needed is None else f"deviation {at_least(needed, 7)} would keep what is stated"
    return [
        *keyed("epsilon", unit=Unit.CLIENT.value, relation=Unit.CLIENT.relation, delta=delta),
        Fact("epsilon.stated", epsilon, "stated", f", delta {delta:g}"),
        Fact("noise.deviation", noise.deviation, "deviation of the noise", f", {made}"),
        Fact("noise.distance", noise.distance, "distance", opposite),
        Fact("noise.shift", _finite(noise.shift), "shift", text=of),
        _CURVE,
        Fact("epsilon.round", _finite(one), "true epsilon", text=once),
        Fact("epsilon.total", _finite(total), several, text=f"{_bound(total)} for all together"),
        Fact("epsilon.delta_at_stated", true, f"delta of epsilon {epsilon:g}", text=told),
        Fact("noise.needed_deviation", needed, "needed", text=keeps),
        Fact("meaning", worth),
        note("in all", worth["total"] or "Without noise nothing is protected."),
    ]


@command(app, "localdp", f"flower-ldp explain {_LOCALDP}")
@dataclass(frozen=True)
class LocalDp:
    """Say what Flower's LocalDpMod gives: its noise, and the epsilon that this noise has.

    LocalDpMod makes its noise from the sensitivity that it is told, which does not follow from the
    clip. Two clipped updates may be 2 clipping norms apart.

    Parameters
    ----------
    clipping_norm
        As to LocalDpMod.
    sensitivity
        As to LocalDpMod: 0, or in [1e-30, 1e30].
    epsilon
        As to LocalDpMod.
    delta
        As to LocalDpMod.
    rounds
        Rounds, each of which asks the client.
    """

    clipping_norm: Size
    sensitivity: float
    epsilon: Size
    delta: Delta
    rounds: Rounds = 1

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        clip, told = self.clipping_norm, self.sensitivity
        if told != 0:
            check_in("[1e-30, 1e30]", "sensitivity", told)
        noise = other_software.local_dp_mod(clip, told, self.epsilon, self.delta)
        made = "sensitivity x sqrt(2 ln(1.25 / delta)) / epsilon"
        if 0 < told < 2.0 * clip:
            of = f"a clip of {clip:g} has one of {number(2.0 * clip)}"
            report.warn(f"the sensitivity is {told:g}, and {of}")
        report.facts.update(software="LocalDpMod", parameters=asdict(self))
        report.line("Flower's LocalDpMod: clipped, and normal noise added at the client")
        report.tell(
            *_noise(noise, self.epsilon, self.delta, self.rounds, made),
            note("covers", "the arrays of one reply, all of a client's data replaced by any other"),
            Fact("not_covered", _LOCAL_RAW, "not covered"),
        )


@command(app, "central", f"flower-ldp explain {_CENTRAL}")
@dataclass(frozen=True)
class Central:
    """Say what Flower's central wrappers give: DifferentialPrivacyServerSideFixedClipping etc.

    They protect the model that is handed out, not what a client sends: the server sees each update.
    Sampling amplifies nothing here, since the server sees who takes part.

    Parameters
    ----------
    noise_multiplier
        As to the wrapper.
    sampled_clients
        num_sampled_clients of the wrapper.
    delta
        Of all rounds together.
    rounds
        Rounds, each of which asks the client.
    clients
        Clients that there are; by default those of a round.
    largest_share
        Largest client's share of a round's examples, in (0, 1]; by default all have as many. FedAvg
        weighs by examples.
    adaptive
        The wrapper is one with adaptive clipping.
    """

    noise_multiplier: Size
    sampled_clients: Count
    delta: Delta
    rounds: Rounds = 1
    clients: int | None = None
    largest_share: float | None = None
    adaptive: bool = False

    def answer(self, report: Report) -> None:
        """Answer all that was asked."""
        sampled, delta = self.sampled_clients, self.delta
        clients = sampled if self.clients is None else self.clients
        check_in(f"[{sampled}, 4294967295]", "clients", clients, int)
        # What the largest client weighs, over what it would if all weighed the same.
        weight = 1.0
        if self.largest_share is not None:
            check_in(f"[{1 / sampled}, 1]", "largest_share", self.largest_share)
            weight = self.largest_share * sampled
        one = other_software.central_wrapper(self.noise_multiplier, weight, replace=True)
        zeros = other_software.central_wrapper(self.noise_multiplier, weight, replace=False)
        total, total_zeros = (noise.epsilon(delta, self.rounds) for noise in (one, zeros))
        each = self.noise_multiplier / weight
        theirs = other_software.flowers_epsilon(each, self.rounds, delta, sampled, clients)
        if theirs is None:
            report.warn("Flower's own accountant is not installed: pip install 'flwr[dp]'")
        if self.adaptive:
            report.warn(_ADAPTIVE)
        of = f" x clip / {sampled}"
        left = f"{_bound(total_zeros)}: the mean divides as before"
        shift = f"mu = {_bound(one.shift)} if one is replaced, times the root of {self.rounds:,}"
        spent = PrivacySpent(Unit.CLIENT, total, delta)
        after = f" after {self.rounds:,} rounds, one replaced or left out"
        report.facts.update(software="central wrappers", parameters=asdict(self))
        report.line("Flower's central wrappers: clipped and averaged; the server adds normal noise")
        report.tell(
            Fact("noise.multiplier", self.noise_multiplier, "noise of each entry", of),
            Fact("noise.weight", weight, "a client weighs", f"{of} at most"),
            note("shift", shift),
            _CURVE,
            Fact("epsilon.round_replace_one", one.epsilon(delta)),
            Fact("epsilon.round_zero_one", zeros.epsilon(delta)),
            *price(spent, "total_replace_one", "epsilon", after, meant="total"),
            Fact("epsilon.total_zero_one", total_zeros, "   zeros for one", text=left),
            Fact("epsilon.total_flower", theirs, "   by Flower's accountant", _RENYI),
            note("covers", _CENTRAL_COVERED),
            Fact("not_covered", _CENTRAL_RAW, "not covered"),
        )


@command(app, "mindspore", _MINDSPORE)
def mindspore(report: Report, file: File, rounds: int | None = None) -> None:
    """Say what a file gives when MindSpore Federated runs it.

    What this package makes of the same file is told by config check.

    Parameters
    ----------
    file
        YAML file with the section encrypt or privacy.
    rounds
        Rounds, each of which asks the client, or passes over the data (privacy); by default the
        file's, or 1.
    """
    if rounds is not None:
        check_in("[1, 1000000]", "rounds", rounds, int)
    if "privacy" in section_names(file):
        _vertical(load_vertical_config(file), rounds, report)
        return
    # What protects nothing is said below.
    with warnings.catch_warnings(action="ignore", category=NoProtectionWarning):
        read = load_config(file)
    chosen, rounds = read.encrypt, rounds or read.fl_iteration_num or 1
    kind, section = chosen.encrypt_train_type, chosen.protection()
    report.facts.update(software="MindSpore Federated", encrypt_train_type=kind, rounds=rounds)
    report.facts["privacy_eval_type"] = chosen.privacy_eval_type
    report.line(f"{file}: {kind or 'NOT_ENCRYPT'}, as MindSpore Federated runs it")
    if kind in (None, "NOT_ENCRYPT"):
        report.line("Training: the models leave as they are, at no epsilon.", epsilon=None)
    elif isinstance(section, SignDSConfig):
        _signds(section, rounds, report)
    elif isinstance(section, DPEncryptConfig):
        epsilon, delta = section.dp_eps, section.dp_delta
        noise = other_software.mindspore_dp(section.dp_norm_clip, epsilon, delta)
        report.tell(
            Fact("parameters", section.model_dump(include={"dp_eps", "dp_delta", "dp_norm_clip"})),
            *_noise(noise, epsilon, delta, rounds, "exact for updates one clip apart"),
            note("covers", "the weights of one message"),
            Fact("not_covered", _MINDSPORE_RAW, "not covered"),
        )
    else:
        report.problem(f"{kind} is this package's own, not MindSpore's: see config check")
    if chosen.privacy_eval_type == "LAPLACE":
        _evaluation(chosen.laplace_eval, rounds, report)


def _vertical(read: VerticalConfig, rounds: int | None, report: Report) -> None:
    """State the epsilons of a party's file: embeddings and labels are drawn anew in each pass."""
    passes = rounds or read.epochs or 1
    embedding, labels = read.privacy.embedding_dp, read.privacy.label_dp
    report.facts.update(software="MindSpore Federated", rounds=passes)
    report.line("A party of split learning, as MindSpore Federated runs it")
    if embedding is not None and not 0 < embedding.eps <= _MOST_EPS:
        none = "none: at 0 no noise is added, and above 30 its probabilities are rounded to 0"
        report.tell(
            Fact("embedding.stated", float(embedding.eps), "embeddings, stated"),
            Fact("embedding.entry", None, "   true epsilon", text=none),
        )
    elif embedding is not None:
        eps = float(embedding.eps)
        in_all = number(passes * eps / 2)
        report.tell(
            Fact("embedding.stated", eps, "embeddings, stated", ", of a record that is one-hot"),
            Fact("embedding.entry", eps / 2, "   true epsilon", " per entry, and entries add up"),
            note("   of other records", f"width x {number(eps / 2)} a pass, per record, pure"),
            note(
                "   in all", f"width x {in_all} in {passes:,} passes: bits are drawn anew in each"
            ),
        )
    if labels is not None and labels.eps > _MOST_EPS:
        none = "none: above 30 the chance of a flip is rounded to 0"
        report.tell(
            Fact("labels.stated", float(labels.eps), "labels, stated"),
            Fact("labels.total", None, "   in all", text=none),
        )
    elif labels is not None:
        eps = float(labels.eps)
        total = PrivacySpent(Unit.LABEL, passes * eps)
        text = f" in {passes:,} passes: labels are flipped anew in each"
        report.tell(
            Fact("labels.stated", eps, "labels, stated", ", of one draw of a label of two"),
            Fact("labels.total", total.epsilon, "   in all", text),
            Fact("labels.meaning", meaning(total), "   that is"),
            Fact("labels.total_of_many", 2 * total.epsilon, "   of more than two", ", at most"),
        )


def _signds(signds: SignDSConfig, rounds: int, report: Report) -> None:
    epsilon = signds.sign_eps
    one, total = (PrivacySpent(Unit.CLIENT, epsilon * times) for times in (1, rounds))
    unnamed = "the file does not name its epsilon: at the same one a round costs twice as much"
    report.warn(f"the magnitude bit (MagRR) leaves in the same report, and {unnamed}")
    report.tell(
        Fact("parameters", {"sign_eps": epsilon}),
        Fact("epsilon.stated", epsilon),
        *price(one, "round", "epsilon a round", ", of the selection: as stated"),
        *price(total, "total", "   in all", f", after {rounds:,} rounds, a sum"),
    )


def _evaluation(laplace: LaplaceEvalConfig, rounds: int, report: Report) -> None:
    stated, true, rows = laplace.laplace_eval_eps, laplace.epsilon, laplace.rows
    total = PrivacySpent(Unit.CLIENT, true * rows * rounds)
    in_all = f" for {rows:,} rows in {rounds:,} evaluations"
    twice = " per row and client, pure: twice what is stated"
    report.tell(
        note("evaluation", "LAPLACE"),
        Fact("evaluation.stated", stated, "stated epsilon", " = 1 / the noise's scale"),
        note("distance", "2: two rows of probabilities may be so far apart, in sums of changes"),
        Fact("evaluation.row", true, "true epsilon", twice),
        Fact("evaluation.round", true * rows),
        Fact("evaluation.total", total.epsilon, "   in all", in_all),
        Fact("evaluation.meaning", meaning(total), "   that is"),
    )

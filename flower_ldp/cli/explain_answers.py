"""The answers of ``flower-ldp explain localdp`` and ``central``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from flower_ldp.advice.present import NormalNoise, central_wrapper, local_dp_mod
from flower_ldp.cli.costs import check_count, wrong
from flower_ldp.cli.output import Report, number
from flower_ldp.mechanisms.gaussian_law import (
    LARGEST_DELTA,
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    gaussian_delta,
    largest_shift,
)
from flower_ldp.privacy import PrivacySpent, Unit, at_least, meaning
from flower_ldp.strategies.flowers_accountant import flowers_epsilon

#: What LocalDpMod passes on as it is.
_RAW = (
    "metrics and numbers of examples, replies to evaluate and query messages, arrays without a "
    "dimension (as BatchNorm's counter: neither clipped nor noised) and of integers, an update "
    "with a NaN in it, which is not clipped, and the error of a client whose update is exactly "
    "zero: they leave at no epsilon"
)
_CENTRAL_RAW = (
    "the server and all who see what arrives there, at no epsilon; nor metrics, nor numbers of "
    "examples, nor how many clients answered, nor the error at an update that is exactly zero; nor "
    "arrays without a dimension and updates with a NaN in them, which are not clipped"
)


#: Where an epsilon is read off (Balle and Wang 2018, Theorem 8).
CURVE = "delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)"


#: Of sizes that are asked for: what is made of them is neither infinite nor zero then.
_LEAST, _MOST = 1e-30, 1e30


def check_size(option: str, value: float) -> None:
    """Raise unless a number is positive, and of a size that can be computed with."""
    if not _LEAST <= value <= _MOST:
        raise wrong(option, f"must be in [{_LEAST:g}, {_MOST:g}], got {value}")


def _check_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise wrong("--delta", f"must be in [{SMALLEST_DELTA:g}, 1), got {delta}")


def finite(value: float) -> float | None:
    """Return a number for JSON, which has no infinity: None in its place."""
    return value if math.isfinite(value) else None


def told(epsilon: float) -> str:
    """Return an epsilon for reading, rounded up."""
    return at_least(epsilon, 7) if math.isfinite(epsilon) else "none: there is no noise"


def _shift(noise: NormalNoise) -> str:
    found = told(noise.shift)
    return f"mu = {found} = distance / deviation" if noise.deviation else found


def tell_noise(
    noise: NormalNoise, epsilon: float, delta: float, rounds: int, report: Report
) -> None:
    """Say what noise gives beside what was stated, and what would keep that.

    Parameters
    ----------
    noise : NormalNoise
        Of one message.
    epsilon, delta : float
        As stated.
    rounds : int
        Messages of one client.
    report : Report
        Gets the lines, and the keys ``noise``, ``epsilon``, ``needed`` and ``meaning``.
    """
    one, total = noise.epsilon(delta), noise.epsilon(delta, rounds)
    in_curve = SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON
    true_delta = None
    if in_curve:
        true_delta = gaussian_delta(epsilon, noise.shift) if noise.deviation else 1.0
    needed = None
    if in_curve and delta <= LARGEST_DELTA:
        needed = noise.distance / largest_shift(epsilon, delta)
    report.facts["noise"] = {
        "deviation": noise.deviation,
        "distance": noise.distance,
        "shift": finite(noise.shift),
        "needed_deviation": needed,
    }
    report.facts["epsilon"] = {
        "unit": Unit.CLIENT.value,
        "relation": Unit.CLIENT.relation,
        "stated": epsilon,
        "round": finite(one),
        "total": finite(total),
        "delta": delta,
        "delta_at_stated": true_delta,
    }
    rows = [
        ("distance", f"{number(noise.distance)}: clipped updates may point in opposite directions"),
        ("shift", _shift(noise)),
        ("curve", CURVE),
        ("true epsilon", f"{told(one)} at delta {delta:g}, per client and message"),
    ]
    if rounds > 1:
        rows.append(
            (f"   of {rounds:,} messages", f"{told(total)} at delta {delta:g} for all together")
        )
    if true_delta is not None:
        rows.append((f"delta of epsilon {epsilon:g}", f"{at_least(true_delta, 7)}, of one message"))
    if needed is not None:
        text = f"deviation {at_least(needed, 7)} would keep epsilon {epsilon:g}, delta {delta:g}"
        rows.append(("needed", text))
    report.pairs(rows)
    spent = {
        name: meaning(PrivacySpent(Unit.CLIENT, value, delta)) if math.isfinite(value) else None
        for name, value in (("round", one), ("total", total))
    }
    report.facts["meaning"] = spent
    report.line()
    report.line(f"In all: {spent['total'] or 'Without noise nothing is protected.'}")


@dataclass(frozen=True)
class LocalDp:
    """What was asked, as the options of ``flower-ldp explain localdp`` say it."""

    clipping_norm: float
    sensitivity: float
    epsilon: float
    delta: float
    rounds: int

    def __post_init__(self) -> None:
        check_size("--clipping-norm", self.clipping_norm)
        check_size("--epsilon", self.epsilon)
        if self.sensitivity != 0:
            check_size("--sensitivity", self.sensitivity)
        _check_delta(self.delta)
        check_count("--rounds", self.rounds)


def local_dp(options: LocalDp, report: Report) -> None:
    """Answer for Flower's ``LocalDpMod``."""
    noise = local_dp_mod(options.clipping_norm, options.sensitivity, options.epsilon, options.delta)
    report.facts.update(software="LocalDpMod", parameters=asdict(options))
    report.line("Flower's LocalDpMod: clipped, and normal noise added at the client")
    formula = "sensitivity x sqrt(2 ln(1.25 / delta)) / epsilon"
    report.pairs(
        [
            ("stated", f"epsilon {options.epsilon:g}, delta {options.delta:g}"),
            ("noise of each entry", f"deviation {number(noise.deviation)} = {formula}"),
        ]
    )
    tell_noise(noise, options.epsilon, options.delta, options.rounds, report)
    if 0 < options.sensitivity < 2.0 * options.clipping_norm:
        least = number(2.0 * options.clipping_norm)
        report.warn(
            f"the sensitivity is {options.sensitivity:g}, and a clip of "
            f"{options.clipping_norm:g} has one of {least}"
        )
    report.line("Covers: the arrays of one reply, all of a client's data replaced by any other.")
    report.line(f"Not covered: {_RAW}.")
    report.facts["not_covered"] = _RAW


@dataclass(frozen=True)
class Central:
    """What was asked, as the options of ``flower-ldp explain central`` say it."""

    noise_multiplier: float
    sampled_clients: int
    delta: float
    rounds: int
    clients: int | None
    largest_share: float | None
    adaptive: bool

    def __post_init__(self) -> None:
        check_size("--noise-multiplier", self.noise_multiplier)
        _check_delta(self.delta)
        check_count("--sampled-clients", self.sampled_clients, 2**32 - 1)
        check_count("--clients", self.clients, 2**32 - 1)
        check_count("--rounds", self.rounds)
        if self.clients is not None and self.clients < self.sampled_clients:
            raise wrong("--clients", f"must be at least {self.sampled_clients}, those of a round")
        least = 1 / self.sampled_clients
        if self.largest_share is not None and not least <= self.largest_share <= 1:
            raise wrong("--largest-share", f"must be in [{least:.6g}, 1], got {self.largest_share}")

    @property
    def weight(self) -> float:
        """What the largest client weighs, over what it would if all weighed the same."""
        return 1.0 if self.largest_share is None else self.largest_share * self.sampled_clients


def central(options: Central, report: Report) -> None:
    """Answer for Flower's central wrappers."""
    found = {
        name: central_wrapper(options.noise_multiplier, options.weight, replace=replace)
        for name, replace in (("replace_one", True), ("zero_one", False))
    }
    totals = {name: noise.epsilon(options.delta, options.rounds) for name, noise in found.items()}
    theirs = flowers_epsilon(
        options.noise_multiplier / options.weight,
        options.rounds,
        options.delta,
        options.sampled_clients,
        options.clients or options.sampled_clients,
    )
    report.facts.update(
        software="central wrappers",
        parameters=asdict(options),
        noise={"multiplier": options.noise_multiplier, "weight": options.weight},
        epsilon={
            "unit": Unit.CLIENT.value,
            "delta": options.delta,
            **{f"round_{name}": noise.epsilon(options.delta) for name, noise in found.items()},
            **{f"total_{name}": total for name, total in totals.items()},
            "total_flower": theirs,
        },
        not_covered=_CENTRAL_RAW,
    )
    report.line(
        "Flower's central wrappers: clipped, averaged, and normal noise added by the server"
    )
    shift = found["replace_one"].shift
    every = f"at delta {options.delta:g} after {options.rounds:,} rounds"
    rows = [
        ("noise of each entry", f"{options.noise_multiplier:g} x clip / {options.sampled_clients}"),
        ("a client weighs", f"{options.weight:g} x clip / {options.sampled_clients} at most"),
        (
            "shift",
            f"mu = {told(shift)} if one is replaced: twice the weight over the noise",
        ),
        ("   of all rounds", f"times the root of {options.rounds:,}"),
        ("curve", CURVE),
        ("epsilon", f"{told(totals['replace_one'])} {every}, one replaced or left out"),
        ("   zeros for one", f"{told(totals['zero_one'])} {every}: the mean divides as before"),
    ]
    if theirs is not None:
        rows.append(("   by Flower's accountant", f"{number(theirs)} (Renyi; as zeros for one)"))
    report.pairs(rows)
    spent = meaning(PrivacySpent(Unit.CLIENT, totals["replace_one"], options.delta))
    report.facts["meaning"] = {"total": spent}
    if theirs is None:
        report.warn("Flower's own accountant is not installed: pip install 'flwr[dp]'")
    if options.adaptive:
        report.warn(
            "adaptive clipping: the noise is made for the clip after its update, and a clip that "
            "shrank in the round had more; the true epsilon is larger by what it shrinks. For "
            "zeros in place of one it is larger still: whether a client was clipped counts as 0 or "
            "1, and its noise is made for half of that"
        )
    report.line()
    report.line(f"In all: {spent}")
    report.line(
        "Covers: the models that the server hands out, if it adds its noise as it says, if the "
        "wrapper is around FedAvg (others make a step or a median of the updates, which one client "
        f"can move further), and if all {options.sampled_clients:,} clients of a round answer: "
        "where fewer do, each weighs more."
    )
    report.line(f"Not covered: {_CENTRAL_RAW}.")

"""What ``flower-ldp config check`` says of each kind of configuration."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from flower_ldp.cli.config_embedding import embedding_dp
from flower_ldp.cli.config_encrypt import encrypt
from flower_ldp.cli.output import Report, number
from flower_ldp.config import SECTIONS, load_dpsgd_config, load_label_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.mechanisms.laplace import NoProtectionWarning
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning
from flower_ldp.yaml_source import section_names

_LOSSES = {
    "plain": "as if the labels were true",
    "forward": "forward-corrected cross-entropy",
    "soft": "posterior soft targets",
}


def dpsgd(file: Path, report: Report) -> None:
    """Answer for DP-SGD on a client's own data."""
    chosen = load_dpsgd_config(file)
    spent = PrivacySpent(Unit.EXAMPLE, chosen.epsilon, chosen.delta)
    report.facts.update(
        mechanism="dpsgd",
        parameters=chosen.model_dump(),
        epsilon={"unit": "example", "training": spent.epsilon, "delta": spent.delta},
        meaning={"training": meaning(spent)},
    )
    report.line(f"{file}: DP-SGD on a client's own data")
    report.pairs(
        [
            ("training", f"{chosen.epochs:,} epochs, batches of {chosen.batch_size:,} on average"),
            ("gradients", f"clipped to length {chosen.max_grad_norm:.15g}, for each example"),
            ("noise", "as much as epsilon needs: known when the number of examples is"),
            (
                "epsilon in all",
                f"{spent.epsilon:.15g}, delta {spent.delta:g}, for one example replaced; "
                "each training is charged anew",
            ),
        ]
    )
    report.line(f"One training: {meaning(spent)}")
    report.line("A client's data as a whole is not protected.")


def label_dp(file: Path, report: Report) -> None:
    """Answer for label privacy."""
    chosen = load_label_config(file)
    stages = chosen.stages()
    spent = compose(stages.events())[Unit.LABEL]
    first, keep = stages.mechanisms[0], stages.mechanisms[0].keep_probability
    single = reports_are_labels(first)
    response = {"keep_probability": keep, **({"flip_rate": 1.0 - keep} if single else {})}
    report.facts.update(
        mechanism=chosen.response,
        parameters=chosen.model_dump(),
        epsilon={"unit": "label", "once": spent.epsilon},
        response=response,
        meaning={"label": meaning(spent)},
    )
    how = " + ".join(type(mechanism).__name__ for mechanism in stages.mechanisms)
    shares = ""
    if len(stages.shares) > 1:
        shares = (
            f", on {' + '.join(map(str, stages.shares))} of every {sum(stages.shares)} examples"
        )
    priors = "none" if chosen.local_prior is None else "found from the randomized labels"
    if first.needs_prior:
        priors = "public, from the app"
    with_prior = any(mechanism.needs_prior for mechanism in stages.mechanisms)
    more = " without a prior, more often with a good one" if with_prior else ""
    report.line(f"{file}: label privacy, {chosen.response}")
    report.pairs(
        [
            ("labels", f"{chosen.categories:,} different ones, randomized by {how}{shares}"),
            (
                "a label stays true" if single else "a set holds the label",
                f"with probability {number(keep)}{more}",
            ),
            ("priors", priors),
            ("trained on", _LOSSES[chosen.loss]),
            ("epsilon", f"{spent.epsilon:.15g} per label, pure, once: training adds nothing"),
        ]
    )
    report.line(f"One label: {meaning(spent)}")
    report.line("Features are not protected.")


#: What answers for a file of each of the kinds in ``config.SECTIONS``.
ANSWERS: Mapping[str, Callable[[Path, Report], None]] = MappingProxyType(
    {"encrypt": encrypt, "dpsgd": dpsgd, "label_dp": label_dp, "embedding_dp": embedding_dp}
)


def answer(file: Path, report: Report) -> None:
    """Answer for a file of any kind.

    Raises
    ------
    ConfigError
        If the file has no section that names its kind, or an error in it.
    """
    names = section_names(file)
    kind = next((kind for kind in SECTIONS if kind in names), None)
    if kind is None and "budgets" in names and "data_id" in names:
        raise ConfigError(f"{file}: is a data owner's policy: flower-ldp policy check {file}")
    if kind is None:
        raise ConfigError(f"{file}: has none of the sections {', '.join(SECTIONS)}")
    report.facts["kind"] = kind
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NoProtectionWarning)
        try:
            ANSWERS[kind](file, report)
        finally:
            for text in dict.fromkeys(str(warning.message) for warning in caught):
                report.warn(text)

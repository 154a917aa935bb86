"""``flower-ldp config``: the check of a configuration, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import typer

from flower_ldp.cli.config_encrypt import encrypt
from flower_ldp.cli.output import Report, command, group
from flower_ldp.cli.plan_costs import caveat_of
from flower_ldp.config import SECTIONS, load_dpsgd_config, load_label_config, load_split_config
from flower_ldp.errors import ConfigError
from flower_ldp.facts import Fact, note, shown
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.mechanisms.laplace import NoProtectionWarning
from flower_ldp.privacy import PrivacySpent, Unit, compose, meaning
from flower_ldp.yaml_source import section_names

_EXAMPLES = ("flower-ldp config check signds.yaml", "flower-ldp config check label_dp.yaml --json")
_LOSSES = {
    "plain": "as if the labels were true",
    "forward": "forward-corrected cross-entropy",
    "soft": "posterior soft targets",
}

app = group("Check a configuration.", *_EXAMPLES)


def dpsgd(file: Path, report: Report) -> None:
    """Answer for DP-SGD on a client's own data."""
    chosen = load_dpsgd_config(file)
    spent = PrivacySpent(Unit.EXAMPLE, chosen.epsilon, chosen.delta)
    epochs = f"{chosen.epochs:,} epochs, batches of {chosen.batch_size:,} on average"
    clip = f"clipped to length {chosen.max_grad_norm:.15g}, for each example"
    cost = f"{spent.epsilon:.15g}, delta {spent.delta:g}, for one example; each training adds it"
    report.line(f"{file}: DP-SGD on a client's own data")
    report.tell(
        Fact("mechanism", "dpsgd"),
        Fact("parameters", chosen.model_dump()),
        note("training", epochs),
        note("gradients", clip),
        note("noise", "as much as epsilon needs: known when the number of examples is"),
        Fact("epsilon.unit", "example"),
        Fact("epsilon.training", spent.epsilon, "epsilon in all", text=cost),
        Fact("epsilon.delta", spent.delta),
        Fact("meaning.training", meaning(spent), "one training"),
        *caveat_of(spent),
        note("not protected", "a client's data as a whole"),
    )


def label_dp(file: Path, report: Report) -> None:
    """Answer for label privacy."""
    chosen = load_label_config(file)
    stages = chosen.stages()
    spent = compose(stages.events())[Unit.LABEL]
    first, keep = stages.mechanisms[0], stages.mechanisms[0].keep_probability
    single = reports_are_labels(first)
    how = " + ".join(type(mechanism).__name__ for mechanism in stages.mechanisms)
    if len(stages.shares) > 1:
        shares = " + ".join(map(str, stages.shares))
        how = f"{how}, on {shares} of every {sum(stages.shares)} examples"
    priors = "none" if chosen.local_prior is None else "found from the randomized labels"
    if first.needs_prior:
        priors = "public, from the app"
    with_prior = any(mechanism.needs_prior for mechanism in stages.mechanisms)
    kept = "chance that a label stays true" if single else "chance that a set holds the label"
    once = f"{spent.epsilon:.15g} per label, pure, once: training adds nothing"
    more = " without a prior, more with a good one" if with_prior else ""
    report.line(f"{file}: label privacy, {chosen.response}")
    report.tell(
        Fact("mechanism", chosen.response),
        Fact("parameters", chosen.model_dump()),
        note("labels", f"{chosen.categories:,} different ones, randomized by {how}"),
        Fact("response.keep_probability", keep, kept, more),
        *([Fact("response.flip_rate", 1.0 - keep)] if single else []),
        note("priors", priors),
        note("trained on", _LOSSES[chosen.loss]),
        Fact("epsilon.unit", "label"),
        Fact("epsilon.once", spent.epsilon, "epsilon", text=once),
        Fact("meaning.label", meaning(spent), "one label"),
        note("not protected", "features"),
    )


def embedding_dp(file: Path, report: Report) -> None:
    """Answer for split learning: its embeddings and its labels."""
    chosen = load_split_config(file).embedding_dp
    mechanism = chosen.mechanism()
    release = PrivacySpent(Unit.EXAMPLE, float(mechanism.record_epsilon))
    in_all = PrivacySpent(Unit.EXAMPLE, chosen.epochs * release.epsilon)
    once = f"{shown(release.epsilon)} per record and party, pure"
    trained = (
        f"{shown(in_all.epsilon)} per record and party where the bottom is trained through the "
        f"top, in {chosen.epochs:,} epochs; {shown(release.epsilon)} where it is frozen"
    )
    labels = "true: no promise"
    if chosen.label_eps is not None:
        labels = f"randomized: epsilon {chosen.label_eps:.15g} per label, pure, once"
    report.line(f"{file}: split learning, {chosen.randomizer}, {chosen.parties:,} parties")
    report.tell(
        Fact("mechanism", mechanism.name),
        Fact("parameters", chosen.model_dump()),
        note("an embedding", f"{chosen.width:,} {mechanism.entries}"),
        note("published label", f"{chosen.eps:.15g}"),
        Fact("epsilon.unit", "example"),
        Fact("epsilon.release", release.epsilon, "epsilon a release", text=once),
        Fact("epsilon.training", in_all.epsilon, "epsilon of a training", text=trained),
        note("labels", f"{chosen.classes:,} different ones, {labels}"),
        Fact("meaning.release", meaning(release), "one release"),
        note("   that is", "for one record, the bottom held fixed: docs/embedding.md"),
        Fact("meaning.training", meaning(in_all)),
        note("not protected", "a party's data as a whole"),
    )
    if release.epsilon == 0:
        report.warn("eps is 0: fair coins say nothing of a record, and policies refuse them")
    if chosen.label_eps is None:
        report.warn("label_eps is absent: gradients of true labels tell them to the parties")


#: What answers for a file of each of the kinds in ``config.SECTIONS``.
ANSWERS: Mapping[str, Callable[[Path, Report], None]] = MappingProxyType(
    {"encrypt": encrypt, "dpsgd": dpsgd, "label_dp": label_dp, "embedding_dp": embedding_dp}
)


@command(app, "check", *_EXAMPLES)
def check(
    report: Report, file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration.")]
) -> None:
    """Say what a configuration means and what it costs.

    Its kind is known by its section: encrypt (training and evaluation), dpsgd, label_dp or
    embedding_dp (split learning). A data owner's policy is checked by policy check.
    """
    report.facts["file"] = str(file)
    names = section_names(file)
    kind = next((kind for kind in SECTIONS if kind in names), None)
    if kind is None and "budgets" in names and "data_id" in names:
        raise ConfigError(f"{file}: is a data owner's policy: flower-ldp policy check {file}")
    if kind is None:
        raise ConfigError(f"{file}: has none of the sections {', '.join(SECTIONS)}")
    report.facts["kind"] = kind
    with report.warnings_of(NoProtectionWarning):
        ANSWERS[kind](file, report)

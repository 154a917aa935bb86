"""``flower-ldp config``: the check of a configuration, and what it means."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flower_ldp import config
from flower_ldp.cli.output import File, Report, command, group
from flower_ldp.cli.plan_costs import laplace_noise, named, price
from flower_ldp.config.mindspore import told_elsewhere
from flower_ldp.errors import ConfigError
from flower_ldp.facts import Fact, note, shown
from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.labels import reports_are_labels
from flower_ldp.mechanisms.laplace import LaplacePlan
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit, compose
from flower_ldp.wire.proposal import health_events
from flower_ldp.yaml_source import Section, section_names

_EXAMPLES = ("flower-ldp config check signds.yaml", "flower-ldp config check label_dp.yaml --json")
#: How often noise is below the bound that is printed.
_OFTEN = 0.9
_NOT_WEIGHTS = "about the subspace's public dimensions, not about weights"
#: Models for which it is said what a report is: a head, and a small network.
_SIZES = (2_000, 60_000)

app = group(*_EXAMPLES)


def _parameters(section: Section, key: str = "parameters") -> list[Fact]:
    """Return the fields of a section, as in the file or by default; those of all kinds last."""
    fields = section.model_dump()
    shared = config.UpdateSection.model_fields
    fields = {name: fields[name] for name in sorted(fields, key=shared.__contains__)}
    return [Fact(key, fields), *(note(name, shown(value)) for name, value in fields.items())]


def encrypt(file: Path, read: config.TrainConfig, report: Report) -> None:
    """Answer for private updates and protected evaluation."""
    chosen, section = read.encrypt, read.encrypt.protection()
    kind, evaluation = chosen.encrypt_train_type, chosen.privacy_eval_type
    report.facts.update(encrypt_train_type=kind, privacy_eval_type=evaluation, mechanism=None)
    report.line(f"{file}: {kind or 'no training'}")
    if section is not None:
        events = (*section.events(), *health_events(chosen.health_eps))
        parts = " + ".join(map(named, events))
        report.tell(
            Fact("mechanism", events[0].mechanism),
            *_parameters(section),
            *([note("reports", _NOT_WEIGHTS)] if section.subspace else []),
            *_reports(section),
            *price(compose(events)[Unit.CLIENT], "round", "epsilon a round", f" ({parts})"),
            note("   of rounds", "they add up, and so do deltas"),
        )
    for name, one in (("updates", kind), ("evaluation replies", evaluation)):
        if one == "NOT_ENCRYPT":
            report.warn(f"{one}: raw {name} leave the clients, and nothing protects them")
    if evaluation == "LAPLACE":
        _evaluation(chosen, read.unsupervised, report)
    _elsewhere(read, report)


def _elsewhere(read: Section, report: Report) -> None:
    """Name the unused fields of MindSpore Federated, and where Flower has them."""
    rows = [{"field": name, "in_flower": where} for name, where in told_elsewhere(read)]
    report.table("elsewhere", "Fields that are read and not used, and where Flower has them", rows)


def _reports(section: config.UpdateSection) -> list[Fact]:
    """Describe a report for models of some sizes, and the server's use of reports."""
    if isinstance(section, config.DPEncryptConfig):
        return section.mechanism().describe()
    found = []
    if isinstance(section, config.SignDSConfig):
        few = f"{100 * section.sign_min_participation:.6g} % of the clients are asked"
        learned = ("learned", f", but sign_global_lr where less than {few}")
        step, more = ("fixed", "") if section.magnitude() is None else learned
        found.append(Fact("step", step, "step", more))
    if isinstance(section, config.SignDSConfig | config.CodewordConfig):
        optimizer = section.server_optimizer()
        found.append(Fact("server_optimizer", optimizer and optimizer.describe(), "optimizer"))
        part = section.subspace
        for size in _SIZES if part is None else (part.dimension,):
            of = f"{size:,} {'weights' if part is None else 'dimensions'}"
            with suppress(ValueError):  # no such reports of a model that is so small
                plan = section.mechanism().plan(size, quiet=True)
                found += [note("a report of", of), *plan.describe(f"reports.{size}")]
    return found


def _evaluation(
    chosen: config.EncryptConfig, asked: config.UnsupervisedConfig, report: Report
) -> None:
    laplace = chosen.laplace_eval
    metrics = laplace.metric_mechanisms()
    scalars = (event for metric in metrics.values() for event in metric.events())
    rows = PrivacyEvent("laplace", laplace.epsilon, count=laplace.rows)
    events = (rows, *scalars, *health_events(chosen.health_eps))
    parts = f" ({' + '.join(map(named, events))}); evaluations add up"
    spent = compose(events)[Unit.CLIENT]
    report.tell(
        note("evaluation", "LAPLACE"),
        *_parameters(laplace, "evaluation.parameters"),
        Fact("evaluation.eval_type", asked.eval_type, "score"),
        Fact("evaluation.cluster_client_num", asked.cluster_client_num, "   of clients, at most"),
        *laplace_noise(LaplacePlan(laplace.epsilon), _OFTEN, "evaluation."),
        *price(spent, "round", "epsilon an evaluation", parts, of="evaluation."),
    )


def dpsgd(file: Path, chosen: config.DPSGDConfig, report: Report) -> None:
    """Answer for DP-SGD on a client's own data."""
    spent = PrivacySpent(Unit.EXAMPLE, chosen.epsilon, chosen.delta)
    report.line(f"{file}: DP-SGD on a client's own data", mechanism="dpsgd")
    report.tell(
        *_parameters(chosen),
        note("noise", "as much as epsilon needs: known when the number of examples is"),
        *price(spent, "training", "epsilon of a training", "; each training adds it"),
        note("not protected", "a client's data as a whole"),
    )


def label_dp(file: Path, chosen: config.LabelDPConfig, report: Report) -> None:
    """Answer for label privacy."""
    stages = chosen.stages()
    first, keep = stages.mechanisms[0], stages.mechanisms[0].keep_probability
    single = reports_are_labels(first)
    how = " + ".join(type(mechanism).__name__ for mechanism in stages.mechanisms)
    if chosen.stage_shares is not None:
        parts = " + ".join(map(str, stages.shares))
        how = f"{how}, on {parts} of every {sum(stages.shares)} examples"
    priors = "none" if chosen.local_prior is None else "found from the randomized labels"
    public = "public, from the app"
    with_prior = any(mechanism.needs_prior for mechanism in stages.mechanisms)
    kept = "chance that a label stays true" if single else "chance that a set holds the label"
    more = " without a prior, more with a good one" if with_prior else ""
    spent = compose(chosen.events())[Unit.LABEL]
    if chosen.histogram is not None:
        priors = f"noisy histograms of the labels, epsilon {chosen.histogram.eps:g}"
    report.line(f"{file}: label privacy, {chosen.response}", mechanism=chosen.response)
    report.tell(
        *_parameters(chosen),
        note("randomized by", how),
        note("priors", public if first.needs_prior and chosen.histogram is None else priors),
        Fact("response.keep_probability", keep, kept, more),
        *([Fact("response.flip_rate", 1.0 - keep)] if single else []),
        *price(spent, "once", "epsilon", ", once: training adds nothing", meant="label"),
        note("not protected", "features"),
    )


def embedding_dp(file: Path, read: config.SplitConfig, report: Report) -> None:
    """Answer for split learning."""
    chosen = read.embedding_dp
    mechanism = chosen.mechanism()
    release = PrivacySpent(Unit.EXAMPLE, float(mechanism.record_epsilon))
    training = PrivacySpent(Unit.EXAMPLE, chosen.epochs * release.epsilon)
    held = ", for a party, its bottom held fixed: docs/embedding.md"
    trained = f", for a party, in {chosen.epochs:,} epochs through the top; one release if frozen"
    labels = "true: no promise"
    if chosen.label_eps is not None:
        labels = f"randomized: epsilon {chosen.label_eps:.15g} per label, pure, once"
    report.line(f"{file}: split learning, {chosen.randomizer}, {chosen.parties:,} parties")
    report.tell(
        Fact("mechanism", mechanism.name),
        *_parameters(chosen),
        note("an embedding", f"{chosen.width:,} {mechanism.entries}"),
        note("labels", labels),
        *price(release, "release", "epsilon a release", held),
        *price(training, "training", "epsilon of a training", trained),
        note("not protected", "a party's data as a whole"),
    )
    if release.epsilon == 0:
        report.warn("eps is 0: fair coins say nothing of a record, and policies refuse them")
    if chosen.label_eps is None:
        report.warn("label_eps is absent: gradients of true labels tell them to the parties")


def vertical(file: Path, read: config.VerticalConfig, report: Report) -> None:
    """Answer for a party's file of MindSpore Federated."""
    embedding, labels = read.privacy.embedding_dp, read.privacy.label_dp
    report.line(f"{file}: a party's file of MindSpore Federated, by load_vertical_config")
    report.tell(
        Fact(
            "embedding_eps", embedding and embedding.eps, "embeddings", ", with .embedding(width)"
        ),
        Fact("label_eps", labels and labels.eps, "labels", ", once, with .labels(categories)"),
        note("not protected", "a party's data as a whole"),
    )
    _elsewhere(read, report)


#: What answers for a file of each of the kinds in ``config.SECTIONS``.
ANSWERS: dict[str, Callable[[Path, Any, Report], None]] = {
    "encrypt": encrypt,
    "dpsgd": dpsgd,
    "label_dp": label_dp,
    "embedding_dp": embedding_dp,
    "privacy": vertical,
}


@command(app, "check", *_EXAMPLES)
def check(report: Report, file: File) -> None:
    """Say what a configuration means and what it costs.

    Its kind is known by its section: encrypt (training and evaluation), dpsgd, label_dp,
    embedding_dp (split learning) or privacy (a party of MindSpore Federated). A data owner's policy
    is checked by policy check.

    Parameters
    ----------
    file
        The configuration.
    """
    names = section_names(file)
    kind = next((kind for kind in config.SECTIONS if kind in names), None)
    if kind is None and "budgets" in names and "data_id" in names:
        raise ConfigError(f"{file}: is a data owner's policy: flower-ldp policy check {file}")
    if kind is None:
        raise ConfigError(f"{file}: has none of the sections {', '.join(config.SECTIONS)}")
    report.facts["kind"] = kind
    with report.warnings_of(NoProtectionWarning):
        ANSWERS[kind](file, config.SECTIONS[kind](file), report)

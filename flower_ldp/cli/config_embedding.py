"""What ``flower-ldp config check`` says of an ``embedding_dp`` section: split learning."""

from __future__ import annotations

from pathlib import Path

from flower_ldp.cli.output import Report
from flower_ldp.config.split import EmbeddingDPConfig, load_split_config
from flower_ldp.privacy import PrivacySpent, Unit, meaning


def embedding_dp(file: Path, report: Report) -> None:
    """Answer for split learning: its embeddings and its labels."""
    chosen = load_split_config(file).embedding_dp
    mechanism = chosen.mechanism()
    release = PrivacySpent(Unit.EXAMPLE, float(mechanism.record_epsilon))
    in_all = PrivacySpent(Unit.EXAMPLE, chosen.epochs * release.epsilon)
    report.facts.update(
        mechanism=mechanism.name,
        parameters=chosen.model_dump(),
        epsilon={"unit": "example", "release": release.epsilon, "training": in_all.epsilon},
        meaning={"release": meaning(release), "training": meaning(in_all)},
    )
    report.line(f"{file}: split learning, {chosen.randomizer}, {chosen.parties:,} parties")
    report.pairs(
        [
            ("an embedding", f"{chosen.width:,} {mechanism.entries}"),
            ("published label", f"{chosen.eps:.15g}"),
            ("epsilon a release", f"{release.epsilon:,.15g} per record and party, pure"),
            (
                "epsilon of a training",
                f"{in_all.epsilon:,.15g} per record and party where the bottom is trained through "
                f"the top, in {chosen.epochs:,} epochs; {release.epsilon:,.15g} where it is frozen",
            ),
            ("labels", _labels(chosen)),
        ]
    )
    report.line(f"One release: {meaning(release)}")
    report.line("That is for one record with the bottom held fixed: docs/embedding.md.")
    report.line("A party's data as a whole is not protected.")
    if release.epsilon == 0:
        report.warn("eps is 0: fair coins say nothing of a record, and policies refuse them")
    if chosen.label_eps is None:
        report.warn("label_eps is absent: gradients of true labels tell them to the parties")


def _labels(chosen: EmbeddingDPConfig) -> str:
    if chosen.label_eps is None:
        return f"{chosen.classes:,} different ones, true: no promise"
    once = f"epsilon {chosen.label_eps:.15g} per label, pure, once"
    return f"{chosen.classes:,} different ones, randomized: {once}"

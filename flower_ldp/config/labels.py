"""YAML configuration of labels, of embeddings, and of DP-SGD on a client's own data.

``configs`` has commented samples: ``label_dp.yaml``, ``embedding_dp.yaml`` and ``dpsgd.yaml``. A
split learning party's own limits are in its policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, model_validator

from flower_ldp.config.mindspore import VerticalFile
from flower_ldp.labels.priors import CentralHistograms
from flower_ldp.labels.stages import LabelStages
from flower_ldp.mechanisms.embeddings import MAX_BITS, CodebookEmbedding, UnaryEncoding
from flower_ldp.mechanisms.labels import LABEL_METHODS, label_mechanisms, reports_are_labels
from flower_ldp.mechanisms.randomized_response import KaryResponse, LabelMechanism
from flower_ldp.mechanisms.training_plan import TrainingPlan
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.yaml_source import Section, YamlFormat, declared, interval, misfit, must_suit


class LocalPriorConfig(Section):
    """Priors from the randomized labels alone.

    Parameters
    ----------
    clusters : int
        Clusters of each clustering of the features.
    clusterings : int
        Clusterings whose priors are averaged.
    steps : int
        Of expectation-maximization.
    """

    clusters: Annotated[int, interval("[1, 1000000]", int)] = 1000
    clusterings: Annotated[int, interval("[1, 1000]", int)] = 10
    steps: Annotated[int, interval("[1, 100000]", int)] = 50


def _method(value: object) -> object:
    if not isinstance(value, str):
        raise misfit("must be a name of a method in docs/label_dp.md")
    if value not in LABEL_METHODS:
        *names, last = map(repr, LABEL_METHODS)
        raise misfit(f"must be {', '.join(names)} or {last}")
    return value


class HistogramConfig(Section):
    """Noisy histograms of true labels; epsilon per label, of all histograms together.

    Parameters
    ----------
    eps : float
        Per label.
    groups : int
        Groups of examples, by their features.
    """

    eps: Annotated[float, declared(CentralHistograms, "epsilon")]
    groups: Annotated[int, interval("[1, 1000000]", int)]


class LabelDPConfig(Section):
    """The ``label_dp`` section.

    Parameters
    ----------
    eps : float
        Per label; each is randomized once.
    categories : int
        Number of labels.
    response : str
        A name of :data:`~flower_ldp.mechanisms.labels.LABEL_METHODS`. ``rr_with_prior`` needs a
        prior from the app, public or of ``histogram``; ``lp_2st``, ``lp_mst`` and those with
        ``_subset`` use the models of their earlier stages.
    loss : {"plain", "forward", "soft"}
        The loss on randomized labels. Reports that are sets have no ``plain``.
    local_prior : mapping, optional
        Of the soft targets; required for ``soft`` with one stage and no prior, and otherwise used
        in the first of two stages only.
    stage_shares : list of int
        For several stages: of every so many successive examples, how many are in each.
    histogram : mapping, optional
        Of ``rr_with_prior``: noisy histograms of true labels for its prior, at an epsilon beside
        ``eps``.
    """

    eps: Annotated[float, interval("(0, 100]")]
    categories: Annotated[int, interval("[2, 1048576]", int)]
    response: Annotated[str, BeforeValidator(_method)] = "kary_response"
    loss: Literal["plain", "forward", "soft"] = "forward"
    local_prior: LocalPriorConfig | None = None
    stage_shares: list[Annotated[int, interval("[1, 1000]", int)]] | None = None
    histogram: HistogramConfig | None = None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> LabelDPConfig:
        try:
            mechanisms = self.mechanisms()
        except ValueError as error:
            raise misfit(str(error).removeprefix("categories "), "categories") from error
        if self.loss == "plain" and not all(map(reports_are_labels, mechanisms)):
            text = f"must be forward or soft for response {self.response}, which reports sets"
            raise misfit(text, "loss")
        if (len(mechanisms) > 1) != (self.stage_shares is not None):
            several = " or ".join(name for name, stages in LABEL_METHODS.items() if len(stages) > 1)
            text = f"must be given for response {several}, and only there"
            raise misfit(text, "stage_shares")
        if self.stage_shares is not None and len(self.stage_shares) != len(mechanisms):
            raise misfit("must have one number for each stage, at least two", "stage_shares")
        if self.histogram is not None and self.response != "rr_with_prior":
            raise misfit("must be left out: only rr_with_prior has a prior of its own", "histogram")
        first, alone = mechanisms[0], len(mechanisms) == 1
        soft = self.loss == "soft" and not first.needs_prior
        if soft and alone and self.local_prior is None:
            raise misfit(f"must be given for loss soft with {self.response}", "local_prior")
        if self.local_prior is not None and not soft:
            raise misfit("must be left out: this response and loss do not use it", "local_prior")
        return self

    def mechanisms(self) -> tuple[LabelMechanism, ...]:
        """Return the randomizer of each stage."""
        shares = self.stage_shares or (1, 1)
        return label_mechanisms(self.response, self.eps, self.categories, max(2, len(shares)))

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what a label costs in all."""
        histograms = self.histograms()
        return (*self.stages().events(), *(() if histograms is None else histograms.events()))

    def histograms(self) -> CentralHistograms | None:
        """Return the mechanism for :func:`~flower_ldp.clients.private_histograms`, or None."""
        chosen = self.histogram
        if chosen is None:
            return None
        return CentralHistograms(float(chosen.eps), chosen.groups, self.categories)

    def stages(self) -> LabelStages:
        """Return the mechanism for :func:`~flower_ldp.clients.private_labels`."""
        return LabelStages(self.mechanisms(), tuple(self.stage_shares or (1,)))


class LabelFile(Section):
    """A configuration file: one ``label_dp`` section."""

    label_dp: LabelDPConfig


LABEL_FORMAT = YamlFormat(LabelFile)


def load_label_config(path: str | Path) -> LabelDPConfig:
    """Read a YAML configuration of label privacy.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or has an error. The text gives file, line
        and field of every error.
    """
    return LABEL_FORMAT.load(path).label_dp


class EmbeddingDPConfig(Section):
    """The ``embedding_dp`` section.

    Parameters
    ----------
    eps : float
        For ``unary_encoding`` the published label, in [0, 100]: a record of ``width`` bits costs
        ``width * eps / 2`` per release, a one-hot one ``eps``. For ``codebook_embedding`` what
        a record costs, in (0, 100].
    width : int
        Bits of an embedding, or codes.
    randomizer : {"unary_encoding", "codebook_embedding"}
        How an embedding is randomized.
    one_hot : bool
        Whether each embedding has exactly one positive entry; for ``unary_encoding``.
    parties : int
        Number of feature parties.
    epochs : int
        Passes over the training records.
    label_eps : float, optional
        Epsilon of each label, randomized once; without it parties learn from true labels.
    classes : int
        Number of labels.
    """

    eps: Annotated[float, interval("[0, inf)")]
    width: Annotated[int, interval(f"[1, {MAX_BITS}]", int)]
    randomizer: Literal["unary_encoding", "codebook_embedding"] = "unary_encoding"
    one_hot: bool = False
    parties: Annotated[int, interval("[1, 1000]", int)] = 2
    epochs: Annotated[int, interval("[0, inf)", int)] = 10
    label_eps: Annotated[float, interval("(0, 100]")] | None = None
    classes: Annotated[int, interval("[2, 65536]", int)] = 10

    @model_validator(mode="after")
    def _codebook_has_codes(self) -> EmbeddingDPConfig:
        if self.randomizer == "codebook_embedding":
            given = {"eps": self.eps, "width": self.width}
            must_suit(self.randomizer, CodebookEmbedding, given)
            if self.one_hot:
                raise misfit("is for unary_encoding only", "one_hot")
        return self

    def mechanism(self) -> UnaryEncoding | CodebookEmbedding:
        """Return the randomizer of embeddings."""
        if self.randomizer == "codebook_embedding":
            return CodebookEmbedding(float(self.eps), self.width)
        return UnaryEncoding.from_published(float(self.eps), self.width, self.one_hot)

    def label_response(self) -> KaryResponse | None:
        """Return the randomizer of labels, if they are to be randomized."""
        if self.label_eps is None:
            return None
        return KaryResponse(float(self.label_eps), self.classes, "label", Unit.LABEL)


class SplitConfig(Section):
    """A configuration file: one ``embedding_dp`` section."""

    embedding_dp: EmbeddingDPConfig


SPLIT_FORMAT = YamlFormat(SplitConfig)


def load_split_config(path: str | Path) -> SplitConfig:
    """Read a YAML configuration of split learning.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or holds an unknown field, a wrong type or
        a value outside its interval. The text gives file, line and field of every error.
    """
    return SPLIT_FORMAT.load(path)


class EpsConfig(Section):
    """A published section of one epsilon."""

    eps: Annotated[float, interval("[0, inf)")]


class VerticalPrivacyConfig(Section):
    """The ``privacy`` section of MindSpore Federated's vertical files."""

    embedding_dp: EpsConfig | None = None
    label_dp: EpsConfig | None = None


class VerticalConfig(VerticalFile):
    """A party's file of MindSpore Federated; networks and optimizers are the app's code here.

    Parameters
    ----------
    privacy : VerticalPrivacyConfig
        The epsilons of embeddings and labels.
    """

    privacy: VerticalPrivacyConfig

    @model_validator(mode="after")
    def _epochs_are_a_number(self) -> VerticalConfig:
        if self.epochs is not None and not Bounded("[1, 1000000]").holds(self.epochs, int):
            raise misfit("must be an integer in [1, 1000000]", "hyper_parameters", "epochs")
        return self

    @property
    def epochs(self) -> int | None:
        """Passes over the data, from ``hyper_parameters.epochs``; else None."""
        return (self.hyper_parameters or {}).get("epochs")

    def embedding(self, width: int, classes: int = 10, epochs: int = 10) -> EmbeddingDPConfig:
        """Return the ``embedding_dp`` section for a cut layer of ``width`` entries.

        Raises
        ------
        ValueError
            If the file has no ``embedding_dp``.
        """
        if self.privacy.embedding_dp is None:
            raise ValueError("the file has no privacy.embedding_dp")
        label = self.privacy.label_dp
        return EmbeddingDPConfig(
            eps=self.privacy.embedding_dp.eps,
            width=width,
            epochs=epochs,
            label_eps=None if label is None else label.eps,
            classes=classes,
        )

    def labels(self, categories: int) -> LabelDPConfig:
        """Return the ``label_dp`` section for this number of labels.

        Raises
        ------
        ValueError
            If the file has no ``label_dp``.
        """
        if self.privacy.label_dp is None:
            raise ValueError("the file has no privacy.label_dp")
        return LabelDPConfig(eps=self.privacy.label_dp.eps, categories=categories)


_VERTICAL_FORMAT = YamlFormat(VerticalConfig)


def load_vertical_config(path: str | Path) -> VerticalConfig:
    """Read a party's file of MindSpore Federated; raises as :func:`load_config` does."""
    return _VERTICAL_FORMAT.load(path)


class DPSGDConfig(Section):
    """The ``dpsgd`` section: of training by Opacus, as the label-DP example's baseline has it.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole training, for one example replaced.
    epochs : int
        Passes over the data, on average.
    batch_size : int
        Mean number of examples in a step.
    max_grad_norm : float
        Length to which an example's gradient is clipped.
    """

    epsilon: Annotated[float, declared(TrainingPlan, "epsilon")]
    delta: Annotated[float, declared(TrainingPlan, "delta")]
    epochs: Annotated[int, interval("[1, inf)", int)] = 3
    batch_size: Annotated[int, interval("[1, inf)", int)] = 250
    max_grad_norm: Annotated[float, interval("(0, inf)")] = 1.0


class DPSGDFile(Section):
    """A configuration file of DP-SGD: one ``dpsgd`` section."""

    dpsgd: DPSGDConfig


_DPSGD_FORMAT = YamlFormat(DPSGDFile)


def load_dpsgd_config(path: str | Path) -> DPSGDConfig:
    """Read the ``dpsgd`` section of a YAML file; raises as :func:`load_config` does."""
    return _DPSGD_FORMAT.load(path).dpsgd

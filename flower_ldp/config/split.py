"""YAML configuration of split learning: how embeddings, and labels, are randomized.

The server reads it; a party's own limits are in its policy. See ``configs/embedding_dp.yaml``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import model_validator

from flower_ldp.mechanisms.embeddings import MAX_BITS, MAX_CODES, CodebookEmbedding, UnaryEncoding
from flower_ldp.mechanisms.randomized_response import KaryResponse
from flower_ldp.privacy import Unit
from flower_ldp.yaml_source import Section, YamlFormat, interval, misfit


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

    eps: Annotated[float, interval("[0, 100]")]
    width: Annotated[int, interval(f"[1, {MAX_BITS}]", int)]
    randomizer: Literal["unary_encoding", "codebook_embedding"] = "unary_encoding"
    one_hot: bool = False
    parties: Annotated[int, interval("[1, 1000]", int)] = 2
    epochs: Annotated[int, interval("[0, inf)", int)] = 10
    label_eps: Annotated[float, interval("(0, 100]")] | None = None
    classes: Annotated[int, interval("[2, 65536]", int)] = 10

    @model_validator(mode="after")
    def _codebook_has_codes(self) -> EmbeddingDPConfig:
        if self.randomizer != "codebook_embedding":
            return self
        wrong = {
            "eps": ("must be in (0, 100] for codebook_embedding", not self.eps > 0),
            "width": (
                f"must be in [2, {MAX_CODES}] for codebook_embedding",
                not 2 <= self.width <= MAX_CODES,
            ),
            "one_hot": ("is for unary_encoding only", self.one_hot),
        }
        for name, (wanted, is_wrong) in wrong.items():
            if is_wrong:
                raise misfit(wanted, name)
        return self

    def mechanism(self) -> UnaryEncoding | CodebookEmbedding:
        """Return the randomizer of embeddings."""
        if self.randomizer == "codebook_embedding":
            return CodebookEmbedding(float(self.eps), self.width)
        return UnaryEncoding(float(self.eps), self.width, self.one_hot)

    def label_response(self) -> KaryResponse | None:
        """Return the randomizer of labels, if they are to be randomized."""
        if self.label_eps is None:
            return None
        return KaryResponse(float(self.label_eps), self.classes, "label", Unit.LABEL)


class SplitConfig(Section):
    """A configuration file: one ``embedding_dp`` section."""

    embedding_dp: EmbeddingDPConfig


_FORMAT = YamlFormat(SplitConfig)


def load_split_config(path: str | Path) -> SplitConfig:
    """Read a YAML configuration of split learning.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or holds an unknown field, a wrong type or
        a value outside its interval. The text gives file, line and field of every error.
    """
    return _FORMAT.load(path)


def parse_split_config(text: str, *, source: str = "<text>") -> SplitConfig:
    """Parse a YAML configuration; see :func:`load_split_config`."""
    return _FORMAT.parse(text, source=source)

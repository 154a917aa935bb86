"""Every shipped mechanism that can be audited by name.

To add one, write a function that returns its :class:`~flower_ldp.audit.cases.Case` and name it
in :data:`BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from flower_ldp.audit.account_cases import nested_units
from flower_ldp.audit.cases import Case
from flower_ldp.audit.codeword_cases import codeword
from flower_ldp.audit.count_cases import example_counts, example_mean
from flower_ldp.audit.embedding_cases import codebook_embedding, unary
from flower_ldp.audit.long_cases import signds_long
from flower_ldp.audit.noise_cases import bounded_mean, gaussian, laplace
from flower_ldp.audit.response_cases import (
    binary_response,
    codebook_response,
    kary_response,
    magrr,
    rr_with_prior,
    subset_selection,
)
from flower_ldp.audit.selection_cases import signds, signds_magrr
from flower_ldp.mechanisms import (
    BinaryResponse,
    BoundedMean,
    CodebookEmbedding,
    CodebookResponse,
    Codeword,
    ExampleCounts,
    ExampleMean,
    Gaussian,
    KaryResponse,
    Laplace,
    MagRR,
    RRWithPrior,
    SignDS,
    SubsetSelection,
    UnaryEncoding,
)

_CLASSES = 10
#: Bits of an embedding: few, so that the rarest report is not too rare.
_BITS = 4
#: Codes of a seed: few, since a score knows the favoured codewords of each.
_CODES = 4
#: Examples of a sum, and the edges that they are counted between.
_EXAMPLES = 4
_EDGES = (0.0, 1.0, 10.0, 100.0)
#: The client's share of the epsilon of an example, of which the rest is the example's own.
_CLIENT_SHARE = 0.75
#: Certain rows, and hesitant ones, of three classes.
CODES = np.concatenate([np.eye(3), 0.5 * np.eye(3) + 0.5 / 3])
#: Half of the classes are likely: RRWithPrior never reports the others below an epsilon of 4.5.
PRIOR = (0.19,) * 5 + (0.01,) * 5
#: The magnitude bit's share of a round's epsilon; a power of two, so that the parts add up.
MAGNITUDE_SHARE = 0.25


def _blocks(dimension: int) -> int:
    """Return about ten blocks, none of which is empty."""
    size = -(-dimension // 10)
    return -(-dimension // size)


@dataclass(frozen=True)
class Settings:
    """Parameters that the command line offers; a builder takes those that it knows.

    Parameters
    ----------
    epsilon : float
        Claim per release.
    dimension : int
        d, entries of an update.
    k : float
        SignDS: fraction of dimensions that count as largest.
    dim_out : int
        SignDS: reported dimensions; 0 to choose.
    delta : float
        Gaussian: claim per release. The others claim none.
    """

    epsilon: float = 1.0
    dimension: int = 1_000
    k: float = 0.2
    dim_out: int = 0
    delta: float = 0.01


def _signds(settings: Settings, epsilon: float) -> SignDS:
    return SignDS(epsilon, settings.k, dim_out=settings.dim_out)


def _signds_magrr(settings: Settings) -> Case:
    bit = MAGNITUDE_SHARE * settings.epsilon
    selection = _signds(settings, settings.epsilon - bit)
    return signds_magrr(selection, MagRR(bit), settings.dimension)


def _nested_units(settings: Settings) -> Case:
    of_client = _CLIENT_SHARE * settings.epsilon
    metric = BoundedMean(of_client, 0.0, 1.0)
    return nested_units(metric, CodebookEmbedding(settings.epsilon - of_client, _CLASSES))


#: Every mechanism that the command line can audit, by name.
BUILDERS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {
        "binary-response": lambda s: binary_response(BinaryResponse(s.epsilon)),
        "kary-response": lambda s: kary_response(KaryResponse(s.epsilon, _CLASSES)),
        "subset-selection": lambda s: subset_selection(SubsetSelection(s.epsilon, _CLASSES)),
        "rr-with-prior": lambda s: rr_with_prior(RRWithPrior(s.epsilon, len(PRIOR)), PRIOR),
        "codebook-response": lambda s: codebook_response(CodebookResponse(CODES, s.epsilon)),
        "unary-encoding": lambda s: unary(UnaryEncoding(2 * s.epsilon / _BITS, _BITS)),
        "unary-one-hot": lambda s: unary(UnaryEncoding(s.epsilon, _BITS, one_hot=True)),
        "codebook-embedding": lambda s: codebook_embedding(CodebookEmbedding(s.epsilon, _CLASSES)),
        "laplace": lambda s: laplace(Laplace(s.epsilon, _CLASSES)),
        "bounded-mean": lambda s: bounded_mean(BoundedMean(s.epsilon, 0.0, 1.0)),
        "example-mean": lambda s: example_mean(ExampleMean(s.epsilon, _EXAMPLES)),
        "example-counts": lambda s: example_counts(ExampleCounts(s.epsilon, _EDGES)),
        "gaussian": lambda s: gaussian(Gaussian(s.epsilon, s.delta)),
        "magrr": lambda s: magrr(MagRR(s.epsilon)),
        "signds": lambda s: signds(_signds(s, s.epsilon), s.dimension),
        "signds-magrr": _signds_magrr,
        "signds-long": lambda s: signds_long(_signds(s, s.epsilon)),
        "codeword": lambda s: codeword(Codeword(s.epsilon, rotations=_CODES), s.dimension),
        "codeword-blocks": lambda s: codeword(
            Codeword(s.epsilon, rotations=_CODES, blocks=_blocks(s.dimension)), s.dimension
        ),
        "account": _nested_units,
    }
)

"""From private reports of class probabilities to a score, for each way of making them private.

Both ways offer the same: what a release costs, and, for the model of a round, the mechanism to
propose and the reading of the reports that come back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from flower_ldp.mechanisms.base import row_of
from flower_ldp.mechanisms.codebook import CodebookResponse
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.mechanisms.simplex import project_to_simplex
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies.evaluation.codebooks import (
    DEFAULT_LEVELS,
    ProxySupport,
    confidence_codebook,
)
from flower_ldp.strategies.evaluation.score_trust import score_trust, warn_if_near_uniform
from flower_ldp.strategies.evaluation.scores import ClusterScore
from flower_ldp.wire.evaluation import RowMechanism

_log = logging.getLogger("flower_ldp")

Values: TypeAlias = dict[str, float]


class RoundRows(Protocol):
    """What one round asks for, and how its reports are read."""

    @property
    def mechanism(self) -> RowMechanism:
        """The mechanism to propose."""

    def scored(self, reports: NDArray[np.int64], score: ClusterScore) -> Values:
        """Return the score of all clients' reports, and what is known about it."""


@dataclass(frozen=True)
class NoisyRows:
    """Rows with Laplace noise, projected onto the simplex and scored as they are."""

    mechanism: Laplace

    def scored(self, reports: NDArray[np.int64], score: ClusterScore) -> Values:
        """Return ``score``."""
        return {"score": score.of_rows(project_to_simplex(self.mechanism.estimate(reports)))}


@dataclass(frozen=True)
class ProxyCodebook:
    """Rows told by numbers of codes, with a codebook from the round's model and public inputs.

    The server runs the model on inputs that are public; the outputs make the codebook, and
    stand for the clients' rows when the shares of the codes are scored. See
    :mod:`flower_ldp.strategies.evaluation.codebooks`.

    Parameters
    ----------
    epsilon : float
        Per row and per client, for any change of the row; in (0, 100].
    proxy : callable
        From the arrays of a model to its rows of class probabilities on the public inputs,
        shape (any number, classes).
    rows : int
        Rows that a client releases at a time.
    levels : int
        Codes per class.
    trust_repeats : int
        Simulated experiments that tell how far the score follows clients
        (:func:`~flower_ldp.strategies.evaluation.score_trust`), at least 2, or 0 for none. Each
        costs one scoring; none touches private data.

    Raises
    ------
    ValueError
        If ``trust_repeats`` is negative or 1, or another parameter is outside its interval.
    """

    epsilon: float
    proxy: Callable[[ArrayRecord], NDArray[np.floating[Any]]]
    rows: int = 1
    levels: int = DEFAULT_LEVELS
    trust_repeats: int = 20

    def __post_init__(self) -> None:
        CodebookResponse(np.eye(2), self.epsilon, self.rows)  # their domains
        if self.levels < 1:
            raise ValueError(f"levels must be at least 1, got {self.levels}")
        if self.trust_repeats < 0 or self.trust_repeats == 1:
            raise ValueError(f"trust_repeats must be 0 or at least 2, got {self.trust_repeats}")

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of one release: epsilon for each row, per client."""
        return CodebookResponse(np.eye(2), self.epsilon, self.rows).events()

    def for_model(self, arrays: ArrayRecord) -> CodebookRows:
        """Return the codebook that a model makes, and the rows that stand for its codes."""
        proxy = np.asarray(self.proxy(arrays))
        codebook = confidence_codebook(proxy, self.levels)
        mechanism = CodebookResponse(codebook, self.epsilon, self.rows)
        return CodebookRows(mechanism, ProxySupport.of(mechanism, proxy), self.trust_repeats)


@dataclass(frozen=True, eq=False)
class CodebookRows:
    """Codes of one round: their shares are estimated, and spread over the proxy's rows."""

    mechanism: CodebookResponse
    support: ProxySupport
    trust_repeats: int

    def scored(self, reports: NDArray[np.int64], score: ClusterScore) -> Values:
        """Return ``score``, and ``score-recovery`` and ``score-error`` if they are asked for."""
        shares = self.support.spread(self.mechanism.estimate(reports))
        warn_if_near_uniform(self.support.rows, shares)
        values = {"score": score.of_law(self.support.rows, shares, len(reports))}
        if self.trust_repeats and len(reports) > 1:
            trust = score_trust(
                self.mechanism,
                self.support,
                score,
                len(reports),
                RandomSource.from_os(),
                repeats=self.trust_repeats,
            )
            values |= {"score-recovery": trust.recovery, "score-error": trust.error}
            if trust.echoes_proxy or trust.is_noise:
                _log.warning(
                    "the score shows %.0f %% of a known difference from the proxy, with an error "
                    "of %.1f %%: more clients or a larger epsilon are needed",
                    100 * trust.recovery,
                    100 * trust.error,
                )
        return values


#: What a round asks for, by the kind of the strategy's mechanism.
ROUNDS: Mapping[type, Callable[[Any, ArrayRecord], RoundRows]] = MappingProxyType(
    {
        Laplace: lambda mechanism, _: NoisyRows(mechanism),
        ProxyCodebook: lambda proxy, arrays: proxy.for_model(arrays),
    }
)


def rows_for(mechanism: Laplace | ProxyCodebook, arrays: ArrayRecord) -> RoundRows:
    """Return what a round with this model asks for."""
    return row_of(ROUNDS, mechanism)(mechanism, arrays)

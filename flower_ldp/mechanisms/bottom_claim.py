"""How a party's bottom model came to be, and what a release of embeddings then protects.

A randomizer of embeddings protects a record *with the bottom model held fixed*. A bottom that
was trained on the records carries each of them into all other records' later bits: its weights
move by a Jacobian taken at private records, and no composition of releases covers that. So the
party that owns the bottom declares one of three kinds:

=============== ============================================================================
``public``      trained on public data, or frozen at random: each release costs its epsilon
``dp``          trained with gradients clipped per record and noised: the epsilon and delta of
                the training stand beside the releases, once for each bottom
``conditional`` trained on the records in any other way, as published: the epsilon holds
                conditionally on the bottom model only
=============== ============================================================================

The kind is a promise of the party's. Nothing here can check how a bottom was trained.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from flower_ldp.errors import quoted
from flower_ldp.privacy import CONDITIONAL_SUFFIX, PrivacyEvent, Unit

Kind = Literal["public", "dp", "conditional"]
KINDS: tuple[Kind, ...] = ("public", "dp", "conditional")

#: Names the event of a bottom's own private training.
TRAINING = "bottom_training"


@dataclass(frozen=True)
class BottomClaim:
    """What a party declares about its bottom model.

    Parameters
    ----------
    kind : {"public", "dp", "conditional"}
        How it came to be.
    epsilon, delta : float
        Of the bottom's training on the records, for ``dp`` and only there: epsilon finite and
        positive, delta in (0, 1). They are added to those of the releases, so they must hold
        for **replace-one** neighbours. Accountants of DP-SGD mostly state add-or-remove-one,
        which is smaller for the same noise.

    Raises
    ------
    ValueError
        If the kind is unknown, or the amounts do not go with it.
    """

    kind: Kind
    epsilon: float = 0.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {quoted(self.kind)}")
        if self.kind != "dp":
            if self.epsilon != 0 or self.delta != 0:
                raise ValueError(
                    f"epsilon and delta are for kind 'dp' only, not {quoted(self.kind)}"
                )
            return
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon must be in (0, inf) for kind 'dp', got {self.epsilon}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1) for kind 'dp', got {self.delta}")

    def events(self, release: Iterable[PrivacyEvent]) -> tuple[PrivacyEvent, ...]:
        """Return what goes on the ledger for a release whose randomizer states ``release``."""
        found = tuple(release)
        if self.kind == "conditional":
            return tuple(
                replace(event, mechanism=event.mechanism + CONDITIONAL_SUFFIX) for event in found
            )
        return found

    def training(self) -> tuple[PrivacyEvent, ...]:
        """Return what the bottom's own training cost: once, and every record that it was about.

        A release about some records tells of all others what the training let the bottom
        keep of them. So it is charged to all of the data, and not to the records released.
        """
        if self.kind != "dp":
            return ()
        return (PrivacyEvent(TRAINING, self.epsilon, self.delta, Unit.EXAMPLE),)

    @property
    def covers(self) -> str:
        """What the ledger's epsilon covers, in words for logs."""
        return {
            "public": "all that this party's embeddings tell about a record",
            "dp": f"all that this party's embeddings tell about a record, its training at "
            f"epsilon {self.epsilon:g}, delta {self.delta:g} included",
            "conditional": "what a record's own embedding tells, conditional on the bottom model: "
            "what its training on the records lets other embeddings tell is not covered",
        }[self.kind]

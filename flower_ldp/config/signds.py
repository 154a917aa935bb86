"""The ``signds`` section: selection, step size and server optimizer."""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from flower_ldp.config.part import Patterns, SubspaceConfig
from flower_ldp.config.server_optimizer import OptimizerConfig
from flower_ldp.mechanisms.magrr import MagRR
from flower_ldp.mechanisms.signds import SignDS
from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.privacy import PrivacyEvent
from flower_ldp.strategies import FixedStep, LearnedStep, ServerOptimizer
from flower_ldp.strategies.step_size import Scaling
from flower_ldp.yaml_source import Section, interval


class SignDSConfig(Section):
    """The ``signds`` section.

    Parameters
    ----------
    sign_k, sign_eps, sign_thr_ratio, sign_dim_out
        Fraction of dimensions that count as largest; epsilon of the selection, per round
        and client; least expected fraction of true top dimensions in a report; reported
        dimensions, 0 to choose them. ``sign_k: null`` chooses both sizes by what a report is
        worth, and leaves the ratio out.
    sign_global_lr : float
        Fixed rate. Used without ``sign_mag_eps``, and below ``sign_min_participation``.
    sign_mag_eps : float, optional
        Epsilon of the magnitude bit, per round and client: without it the rate is fixed.
        Refused with ``kind: fixed_length`` and ``kind: agreed_length``, which ignore what the
        bits tell.
    sign_mag_initial, sign_mag_significance, sign_mag_regrow_after
        MagRR's first estimate; how sure a majority must be, in standard deviations;
        settled rounds after which growth is probed again. The last two are 0 as published.
    sign_min_participation : float
        Participation below which the fixed rate is used.
    sign_scaling : {"published", "unbiased"}
        How the sum of signs is scaled.
    sign_server_optimizer : mapping, optional
        ``kind`` is ``momentum``, ``fixed_length``, ``agreed_length``, ``adam``, ``yogi`` or
        ``adagrad``; and the fields of that kind.
    trainable : str or list of str, optional
        Names or patterns of the arrays that are trained; all by default.
    subspace : mapping, optional
        ``dimension`` and ``seed`` of the public subspace that the run moves in.
    """

    sign_k: Annotated[float, interval("(0, 0.25]")] | None = 0.01
    sign_eps: Annotated[float, interval("(0, 100]")] = 100.0
    sign_thr_ratio: Annotated[float, interval("[0.5, 1]")] = 0.6
    sign_global_lr: Annotated[float, interval("(0, inf)")] = 0.1
    sign_dim_out: Annotated[int, interval("[0, 50]", int)] = 0
    sign_mag_eps: Annotated[float, interval("(0, 100]")] | None = None
    sign_mag_initial: Annotated[float, interval("[1e-30, 1e30]")] = 2.0**-10
    sign_mag_significance: Annotated[float, interval("[0, inf)")] = 2.3
    sign_mag_regrow_after: Annotated[int, interval("[0, inf)", int)] = 5
    sign_min_participation: Annotated[float, interval("[0, 1]")] = 0.05
    sign_scaling: Scaling = "published"
    sign_server_optimizer: OptimizerConfig | None = None
    trainable: Patterns | None = None
    subspace: SubspaceConfig | None = None

    @model_validator(mode="after")
    def _no_bit_is_bought_in_vain(self) -> SignDSConfig:
        chosen = self.sign_server_optimizer
        if self.sign_mag_eps is not None and chosen is not None and not chosen.uses_magnitude:
            wanted = "must be left out with planned steps, which ignore what the bit tells"
            raise PydanticCustomError("unused", wanted, {"at": ("sign_mag_eps",)})
        return self

    def mechanism(self) -> SignDS:
        """Return the dimension selection."""
        return SignDS(self.sign_eps, self.sign_k, self.sign_thr_ratio, self.sign_dim_out)

    def magnitude(self) -> MagRR | None:
        """Return what the magnitude bit goes through, if one is asked for."""
        if self.sign_mag_eps is None:
            return None
        return MagRR(
            self.sign_mag_eps,
            self.sign_mag_initial,
            self.sign_mag_significance,
            self.sign_mag_regrow_after,
        )

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return the cost of the selection and of the bit, if one is asked for."""
        magnitude = self.magnitude()
        return (*self.mechanism().events(), *(() if magnitude is None else magnitude.events()))

    def step(self) -> LearnedStep | FixedStep:
        """Return the step rule: learned if ``sign_mag_eps`` is given, else fixed."""
        fixed, magnitude = FixedStep(self.sign_global_lr), self.magnitude()
        if magnitude is None:
            return fixed
        return LearnedStep(magnitude, fixed, self.sign_min_participation)

    def server_optimizer(self) -> ServerOptimizer | None:
        """Return the server optimizer with fresh state, if one is configured."""
        chosen = self.sign_server_optimizer
        return None if chosen is None else chosen.build()

    def public_subspace(self) -> Subspace | None:
        """Return the subspace, for a strategy's ``subspace=``; None if there is none."""
        return None if self.subspace is None else self.subspace.build()

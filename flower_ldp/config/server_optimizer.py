"""What the server makes of a round's sum: one section for each optimizer, told by its ``kind``."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from flower_ldp.strategies import (
    Adagrad,
    Adam,
    AgreedLength,
    FixedLength,
    Momentum,
    ServerOptimizer,
    Yogi,
)
from flower_ldp.yaml_source import Section, interval


class MomentumConfig(Section):
    """Server momentum."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = True

    kind: Literal["momentum"]
    momentum: Annotated[float, interval("[0, 1)")] = 0.9
    learning_rate: Annotated[float, interval("(0, inf)")] = 1.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Momentum(self.momentum, self.learning_rate)


class FixedLengthConfig(Section):
    """Server steps of planned length."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = False

    kind: Literal["fixed_length"]
    length: Annotated[float, interval("(0, inf)")]
    rounds: Annotated[int, interval("[1, inf)", int)]
    momentum: Annotated[float, interval("[0, 1)")] = 0.9
    final_fraction: Annotated[float, interval("[0, 1]")] = 0.0

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return FixedLength(self.length, self.rounds, self.momentum, self.final_fraction)


class AgreedLengthConfig(Section):
    """Server steps as long as rounds agree."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = False

    kind: Literal["agreed_length"]
    momentum: Annotated[float, interval("[0, 1)")] = 0.9

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return AgreedLength(self.momentum)


class AdamConfig(Section):
    """Adam, as Flower's ``FedAdam``."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = True

    kind: Literal["adam"]
    eta: Annotated[float, interval("(0, inf)")] = 0.1
    beta_1: Annotated[float, interval("[0, 1)")] = 0.9
    beta_2: Annotated[float, interval("[0, 1)")] = 0.99
    tau: Annotated[float, interval("(0, inf)")] = 1e-3

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Adam(self.eta, self.beta_1, self.beta_2, self.tau)


class YogiConfig(Section):
    """Yogi, as Flower's ``FedYogi``."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = True

    kind: Literal["yogi"]
    eta: Annotated[float, interval("(0, inf)")] = 0.01
    beta_1: Annotated[float, interval("[0, 1)")] = 0.9
    beta_2: Annotated[float, interval("[0, 1)")] = 0.99
    tau: Annotated[float, interval("(0, inf)")] = 1e-3

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Yogi(self.eta, self.beta_1, self.beta_2, self.tau)


class AdagradConfig(Section):
    """Adagrad, as Flower's ``FedAdagrad``."""

    #: Whether the length of a step depends on what clients tell of it.
    uses_magnitude: ClassVar[bool] = True

    kind: Literal["adagrad"]
    eta: Annotated[float, interval("(0, inf)")] = 0.1
    tau: Annotated[float, interval("(0, inf)")] = 1e-3

    def build(self) -> ServerOptimizer:
        """Return the optimizer, with fresh state."""
        return Adagrad(self.eta, self.tau)


_Optimizers = (
    MomentumConfig
    | FixedLengthConfig
    | AgreedLengthConfig
    | AdamConfig
    | YogiConfig
    | AdagradConfig
)
#: Any of them, told apart by its ``kind``.
OptimizerConfig = Annotated[_Optimizers, Field(discriminator="kind")]
#: The names by which they are told apart.
KINDS: tuple[str, ...] = tuple(
    get_args(section.model_fields["kind"].annotation)[0] for section in get_args(_Optimizers)
)

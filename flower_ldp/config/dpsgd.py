"""The ``dpsgd`` section: DP-SGD on a client's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flower_ldp.yaml_source import Section, YamlFormat, interval


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

    epsilon: Annotated[float, interval("[0.01, 30]")]
    delta: Annotated[float, interval("[1e-10, 0.5]")]
    epochs: Annotated[int, interval("[1, inf)", int)] = 3
    batch_size: Annotated[int, interval("[1, inf)", int)] = 250
    max_grad_norm: Annotated[float, interval("(0, inf)")] = 1.0


class DPSGDFile(Section):
    """A configuration file of DP-SGD: one ``dpsgd`` section."""

    dpsgd: DPSGDConfig


_FORMAT = YamlFormat(DPSGDFile)


def load_dpsgd_config(path: str | Path) -> DPSGDConfig:
    """Read the ``dpsgd`` section of a YAML file; raises as :func:`load_config` does."""
    return _FORMAT.load(path).dpsgd

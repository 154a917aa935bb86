"""YAML configuration of training and evaluation, in the shape that MindSpore Federated uses.

An ``encrypt`` section of an existing configuration loads unchanged::

    encrypt:
      encrypt_train_type: SIGNDS
      signds:
        sign_k: 0.01
        sign_eps: 100
        sign_thr_ratio: 0.6
        sign_global_lr: 0.1
        sign_dim_out: 0

This package adds optional fields that the published shape lacks: ``sign_mag_eps`` above
all, the epsilon of the magnitude bit. It has no default: without it the rate is fixed.
``laplace_eval`` and ``unsupervised`` configure protected evaluation. ``laplace_eval_eps`` is
what the published shape means by it: noise of scale 1 / laplace_eval_eps, with a true epsilon of
twice that per row, since rows on the simplex are up to 2 apart.

Unknown fields, wrong types and values outside their intervals are errors that name the
file, the line and the field.
"""

from __future__ import annotations

from flower_ldp.config.dpsgd import DPSGDConfig, DPSGDFile, load_dpsgd_config
from flower_ldp.config.encrypt import (
    DPEncryptConfig,
    EncryptConfig,
    PwEncryptConfig,
    TrainConfig,
    load_config,
    parse_config,
)
from flower_ldp.config.evaluation import LaplaceEvalConfig, MetricConfig, UnsupervisedConfig
from flower_ldp.config.signds import FixedLengthConfig, MomentumConfig, SignDSConfig

__all__ = [
    "DPEncryptConfig",
    "DPSGDConfig",
    "DPSGDFile",
    "EncryptConfig",
    "FixedLengthConfig",
    "LaplaceEvalConfig",
    "MetricConfig",
    "MomentumConfig",
    "PwEncryptConfig",
    "SignDSConfig",
    "TrainConfig",
    "UnsupervisedConfig",
    "load_config",
    "load_dpsgd_config",
    "parse_config",
]

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

Additional fields of this package are optional. ``sign_mag_eps``, the epsilon of the magnitude bit,
has no default: without it the rate is fixed. ``laplace_eval_eps`` has its published meaning, noise
of scale 1 / laplace_eval_eps; the true epsilon per row is twice that, since rows on the simplex
differ by up to 2. Errors name file, line and field.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from flower_ldp.config.encrypt import (
    ConfiguredRun,
    EncryptConfig,
    LaplaceEvalConfig,
    MetricConfig,
    PwEncryptConfig,
    TrainConfig,
    UnsupervisedConfig,
    from_config,
    load_config,
)
from flower_ldp.config.labels import (
    DPSGDConfig,
    DPSGDFile,
    EmbeddingDPConfig,
    LabelDPConfig,
    SplitConfig,
    VerticalConfig,
    load_dpsgd_config,
    load_label_config,
    load_split_config,
    load_vertical_config,
)
from flower_ldp.config.updates import (
    CodewordConfig,
    DPEncryptConfig,
    SignDSConfig,
    SubspaceConfig,
    UpdateSection,
)
from flower_ldp.yaml_source import Section

__all__ = [
    "SECTIONS",
    "CodewordConfig",
    "ConfiguredRun",
    "DPEncryptConfig",
    "DPSGDConfig",
    "DPSGDFile",
    "EmbeddingDPConfig",
    "EncryptConfig",
    "LabelDPConfig",
    "LaplaceEvalConfig",
    "MetricConfig",
    "PwEncryptConfig",
    "SignDSConfig",
    "SplitConfig",
    "SubspaceConfig",
    "TrainConfig",
    "UnsupervisedConfig",
    "UpdateSection",
    "VerticalConfig",
    "from_config",
    "load_config",
    "load_dpsgd_config",
    "load_label_config",
    "load_split_config",
    "load_vertical_config",
]

#: Every kind of file, by the section that it is known by, and what reads it.
SECTIONS: Mapping[str, Callable[[Path], Section]] = MappingProxyType(
    {
        "encrypt": load_config,
        "dpsgd": load_dpsgd_config,
        "label_dp": load_label_config,
        "embedding_dp": load_split_config,
        "privacy": load_vertical_config,
    }
)

"""The strategy: the paper's selection, with its step or with one that does not depend on N."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import UserConfig

from flower_ldp.mechanisms import MagRR, SignDS
from flower_ldp.strategies import FixedStep, LearnedStep, SignDSStrategy


def make(config: UserConfig) -> SignDSStrategy:
    """Return the strategy of a run configuration.

    ``magnitude-epsilon`` above 0 asks for one private bit more and learns the step from it
    (MagRR); 0 is the fixed rate ``global-rate``.
    """
    published = config["rule"] == "published"
    if not published and config["rule"] != "ours":
        raise ValueError(f"rule must be 'published' or 'ours', got {config['rule']!r}")
    selection = SignDS(
        epsilon=float(config["epsilon"]),
        k=float(config["k"]),
        threshold_ratio=float(config["threshold-ratio"]),
        dim_out=int(config["dim-out"]),
    )
    fixed = FixedStep(float(config["global-rate"]))
    return SignDSStrategy(
        selection,
        _learned(config, fixed, published) if config["magnitude-epsilon"] else fixed,
        scaling="published" if published else "unbiased",
        fraction_train=float(config["fraction-train"]),
    )


def _learned(config: UserConfig, fixed: FixedStep, published: bool) -> LearnedStep:
    bit = MagRR(float(config["magnitude-epsilon"]), float(config["first-magnitude"]))
    if published:  # every majority is acted on, and the estimate never grows again
        bit = replace(bit, significance=0.0, regrow_after=0)
    return LearnedStep(bit, fixed)

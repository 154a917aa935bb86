"""The ``laplace_eval`` and ``unsupervised`` sections: protected evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from flower_ldp.mechanisms.bounded_mean import BoundedMean
from flower_ldp.mechanisms.laplace import Laplace
from flower_ldp.mechanisms.laplace_plan import LaplacePlan
from flower_ldp.yaml_source import Section, interval, misfit


class MetricConfig(Section):
    """What one scalar metric goes through; epsilon per evaluation and client."""

    epsilon: Annotated[float, interval("[0.000001, 1000000]")]
    lower: Annotated[float, interval("(-inf, inf)")]
    upper: Annotated[float, interval("(-inf, inf)")]

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> MetricConfig:
        if not self.lower < self.upper:
            raise misfit("must be above lower", "upper")
        return self


class LaplaceEvalConfig(Section):
    """The ``laplace_eval`` section.

    Parameters
    ----------
    laplace_eval_eps : float
        One over the scale of the noise, as published: half of the true epsilon per row.
    rows : int
        Rows that a client releases in an evaluation; each costs the epsilon.
    metrics : mapping of str to MetricConfig
        Scalar metrics that clients are asked for; others never leave.
    """

    laplace_eval_eps: Annotated[float, interval("[0.0000005, 500000]")] = 230_260.0
    rows: Annotated[int, interval("[1, 1048576]", int)] = 1
    metrics: Mapping[str, MetricConfig] = Field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """The true epsilon per row and client, by theorem."""
        return LaplacePlan.from_published(self.laplace_eval_eps).epsilon

    def mechanism(self, classes: int) -> Laplace:
        """Return the mechanism for rows of ``classes`` probabilities."""
        return Laplace(self.epsilon, classes, self.rows)

    def metric_mechanisms(self) -> dict[str, BoundedMean]:
        """Return the mechanism of each metric, by its name."""
        return {
            name: BoundedMean(metric.epsilon, metric.lower, metric.upper)
            for name, metric in self.metrics.items()
        }


class UnsupervisedConfig(Section):
    """The ``unsupervised`` section: how many clients score, and what the score is."""

    cluster_client_num: Annotated[int, interval("[1, inf)", int)] = 1_000
    eval_type: Literal["SILHOUETTE_SCORE", "CALINSKI_HARABASZ_SCORE"] = "SILHOUETTE_SCORE"

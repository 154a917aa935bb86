"""Ways of training on private labels that begin with neighbours, for benchmarks/label_dp.py.

The images are public under label privacy, so which ones look alike is known before any label is.
Each label's prior comes from the reports of the examples nearest to it, and of theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import typer
from _label_methods import Doubles, Examples, Task, floats, staged, train
from numpy.typing import NDArray
from torch import nn

from flower_ldp.labels import nearest_examples, posterior, priors_from_neighbours
from flower_ldp.labels.losses import soft_target_loss


@cache
def neighbours(examples: Examples, count: int) -> NDArray[np.int32]:
    """Return the nearest others of each example; it reads no label.

    The same for all epsilons, methods and seeds, so they are found once a process.
    """
    if examples.coordinates is None:
        raise typer.BadParameter("--cache names the file for the features of images")
    return nearest_examples(examples.coordinates, count)


def prior_of(task: Task, likelihood: Doubles) -> Doubles:
    settings = task.near
    near = neighbours(task.examples, settings.neighbours)
    return priors_from_neighbours(likelihood, near, steps=settings.neighbour_steps)


def trained(task: Task, likelihood: Doubles, prior: Doubles) -> nn.Sequential:
    """Train on the posteriors, made surer: few of the likeliest labels are wrong."""
    targets = posterior(likelihood, prior) ** task.near.sharpness
    targets /= targets.sum(axis=1, keepdims=True)
    return train(task, soft_target_loss, floats(targets))


def neighbours_subset(task: Task) -> nn.Sequential:
    """One stage: subset selection, and priors from neighbours."""
    reports = task.sets.randomize_array(task.labels, task.noise)
    likelihood = task.sets.likelihood(reports)
    return trained(task, likelihood, prior_of(task, likelihood))


def neighbours_lp_2st(task: Task) -> nn.Sequential:
    """Two stages: the first one's reports give the priors with which the second one draws."""
    likelihood, _ = staged(task, task.sets, lambda found, _: prior_of(task, found))
    return trained(task, likelihood, prior_of(task, likelihood))


METHODS: dict[str, Callable[[Task], nn.Sequential]] = {
    function.__name__: function for function in (neighbours_subset, neighbours_lp_2st)
}

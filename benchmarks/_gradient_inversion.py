"""Attacks that turn the update of one example back into its image.

The victim is the LeNet with sigmoids of Zhu, Liu and Han ("Deep Leakage from Gradients", 2019).
It has 13,426 weights, drawn from [-0.5, 0.5]. Its update is one step of gradient descent on one
image.
The attacker has the weights, the learning rate and the randomizer's settings.

* ``deep_leakage`` is the attack of Zhu et al.: L-BFGS finds an image and a soft label together.
* ``with_prior`` is that of Geiping, Bauermeister, Dröge and Moeller ("Inverting Gradients", 2020).
  Adam on the gradient's sign minimizes one minus the cosine plus the image's total variation. The
  attacker knows the label.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

SIDE, CLASSES = 28, 10
#: Inner iterations of a step of L-BFGS, as in Zhu et al.
INNER = 20
#: Of the squared distance of gradients; below it the image is found.
GOAL = 1e-4

Distance = Callable[[Tensor], Tensor]


def lenet(seed: int) -> nn.Module:
    """Return the network of Zhu et al. for images of 28 x 28."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(588, CLASSES),
        )
        for weight in net.parameters():
            nn.init.uniform_(weight, -0.5, 0.5)
    return net.requires_grad_(requires_grad=False)


@dataclass(frozen=True)
class Victim:
    """A network, and how far a step moves it."""

    net: nn.Module
    rate: float

    def update(self, image: Tensor, target: Tensor) -> Tensor:
        """Return minus rate times gradient, (d,), for an image (1, 28, 28) and class weights."""

        def loss(weights: dict[str, Tensor]) -> Tensor:
            found = functional_call(self.net, weights, (image[None],))
            return nn.functional.cross_entropy(found, target[None])

        found = grad(loss)(dict(self.net.named_parameters()))
        return -self.rate * torch.cat([part.reshape(-1) for part in found.values()])

    def updates(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return the updates (n, d) of images (n, 1, 28, 28) by themselves."""
        found: Tensor = vmap(self.update)(images, targets)
        return found


def squared(seen: Tensor, scale: float, longest: float = math.inf) -> Distance:
    """Return the squared distance from ``seen`` of updates clipped to a length."""

    def distance(update: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(update)
        clipped = update * (longest / length) if length > longest else update
        return ((clipped - seen) / scale).square().sum()

    return distance


def angle(seen: Tensor) -> Distance:
    """Return one minus the cosine with ``seen``, for reports without a length."""
    return lambda update: 1.0 - nn.functional.cosine_similarity(update, seen, dim=-1)


def deep_leakage(victim: Victim, distance: Distance, seed: int, evaluations: int) -> Tensor:
    """Return the image (28, 28) in [0, 1] whose update is nearest.

    The search starts anew where it stops. It ends below a distance of 1e-4, or when the evaluations
    of the distance are used up.
    """
    generator = torch.Generator().manual_seed(seed)
    best, nearest, used = torch.full((SIDE, SIDE), 0.5), math.inf, 0
    while nearest > GOAL and used < evaluations:
        image = torch.randn(1, SIDE, SIDE, generator=generator).requires_grad_()
        label = torch.randn(CLASSES, generator=generator).requires_grad_()
        spent = _descend(victim, distance, image, label, evaluations - used)
        used += spent + 1
        with torch.no_grad():
            last = float(distance(victim.update(image, label.softmax(0))))
        if last < nearest:
            best, nearest = image.detach()[0].clamp(0, 1), last
    return best


def _descend(
    victim: Victim, distance: Distance, image: Tensor, label: Tensor, evaluations: int
) -> int:
    """Move image and label to a minimum, and return the number of evaluations."""
    optimizer = torch.optim.LBFGS([image, label], max_iter=INNER)

    def closure() -> Tensor:
        optimizer.zero_grad()
        found = distance(victim.update(image, label.softmax(0)))
        found.backward()
        return found

    used = 0
    while used < evaluations:
        found = optimizer.step(closure).detach()
        before, used = used, optimizer.state[image]["func_evals"]
        if used - before < 2 or not math.isfinite(float(found)):
            break
    return used


def variation(images: Tensor) -> Tensor:
    """Return each image's mean difference between neighbours."""
    across = images.diff(dim=-1).abs().mean(dim=(1, 2, 3))
    return across + images.diff(dim=-2).abs().mean(dim=(1, 2, 3))


def with_prior(
    victim: Victim, seen: Tensor, targets: Tensor, priors: Tensor, seed: int, steps: int
) -> Tensor:
    """Return images (n, 28, 28) in [0, 1] for what was seen (n, d), all at once.

    ``priors`` (n,) are the weights of the total variation.
    """
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(len(seen), 1, SIDE, SIDE, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.1)
    falls = [steps * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
    for _ in range(steps):
        cost = angle(seen)(victim.updates(images, targets)) + priors * variation(images)
        (slope,) = torch.autograd.grad(cost.sum(), images)
        images.grad = slope.sign()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()[:, 0]

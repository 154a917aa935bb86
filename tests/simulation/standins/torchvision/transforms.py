"""The three transforms that the apps use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Compose:
    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        for one in self._transforms:
            image = one(image)
        return image


class ToTensor:
    def __call__(self, image: Any) -> torch.Tensor:
        return torch.from_numpy(image).permute(2, 0, 1).float() / 255


class Normalize:
    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self._mean, self._std = (torch.tensor(one)[:, None, None] for one in (mean, std))

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self._mean) / self._std

"""Fixed features of images: moduli of wavelet coefficients, two layers deep (after Mallat 2012).

No number in them is learned, so computing them tells nothing about other records: a bottom
that is public up to here, and one linear layer after it, trains in seconds and under DP-SGD.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

ANGLES = [math.pi * i / 8 for i in range(8)]
_BATCH = 250
_GROUPS = 27


def _wavelet(shape: tuple[int, int], sigma: float, frequency: float, angle: float) -> Tensor:
    """Return the Fourier transform of a Morlet wavelet on a torus."""
    height, width = shape
    wave, bump = np.zeros(shape, dtype=complex), np.zeros(shape)
    for row in range(-2, 3):
        for column in range(-2, 3):
            y = np.arange(height)[:, None] + row * height
            x = np.arange(width)[None] + column * width
            along = x * math.cos(angle) + y * math.sin(angle)
            across = -x * math.sin(angle) + y * math.cos(angle)
            window = np.exp(-(along**2 + across**2 / 4) / (2 * sigma**2))
            bump += window
            wave += window * np.exp(1j * frequency * along)
    wave = (wave - wave.sum() / bump.sum() * bump) / (4 * math.pi * sigma**2)
    return torch.from_numpy(np.fft.fft2(wave).astype(np.complex64))


def wavelet_features(images: NDArray[np.uint8]) -> NDArray[np.float16]:
    """Return features of images, each image normalized by itself in groups of channels.

    Parameters
    ----------
    images : ndarray of uint8, shape (n, height, width)

    Returns
    -------
    ndarray of float16, shape (n, 81 * cells)
    """
    height, width = images.shape[1:]
    padded = (height + 4, width + (6 if width % 4 else 4))
    half = (padded[0] // 2, padded[1] // 2)
    fine = torch.stack([_wavelet(padded, 0.8, 3 * math.pi / 4, a) for a in ANGLES])
    coarse = torch.stack([_wavelet(padded, 1.6, 3 * math.pi / 8, a) for a in ANGLES])
    second = torch.stack([_wavelet(half, 0.8, 3 * math.pi / 4, a) for a in ANGLES])
    cells = height // 4, -(-width // 4)
    found = []
    for start in range(0, len(images), _BATCH):
        part = torch.from_numpy(images[start : start + _BATCH].astype(np.float32) / 255)
        image = torch.zeros(len(part), 1, *padded)
        image[:, 0, :height, :width] = part
        spectrum = torch.fft.fft2(image)
        one = torch.fft.ifft2(spectrum * fine).abs()
        two = torch.fft.ifft2(spectrum * coarse).abs()
        deep = torch.fft.ifft2(torch.fft.fft2(avg_pool2d(one, 2))[:, :, None] * second).abs()
        maps = [
            avg_pool2d(image, 6, 4, 1),
            2 * avg_pool2d(one, 6, 4, 1),
            2 * avg_pool2d(two, 6, 4, 1),
            4 * avg_pool2d(deep.flatten(1, 2), 4, 2, 1),
        ]
        found.append(_normalized(torch.cat(maps, 1)[:, :, : cells[0], : cells[1]]))
    return np.concatenate(found)


def _normalized(maps: Tensor) -> NDArray[Any]:
    groups = maps.reshape(len(maps), _GROUPS, -1)
    centred = groups - groups.mean(2, keepdim=True)
    return (centred / (groups.std(2, keepdim=True) + 1e-3)).flatten(1).half().numpy()

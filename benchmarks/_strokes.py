"""Features of handwriting for which no handwriting was read: wavelets, and axes of random strokes.

Images of random curves stand for what strokes look like. The principal axes of their wavelet
features, and how far they spread along each, are a public linear map: few numbers, in a scale in
which gradient descent goes in all directions alike. Nothing of it depends on anybody's data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from _wavelets import wavelet_features
from numpy.typing import NDArray

#: Images of strokes, and axes that are kept of their features.
_STROKES, AXES = 8_000, 300
_SIDE, _BOX = 28, 20.0
_BATCH = 5_000
Floats = NDArray[np.float32]


def strokes(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return images of one to three cubic curves each, as large and as centred as MNIST's digits.

    Returns
    -------
    ndarray of uint8, shape (count, 28, 28)
    """
    rng = np.random.default_rng(seed)
    t = np.linspace(0.0, 1.0, 24)[:, None]
    cubic = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3])
    y, x = np.mgrid[:_SIDE, :_SIDE].astype(np.float32)
    found = np.zeros((count, _SIDE, _SIDE), np.uint8)
    for image in found:
        points, end = [], rng.uniform(-10, 10, 2)
        for _ in range(rng.integers(1, 4)):
            controls = rng.uniform(-10, 10, (4, 2))
            if rng.random() < 0.7:  # mostly one curve begins where the last one ended
                controls[0] = end
            points.append(cubic @ controls)
            end = controls[3]
        line = np.concatenate(points)
        low, high = line.min(axis=0), line.max(axis=0)
        line = (line - (low + high) / 2) * (_BOX / max(6.0, (high - low).max()))
        line += (_SIDE - 1) / 2 - line.mean(axis=0)
        width = rng.uniform(0.8, 1.4)
        square = (y.ravel()[:, None] - line[:, 0]) ** 2 + (x.ravel()[:, None] - line[:, 1]) ** 2
        ink = 330 * np.exp(-square.min(axis=1) / (2 * width * width))
        image[:] = np.minimum(255, ink).reshape(_SIDE, _SIDE)
    return found


def stroke_axes() -> tuple[Floats, Floats, Floats]:
    """Return the mean of strokes' features, their axes, and the variance along each."""
    features = wavelet_features(strokes(_STROKES)).astype(np.float32)
    mean = features.mean(axis=0)
    features -= mean
    variances, vectors = np.linalg.eigh(features.T @ features / len(features))
    return mean, vectors[:, ::-1][:, :AXES], variances[::-1][:AXES]


def coordinates(images: dict[str, NDArray[np.uint8]], cache: Path) -> dict[str, Floats]:
    """Return images along the axes of strokes, and the axes' variances under ``"variances"``.

    Parameters
    ----------
    images : dict of ndarray of uint8, shape (n, 28, 28)
        By name.
    cache : Path
        An ``npz`` file; read if it is there, else written: it takes minutes.
    """
    if not cache.exists():
        mean, axes, variances = stroke_axes()
        found: dict[str, Any] = {"variances": variances}
        for name, some in images.items():
            parts = range(0, len(some), _BATCH)
            found[name] = np.concatenate(
                [(wavelet_features(some[i : i + _BATCH]) - mean) @ axes for i in parts]
            ).astype(np.float32)
        np.savez(cache, **found)
    with np.load(cache) as file:
        return {name: file[name] for name in file.files}


def features(along: Floats, variances: Floats, size: int, power: float) -> Floats:
    """Return unit vectors of the first axes, each divided by a power of its spread, and 0.1.

    Parameters
    ----------
    along : ndarray of float32, shape (n, axes)
        What :func:`coordinates` returned.
    variances : ndarray of float32
        Along each axis, of strokes.
    size : int
        How many axes.
    power : float
        0 leaves their spread, 1 makes it the same along all, for strokes.
    """
    scaled = along[:, :size] * variances[:size] ** (-power / 2)
    return with_constant(scaled)


def with_constant(rows: Floats) -> Floats:
    """Return unit vectors of rows, and a constant that stands for the bias."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
    return np.column_stack([unit, np.full(len(unit), 0.1)]).astype(np.float32)

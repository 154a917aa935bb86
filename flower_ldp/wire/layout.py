"""A model as one vector: which arrays count, in which order, at which offset.

Both ends flatten the floating-point arrays of the model in the record's order; an array
with no axes counts as one entry. Integer and boolean arrays (BatchNorm's counters, say)
are not trained by a private report: they stay what the server sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import quoted

_FLOATS = ("f2", "f4", "f8")
_COUNTERS = "biu"


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype of one array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        """Whether the array belongs to the update."""
        return self.dtype.kind == "f"

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class ModelLayout:
    """The arrays of a model, in the record's order.

    Parameters
    ----------
    specs : tuple of ArraySpec
        All arrays, counters included.
    """

    specs: tuple[ArraySpec, ...]

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> ModelLayout:
        """Read the layout of a model.

        Raises
        ------
        ValueError
            If an array is neither float16, float32, float64, integer nor boolean, or if
            no floating-point entry is left.
        """
        specs = []
        for name, array in arrays.items():
            if array.dtype.kind not in _COUNTERS and array.dtype.str[1:] not in _FLOATS:
                raise ValueError(
                    f"array {quoted(name)} has dtype {array.dtype}, which is not supported"
                )
            specs.append(ArraySpec(name, array.shape, array.dtype))
        layout = cls(tuple(specs))
        if layout.dimension == 0:
            raise ValueError("the model has no floating-point entries")
        return layout

    @cached_property
    def dimension(self) -> int:
        """d: number of floating-point entries."""
        return sum(spec.size for spec in self.specs if spec.is_float)

    def difference(
        self, new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        """Return ``new - old`` over the floating-point arrays, flattened.

        Parameters
        ----------
        new : mapping of str to ndarray
            The trained model; must have this very layout, in any order of names.
        old : mapping of str to ndarray
            The model that was sent.

        Returns
        -------
        ndarray of float32, shape (d,)

        Raises
        ------
        ValueError
            If ``new`` has other arrays, shapes or dtypes. The text names them.
        """
        if set(new) != {spec.name for spec in self.specs}:
            missing = sorted({spec.name for spec in self.specs} ^ set(new))
            raise ValueError(f"arrays missing or added: {quoted(missing)}")
        for spec in self.specs:
            got = new[spec.name]
            if got.shape != spec.shape or got.dtype != spec.dtype:
                raise ValueError(
                    f"array {quoted(spec.name)} is {got.dtype}{got.shape}, "
                    f"sent was {spec.dtype}{spec.shape}"
                )
        update = np.empty(self.dimension, dtype=np.float32)
        start = 0
        for spec in self.specs:
            if spec.is_float:
                piece = update[start : start + spec.size].reshape(spec.shape)
                with np.errstate(all="ignore"):
                    # An overflow becomes an infinity, which the mechanism refuses.
                    # float16 is widened first: its differences round and overflow early.
                    np.subtract(
                        new[spec.name],
                        old[spec.name],
                        out=piece,
                        dtype=np.promote_types(spec.dtype, np.float32),
                        casting="same_kind",
                    )
                start += spec.size
        return update

    def add(
        self, arrays: Mapping[str, NDArray[Any]], update: NDArray[np.floating[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the model moved by a flat update; counters are passed on unchanged.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            A model of this layout.
        update : ndarray of floats, shape (d,)
            What to add.

        Raises
        ------
        ValueError
            If ``update`` has another length than d.
        """
        if update.shape != (self.dimension,):
            raise ValueError(f"update must have shape ({self.dimension},), got {update.shape}")
        moved: dict[str, NDArray[Any]] = {}
        start = 0
        for spec in self.specs:
            array = arrays[spec.name]
            if spec.is_float:
                piece = update[start : start + spec.size].reshape(spec.shape)
                # asarray: numpy turns a sum of arrays without axes into a scalar
                moved[spec.name] = np.asarray(array + piece, dtype=spec.dtype)
                start += spec.size
            else:
                moved[spec.name] = array
        return moved

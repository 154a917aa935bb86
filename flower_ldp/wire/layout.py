"""A model as one vector: which arrays count, in which order, at which offset.

Both ends flatten the floating-point arrays of the model in the record's order; an array
with no axes counts as one entry. Integer and boolean arrays (BatchNorm's counters, say)
are not trained by a private report: they stay what the server sent. So do floating-point arrays
that a proposal leaves out (:mod:`flower_ldp.wire.part`), as BatchNorm's running statistics. Where
it states a subspace, the vector that a report is about is the projection of the update, of k
entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import WireError, quoted
from flower_ldp.wire.part import WHOLE, Part

_FLOATS = ("f2", "f4", "f8")
_COUNTERS = "biu"
#: Ends the complaint about an array with fewer rows, as that of a model of fewer classes.
FEWER_ROWS = ": it has fewer rows"


@dataclass(frozen=True)
class ArraySpec:
    """Name, shape and dtype of one array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_float(self) -> bool:
        """Whether the array can belong to the update."""
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
    part : Part
        What of them reports are about; all floating-point arrays by default.
    alone : bool
        Whether a trained model may hold the arrays of the update alone. It may wherever the part
        names them.
    """

    specs: tuple[ArraySpec, ...]
    part: Part = WHOLE
    alone: bool = False

    @classmethod
    def of(
        cls, arrays: Mapping[str, NDArray[Any]], part: Part = WHOLE, *, alone: bool = False
    ) -> ModelLayout:
        """Read the layout of a model.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            The model.
        part : Part
            What of it reports are about.
        alone : bool
            Whether a trained model may hold the arrays of the update alone.

        Raises
        ------
        ValueError
            If an array is neither float16, float32, float64, integer nor boolean; if the part
            names what is no floating-point array; if no floating-point entry is left; or if
            there are fewer than the subspace has dimensions.
        """
        specs = []
        for name, array in arrays.items():
            if array.dtype.kind not in _COUNTERS and array.dtype.str[1:] not in _FLOATS:
                raise ValueError(
                    f"array {quoted(name)} has dtype {array.dtype}, which is not supported"
                )
            specs.append(ArraySpec(name, array.shape, array.dtype))
        layout = cls(tuple(specs), part, alone)
        odd = set(part.names or ()) - {spec.name for spec in layout.updated}
        if odd:
            raise ValueError(f"no floating-point arrays of the model: {quoted(sorted(odd))}")
        if layout.dimension == 0:
            raise ValueError(
                "the model has no floating-point entries: its arrays are "
                f"{quoted({spec.name: str(spec.dtype) for spec in specs})}. Reports are about "
                "differences of weights, and trees (XGBoost) have none: train a model of weights, "
                "as logistic regression or a small network"
            )
        if part.subspace is not None:
            part.subspace.check(layout.dimension)
        return layout

    @cached_property
    def updated(self) -> tuple[ArraySpec, ...]:
        """The arrays of the update: floating-point, and of the part."""
        named = self.part.names
        chosen = None if named is None else frozenset(named)
        return tuple(
            spec for spec in self.specs if spec.is_float and (chosen is None or spec.name in chosen)
        )

    @property
    def is_partial(self) -> bool:
        """Whether a trained model's other arrays are left out, or passed over."""
        return self.alone or self.part.names is not None

    @cached_property
    def required(self) -> tuple[ArraySpec, ...]:
        """The arrays that a trained model has to hold: all, or those of the update with entries."""
        return tuple(s for s in self.updated if s.size) if self.is_partial else self.specs

    @cached_property
    def dimension(self) -> int:
        """d: number of entries of the update."""
        return sum(spec.size for spec in self.updated)

    @property
    def entries(self) -> int:
        """Number of entries that a report is about: the subspace's k, or d without one."""
        return self.dimension if self.part.subspace is None else self.part.subspace.dimension

    def check_names(self, found: Iterable[str]) -> None:
        """Raise WireError unless a trained model holds the arrays that it has to, and no other.

        Where it may hold the arrays of the update alone, others are not looked at.
        """
        names, has = {spec.name for spec in self.required}, set(found)
        odd = {"missing": names - has, "added": set() if self.is_partial else has - names}
        if any(odd.values()):
            told = (f"{what} {quoted(sorted(which))}" for what, which in odd.items() if which)
            raise WireError("layout", f"arrays {', '.join(told)}")

    def difference(
        self, new: Mapping[str, NDArray[Any]], old: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        """Return ``new - old`` over the arrays of the update, flattened.

        Parameters
        ----------
        new : mapping of str to ndarray
            The trained model; must have this very layout, in any order of names. Where it may hold
            the arrays of the update alone, others are not looked at, whatever their names.
        old : mapping of str to ndarray
            The model that was sent.

        Returns
        -------
        ndarray of float32, shape (d,)

        Raises
        ------
        WireError
            If ``new`` has other arrays, shapes or dtypes. The text names them.
        """
        self.check_names(new)
        for spec in self.required:
            got = new[spec.name]
            if got.shape != spec.shape or got.dtype != spec.dtype:
                fewer = got.ndim == len(spec.shape) > 0 and len(got) < spec.shape[0]
                raise WireError(
                    "layout",
                    f"array {quoted(spec.name)} is {got.dtype}{got.shape}, "
                    f"sent was {spec.dtype}{spec.shape}{FEWER_ROWS if fewer else ''}",
                )
        update = np.empty(self.dimension, dtype=np.float32)
        start = 0
        for spec in self.updated:
            if not spec.size:  # it may be left out
                continue
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

    def project(self, update: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return what a report is about: the update, or its projection onto the subspace.

        Parameters
        ----------
        update : ndarray of floats, shape (d,)
            Of :meth:`difference`: finite numbers within float32 stay finite.
        """
        return update if self.part.subspace is None else self.part.subspace.project(update)

    def lift(self, step: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
        """Return the update that a step of so many entries as a report is about stands for.

        Parameters
        ----------
        step : ndarray of floats, shape (entries,)
            What reports say, in the subspace if there is one.

        Returns
        -------
        ndarray of floats, shape (d,)
        """
        within = self.part.subspace
        return step if within is None else within.lift(step, self.dimension)

    def add(
        self, arrays: Mapping[str, NDArray[Any]], update: NDArray[np.floating[Any]]
    ) -> dict[str, NDArray[Any]]:
        """Return the model moved by a flat update; what is not of it is passed on unchanged.

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
        moved = {spec.name: arrays[spec.name] for spec in self.specs}
        start = 0
        for spec in self.updated:
            piece = update[start : start + spec.size].reshape(spec.shape)
            # asarray: numpy turns a sum of arrays without axes into a scalar
            moved[spec.name] = np.asarray(arrays[spec.name] + piece, dtype=spec.dtype)
            start += spec.size
        return moved

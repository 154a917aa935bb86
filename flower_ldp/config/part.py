"""The fields ``trainable`` and ``subspace`` of a section: which part of a model is trained."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator

from flower_ldp.mechanisms.subspace import Subspace
from flower_ldp.wire.part import patterns_of
from flower_ldp.yaml_source import Section, interval, misfit


class SubspaceConfig(Section):
    """A public subspace that a run moves in.

    Parameters
    ----------
    dimension : int
        k, at most the weights of what is trained.
    seed : int
        Which subspace of that dimension.
    """

    dimension: Annotated[int, interval("[1, 4194304]", int)]
    seed: Annotated[int, interval("[0, 9223372036854775808)", int)] = 0

    def build(self) -> Subspace:
        """Return the subspace, for a strategy's ``subspace=``."""
        return Subspace(self.dimension, self.seed)


def _patterns(value: object) -> object:
    try:
        found = patterns_of(value)  # type: ignore[arg-type]  # whatever the file says
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise misfit("must be a name or pattern of arrays, or a list")
    return found


#: A name or a pattern of arrays, or a list of them, as a tuple.
Patterns: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_patterns)]

"""What an owner has read: apps by the digest of their bundle, extensions by version and digest.

A claim about one record rests on what the app computes, which nobody sees from outside. So the
guarded node lets such claims out for the bundles that stand here, and for no other. A bundle has
the run's configuration only as its defaults: what the run puts in their place is judged here too.
An extension has a least price.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, model_validator

from flower_ldp.errors import quoted
from flower_ldp.mechanisms import name_complaint
from flower_ldp.policy.sections import Delta, Epsilon, Name, NotEmpty, matching, mechanism_name
from flower_ldp.privacy import CONDITIONAL_SUFFIX
from flower_ldp.yaml_source import Section, misfit

#: A value of a run's configuration.
Value = bool | int | float | str

Digest = Annotated[
    str,
    matching(r"sha256:[0-9a-f]{64}", "must be 'sha256:' and 64 hexadecimal digits in lower case"),
]


class Override(Section):
    """What a run may put in the place of one default: one of a few values, or one of an interval.

    The type counts: 1, 1.0 and true are three values.

    Parameters
    ----------
    values : sequence, optional
        The values themselves.
    integers : sequence of int, optional
        The least and the greatest integer.
    numbers : sequence of float, optional
        The least and the greatest number with a point.
    """

    values: Annotated[Sequence[Value] | None, NotEmpty] = None
    integers: Annotated[Sequence[int] | None, NotEmpty] = None
    numbers: Annotated[Sequence[float] | None, NotEmpty] = None

    @model_validator(mode="after")
    def _one_of_three(self) -> Override:
        given = [one for one in (self.values, self.integers, self.numbers) if one is not None]
        if len(given) != 1 or not given[0]:
            raise misfit("must have one of 'values', 'integers' and 'numbers', and not empty")
        for name in ("integers", "numbers"):
            ends = getattr(self, name)
            ordered = ends is None or (
                len(ends) == 2 and all(map(math.isfinite, ends)) and ends[0] <= ends[1]
            )
            if not ordered:
                raise misfit("must be the least and the greatest", name)
        return self

    def allows(self, value: object) -> bool:
        """Return whether a run may have this value."""
        if self.values is not None:
            return any(type(one) is type(value) and one == value for one in self.values)
        if self.integers is not None:
            low, high = self.integers
            return type(value) is int and low <= value <= high
        if self.numbers is not None:
            least, greatest = self.numbers
            return type(value) is float and least <= value <= greatest  # nan is not
        return False


class App(Section):
    """One bundle that the owner has read.

    Parameters
    ----------
    releases : sequence of str
        Mechanisms whose claims may rest on this app: those about an example or a label, and those
        that are declared post-processing.
    run_config : mapping of str to Override
        What a run may say in the place of the bundle's defaults. Nothing else.
    environment : str, optional
        Digest of the node's environment in which the app was judged.
    """

    releases: Sequence[Name] = ()
    run_config: Mapping[str, Override] = {}
    environment: Annotated[Digest | None, NotEmpty] = None

    def misfit(self, overrides: Mapping[str, object]) -> str | None:
        """Return why a run's configuration is none that is allowed; None if it is."""
        for key, value in overrides.items():
            allowed = next((one for name, one in self.run_config.items() if name == key), None)
            if allowed is None:
                return f"the run may not set {quoted(key)}"
            if not allowed.allows(value):
                kind = type(value).__name__
                return f"the run may not set {quoted(key)} to {quoted(str(value))} ({kind})"
        return None

    def may_release(self, mechanism: str) -> bool:
        """Return whether a claim under this name may rest on the app."""
        return mechanism in self.releases

    def may_embed(self, mechanism: str) -> bool:
        """Return whether embeddings by this mechanism may, with a condition or without."""
        return any(one in self.releases for one in (mechanism, mechanism + CONDITIONAL_SUFFIX))

    def may_learn(self, *, gradients: bool) -> bool:
        """Return whether a bottom may be trained on the records: by gradients only conditionally.

        Parameters
        ----------
        gradients : bool
            Whether by what the server sends after each step.
        """
        conditional = any(one.endswith(CONDITIONAL_SUFFIX) for one in self.releases)
        return conditional or (not gradients and "bottom_training" in self.releases)


def _extension_name(value: str) -> str:
    complaint = name_complaint(value)
    if complaint is not None:
        raise misfit(complaint)
    return mechanism_name(value)  # a near miss would be read as the package's own


ExtensionName = Annotated[str, AfterValidator(_extension_name)]


class ExtensionEntry(Section):
    """One extension that the owner has read.

    Parameters
    ----------
    distribution, version : str
        What is installed, exactly.
    digest : str
        As ``flower-ldp extension digest`` prints it.
    epsilon, delta : float
        The least that a report is charged. A server that proposes more is charged for that.
    """

    distribution: Annotated[
        str,
        matching("[a-z0-9]+(-[a-z0-9]+)*", "must be a distribution's normal name, as one-bit-ldp"),
    ]
    version: Annotated[
        str, matching("[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}", "must be one version, as '0.1.0'")
    ]
    digest: Digest
    epsilon: Epsilon
    delta: Delta = 0.0

"""What a mechanism from elsewhere has to offer: the whole of it is here.

An :class:`Extension` is a frozen value that an entry point of the group ``flower_ldp.mechanisms``
names. Its mechanism takes a client's update and returns the bytes of a report. The guarantee is per
client: any two updates are neighbours, whatever they differ in, and what is no valid update is
one too. It is a **claim of its author's**. The package charges it and checks its form. The
conformance tests (:mod:`flower_ldp.conformance`) can refute it, and nothing here can prove it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flower_ldp.errors import quoted
from flower_ldp.mechanisms import name_complaint
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.privacy import PrivacyEvent

#: The group of entry points.
GROUP = "flower_ldp.mechanisms"
_OPTION = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_MOST_OPTIONS = 16


class ExtensionMechanism(Protocol):
    """A local randomizer of updates with ``dimension`` entries, at fixed public parameters."""

    @property
    def epsilon(self) -> float:
        """Claimed per report and client; finite and positive."""

    @property
    def delta(self) -> float:
        """Claimed per report and client; in [0, 1)."""

    @property
    def report_bytes(self) -> int:
        """Length of every report; it depends on public parameters alone."""

    def randomize(self, update: NDArray[np.floating[Any]] | None, rng: RandomSource) -> bytes:
        """Return a report, always of ``report_bytes`` bytes; never raise because of the update.

        Parameters
        ----------
        update : ndarray of floats, shape (dimension,), or None
            **Private**, and read-only. The gate gives finite entries, or None where the app's
            reply cannot be read. What cannot be read is answered by the neutral law: a mixture of
            the laws of valid updates.
        rng : RandomSource
            The only source of randomness.
        """

    def estimate(self, report: bytes) -> NDArray[np.floating[Any]]:
        """Return what one report says of the update; the server takes the mean over clients.

        Returns
        -------
        ndarray of floats, shape (dimension,)

        Raises
        ------
        ValueError
            If no client can have sent these bytes.
        """

    def log_prob(self, report: bytes, update: NDArray[np.floating[Any]] | None) -> float:
        """Return the natural logarithm of P(report | update); whatever the update, it has a law."""

    def reports(self) -> Iterable[bytes]:
        """Yield all possible reports, each once: for few entries, where they can be counted."""


@dataclass(frozen=True)
class Setting:
    """The public parameters that a run chooses.

    Parameters
    ----------
    epsilon, delta : float
        Of one report; the mechanism's claim must not be above them.
    options : mapping of str to float
        What else the extension lets a run choose, all of it.
    """

    epsilon: float
    delta: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Extension:
    """A mechanism that is not of this package.

    Parameters
    ----------
    name : str
        In policies, proposals and ledgers; of no built-in mechanism.
    make : callable
        From a :class:`Setting` and a number of entries to the mechanism. It raises ValueError for
        what it does not take.
    options : mapping of str to float
        Names of what a run may choose besides epsilon and delta, with their defaults.

    Raises
    ------
    ValueError
        If a name is none.
    TypeError
        If ``make`` cannot be called.
    """

    name: str
    make: Callable[[Setting, int], ExtensionMechanism]
    options: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        if not callable(self.make):
            raise TypeError(f"make must be callable, got {quoted(self.make)}")
        check_options(self.options)
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))

    def chosen(
        self, epsilon: float, delta: float = 0.0, options: Mapping[str, float] | None = None
    ) -> Chosen:
        """Return the extension with the parameters of a run; options left out have defaults.

        Raises
        ------
        ValueError
            If a parameter is out of its domain, or an option is not one of the extension's.
        """
        given = {} if options is None else dict(options)
        check_options(given)
        unknown = sorted(given.keys() - self.options.keys())
        if unknown:
            raise ValueError(f"{self.name} has no options {quoted(unknown)}")
        every = {name: float(value) for name, value in {**self.options, **given}.items()}
        return Chosen(self, Setting(float(epsilon), float(delta), MappingProxyType(every)))


@dataclass(frozen=True)
class Chosen:
    """An extension with the parameters of a run.

    Parameters
    ----------
    extension : Extension
        What is run.
    setting : Setting
        With what.

    Raises
    ------
    ValueError
        If epsilon or delta is out of its interval.
    """

    extension: Extension
    setting: Setting

    def __post_init__(self) -> None:
        self.event()  # its domain

    def event(self) -> PrivacyEvent:
        """Return what a report costs a client, as the run states it."""
        return PrivacyEvent(self.extension.name, self.setting.epsilon, self.setting.delta)

    def mechanism(self, dimension: int) -> ExtensionMechanism:
        """Return the mechanism for so many entries.

        Raises
        ------
        ValueError
            If the extension does not take them, claims more than is stated, or states no length.
        """
        made = self.extension.make(self.setting, dimension)
        name = self.extension.name
        for what, stated in (("epsilon", self.setting.epsilon), ("delta", self.setting.delta)):
            claim = float(getattr(made, what))
            if not 0.0 <= claim <= stated:  # NaN is not
                raise ValueError(f"{name} claims {what} {claim:g}, and {stated:g} is stated")
        if type(made.report_bytes) is not int or made.report_bytes < 1:
            raise ValueError(f"{name} must state the length of its reports")
        return made


def check_options(options: Mapping[str, float]) -> None:
    """Raise ValueError unless these are options: names of few letters, with finite numbers."""
    if len(options) > _MOST_OPTIONS:
        raise ValueError(f"at most {_MOST_OPTIONS} options, got {len(options)}")
    for name, value in options.items():
        if type(name) is not str or not _OPTION.fullmatch(name):
            raise ValueError(f"{quoted(name)} is no name of an option")
        if "seed" in name:
            raise ValueError(f"{quoted(name)}: no run chooses the randomness of a client")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"the option {name} must be a finite number, got {quoted(value)}")

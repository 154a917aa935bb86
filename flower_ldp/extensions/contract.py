"""The interface of mechanisms from other distributions.

An :class:`Extension` is a frozen value that an entry point of the group ``flower_ldp.mechanisms``
names. Its mechanism turns a client's update into the bytes of a report. The guarantee is per
client, for any two updates, invalid ones included. It is a **claim of its author's**: the package
charges it and checks its form, the conformance tests (:mod:`flower_ldp.conformance`) can refute it,
and nothing here can prove it.
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

from flower_ldp.errors import ReleaseError, WireError, quoted
from flower_ldp.mechanisms import name_complaint
from flower_ldp.mechanisms.base import Parameter, UpdateMechanism, typed
from flower_ldp.mechanisms.inputs import note
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.parameter_bounds import check_in
from flower_ldp.privacy import PrivacyEvent

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
            **Private**, and read-only. Finite entries, or None where the app's reply cannot be
            read. Answer the latter by the neutral law: a mixture of the laws of valid updates.
        rng : RandomSource
            The only source of randomness.
        """

    def estimate(self, report: bytes) -> NDArray[np.floating[Any]]:
        """Return the estimate of one report, shape (dimension,), for a mean over clients.

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
        Of one report; the mechanism's claim must not exceed them.
    options : mapping of str to float
        All further parameters.
    """

    epsilon: float
    delta: float = 0.0
    options: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Extension:
    """A mechanism of another distribution.

    Parameters
    ----------
    name : str
        In policies, proposals and ledgers; not that of a built-in mechanism.
    make : callable
        Maps a :class:`Setting` and a number of entries to the mechanism, or raises ValueError.
    options : mapping of str to float
        Names and defaults of further parameters of a run.

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
        """Return the extension with the parameters of a run; missing options get defaults.

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
        The extension.
    setting : Setting
        The parameters.

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
            If the extension refuses them, claims more than is stated, or states no length.
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

    def sized(self, dimension: int | None) -> ExtensionReport:
        """Return it as one of the mechanisms; for None entries without length and code."""
        made = None if dimension is None else self.mechanism(dimension)
        setting, length = self.setting, 1 if made is None else made.report_bytes
        price = self.extension.name, setting.epsilon, setting.delta
        return ExtensionReport(*price, length, setting.options, made=made)


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


_FIELDS = {"epsilon", "delta", "report-bytes"}
#: Begins the names of the fields that are options.
OPTION = "option."


@dataclass(frozen=True)
class ExtensionReport(UpdateMechanism):
    """An extension as one of the package's mechanisms, for one number of entries.

    A proposal states cost and length, so both are known before anything of the extension is loaded.

    Parameters
    ----------
    name : str
        Of the extension.
    epsilon, delta : float
        Cost of a report.
    length : int
        Bytes of every report, without the health bit.
    options : mapping of str to float
        All of the extension's options.
    made : ExtensionMechanism, optional
        The extension's own code, once it is loaded.
    neutral : bytes
        A report by the neutral law, for one message alone; none if empty.

    Raises
    ------
    ValueError
        If a value is out of its domain.
    """

    name: str
    epsilon: float
    delta: float
    length: int
    options: Mapping[str, float] = field(default_factory=dict)
    made: ExtensionMechanism | None = field(default=None, kw_only=True)
    neutral: bytes = field(default=b"", kw_only=True)

    def __post_init__(self) -> None:
        complaint = name_complaint(self.name)
        if complaint is not None:
            raise ValueError(complaint)
        check_in("[1, inf)", "length", self.length)
        if len(self.options) > _MOST_OPTIONS or not all(map(math.isfinite, self.options.values())):
            raise ValueError(f"options must be finite, and {_MOST_OPTIONS} at most")
        self.events()  # their domain

    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what a report costs one client."""
        return (PrivacyEvent(self.name, self.epsilon, self.delta),)

    def _loaded(self) -> ExtensionMechanism:
        if self.made is None:
            raise ReleaseError("the extension was not admitted")
        return self.made

    def randomize(self, value: object, rng: RandomSource, dimension: int | None = None) -> bytes:
        """Return a report of an update; of an unreadable one the neutral report, if there is one.

        Parameters
        ----------
        value : ndarray of floats, shape (dimension,), or None
            **Private**. The extension gets a read-only copy.
        rng : RandomSource
            Of one message.
        dimension : int, optional
            As the extension was made for.

        Raises
        ------
        ReleaseError
            If the extension was not loaded, or returns anything but bytes of the stated length.
        """
        made, given = self._loaded(), None
        if value is not None:
            given = np.array(value, copy=True)
            given.setflags(write=False)
        if self.neutral and (given is None or not np.isfinite(given).all()):
            note(self.name, "the update cannot be read")
            return self.neutral
        found = made.randomize(given, rng)
        if type(found) is not bytes or len(found) != self.length:  # no subclass either
            raise ReleaseError(f"the extension's report is not {self.length} bytes")
        return found

    def log_prob(self, report: bytes, value: Any, dimension: int | None = None) -> float:
        """Return log P(report | value), as the extension states it."""
        return self._loaded().log_prob(report, value)

    def report_length(self, dimension: int) -> int:
        """Return the number of bytes of every report."""
        return self.length

    def encode(self, report: bytes, dimension: int) -> bytes:
        """Return the report, which is bytes."""
        return report

    def decode(self, data: bytes, dimension: int) -> Any:
        """Return the estimate of a report by the extension's code; unloaded, its bytes.

        Raises
        ------
        WireError
            If it has another length, or the extension cannot read it or returns no finite update.
        """
        if len(data) != self.length:
            raise WireError("length", f"{len(data)} bytes, expected {self.length}")
        if self.made is None:
            return data
        try:
            found = np.asarray(self.made.estimate(data), dtype=np.float64)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever another package's code makes of these bytes
            raise WireError("report", f"{type(error).__name__}: {error}") from error
        if found.shape != (dimension,) or not np.isfinite(found).all():
            raise WireError("report", f"the extension's estimate has shape {found.shape}")
        return found

    def parameters(self) -> dict[str, Parameter]:
        """Return what a proposal states."""
        return {
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
            "report-bytes": self.length,
            **{OPTION + name: float(value) for name, value in self.options.items()},
        }

    @classmethod
    def named(cls, name: str, given: Mapping[str, object]) -> ExtensionReport:
        """Return the report that a proposal states for the extension of this name.

        Raises
        ------
        WireError
            ``"fields"`` for missing, unknown or ill-typed fields.
        ValueError
            For values outside their intervals.
        """
        options = [one for one in given if one.startswith(OPTION)]
        if given.keys() - set(options) != _FIELDS:
            raise WireError("fields", f"not an extension's proposal: {quoted(sorted(given))}")
        return cls(
            name,
            typed(given, "epsilon", float),
            typed(given, "delta", float),
            typed(given, "report-bytes", int),
            {one.removeprefix(OPTION): typed(given, one, float) for one in options},
        )

"""Every path that can be audited by name; those of single mechanisms are in ``flower_ldp.audit``.

To add one, write a function that returns its :class:`~flower_ldp.audit.Case` and name it in
:data:`PATHS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from flower_ldp.audit import Case, Settings
from flower_ldp.audit.builders import MAGNITUDE_SHARE
from flower_ldp.audit_paths.gate import gate
from flower_ldp.audit_paths.labels import labels
from flower_ldp.mechanisms import MagRR, SignDS

_TORCH = ("torch", "dp_accounting")
#: Epsilons for which DP-SGD's noise is accounted for.
DPSGD_EPSILONS = (0.01, 30.0)


class NoSuchClaimError(ValueError):
    """The path is private at other epsilons only: there is no such claim that could be tried."""


def _gate(settings: Settings) -> Case:
    bit = MAGNITUDE_SHARE * settings.epsilon
    return gate(SignDS(settings.epsilon - bit, settings.k, dim_out=settings.dim_out), MagRR(bit))


def _dpsgd_release(settings: Settings) -> Case:
    with _needing_torch("dpsgd-release", settings.epsilon):
        from flower_ldp.audit_paths.dpsgd_release import dpsgd_release
    return dpsgd_release(settings.epsilon)


@contextmanager
def _needing_torch(name: str, epsilon: float) -> Iterator[None]:
    """Say what to install if the body imports what is not there, and which epsilons there are."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _TORCH:
            raise
        raise ModuleNotFoundError(
            f"an audit of {name} needs torch: pip install 'flower-ldp[dpsgd]'",
            name=error.name,
        ) from error
    low, high = DPSGD_EPSILONS
    if not low <= epsilon <= high:
        raise NoSuchClaimError(
            f"{name} has no epsilon outside [{low:g}, {high:g}], got {epsilon:g}"
        )


#: Every path that the command line can audit, by name.
PATHS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {
        "gate": _gate,
        "labels": lambda s: labels(s.epsilon),
        "dpsgd-release": _dpsgd_release,
    }
)

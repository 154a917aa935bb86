"""Every path that can be audited by name; those of single mechanisms are in ``flower_ldp.audit``.

To add one, write a function that returns its :class:`~flower_ldp.audit.Case` and name it in
:data:`PATHS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from flower_ldp.audit import Case, Settings
from flower_ldp.audit.builders import MAGNITUDE_SHARE
from flower_ldp.audit_paths.gate import gate
from flower_ldp.audit_paths.labels import labels
from flower_ldp.mechanisms import MagRR, SignDS

_TORCH = ("torch", "opacus", "dp_accounting")
#: Epsilons for which DP-SGD's noise is accounted for.
DPSGD_EPSILONS = (0.01, 30.0)


class NoSuchClaimError(ValueError):
    """The path is private at other epsilons only: there is no such claim that could be tried."""


def _gate(settings: Settings) -> Case:
    bit = MAGNITUDE_SHARE * settings.epsilon
    return gate(SignDS(settings.epsilon - bit, settings.k, dim_out=settings.dim_out), MagRR(bit))


def _dpsgd(settings: Settings) -> Case:
    try:
        from flower_ldp.audit_paths.dpsgd import dpsgd  # torch, which nothing else here needs
    except ModuleNotFoundError as error:
        if error.name not in _TORCH:
            raise
        raise ModuleNotFoundError(
            "an audit of dpsgd needs torch and Opacus: pip install 'flower-ldp[dpsgd]'",
            name=error.name,
        ) from error
    low, high = DPSGD_EPSILONS
    if not low <= settings.epsilon <= high:
        raise NoSuchClaimError(
            f"dpsgd has no epsilon outside [{low:g}, {high:g}], got {settings.epsilon:g}"
        )
    return dpsgd(settings.epsilon)


#: Every path that the command line can audit, by name.
PATHS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {"gate": _gate, "labels": lambda s: labels(s.epsilon), "dpsgd": _dpsgd}
)

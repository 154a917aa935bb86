"""Audits of whole paths: everything that leaves a client.

They run all of the client's code: the gate with policy and ledger, stored labels, an account,
DP-SGD. A new one is a function that returns its :class:`~flower_ldp.audit.Case`, named in
:data:`PATHS`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from flower_ldp.audit import Case, Settings
from flower_ldp.audit.cases import round_of
from flower_ldp.audit_paths.cases import CLAIMED, gate, labels
from flower_ldp.audit_paths.life import life
from flower_ldp.errors import needed
from flower_ldp.parameter_bounds import Bounded

__all__ = ["CLAIMED", "PATHS", "NoSuchClaimError", "gate", "labels", "life"]

#: Epsilons for which DP-SGD's noise is accounted for.
DPSGD_EPSILONS = Bounded("[0.01, 30]")


class NoSuchClaimError(ValueError):
    """The path has no claim at this epsilon."""


def _dpsgd_release(settings: Settings) -> Case:
    with needed("an audit of dpsgd-release needs torch", "dpsgd"):
        from flower_ldp.audit_paths.dpsgd_release import dpsgd_release
    if not DPSGD_EPSILONS.holds(settings.epsilon):
        told = f"outside {DPSGD_EPSILONS.interval}, got {settings.epsilon:g}"
        raise NoSuchClaimError(f"dpsgd-release has no epsilon {told}")
    return dpsgd_release(settings.epsilon)


#: Every path that the command line can audit, by name.
PATHS: Mapping[str, Callable[[Settings], Case]] = MappingProxyType(
    {
        "gate": lambda s: gate(*round_of(s)),
        "labels": lambda s: labels(s.epsilon),
        "life": lambda s: life(s.epsilon, s.delta),
        "dpsgd-release": _dpsgd_release,
    }
)

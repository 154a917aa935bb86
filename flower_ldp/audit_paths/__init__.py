"""Audits of whole paths: what leaves a client, rather than what one sampler draws.

The samplers' audits are in :mod:`flower_ldp.audit`; these stand above the client's code and go
through all of it: the gate with its owner's policy and ledger, the labels' store, DP-SGD's
training. They draw from the operating system's entropy, as those do.

To add one, write a function that returns its :class:`~flower_ldp.audit.Case` and name it in
:data:`PATHS`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from flower_ldp.audit import Case, Settings
from flower_ldp.audit.cases import round_of
from flower_ldp.audit_paths.cases import CLAIMED, gate, labels
from flower_ldp.errors import needed
from flower_ldp.parameter_bounds import Bounded

__all__ = ["CLAIMED", "PATHS", "NoSuchClaimError", "gate", "labels"]

#: Epsilons for which DP-SGD's noise is accounted for.
DPSGD_EPSILONS = Bounded("[0.01, 30]")


class NoSuchClaimError(ValueError):
    """The path is private at other epsilons only: there is no such claim that could be tried."""


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
        "dpsgd-release": _dpsgd_release,
    }
)

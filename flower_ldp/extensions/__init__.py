"""Mechanisms from elsewhere: what they have to offer, how they are judged, and how they are loaded.

A distribution names its extension by an entry point of the group ``flower_ldp.mechanisms``. It is
loaded only where the owner's policy names the distribution, its version and its digest. It
overrides nothing that is built in, and the guarded node loads none (``docs/extensions.md``).
"""

from flower_ldp.extensions.contract import (
    GROUP,
    Chosen,
    Extension,
    ExtensionMechanism,
    ExtensionReport,
    Setting,
)
from flower_ldp.extensions.loading import (
    Allowed,
    Distribution,
    load_extension,
    never_load,
    read_distribution,
)

__all__ = [
    "GROUP",
    "Allowed",
    "Chosen",
    "Distribution",
    "Extension",
    "ExtensionMechanism",
    "ExtensionReport",
    "Setting",
    "load_extension",
    "never_load",
    "read_distribution",
]

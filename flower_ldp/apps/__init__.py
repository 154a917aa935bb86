"""Flower's app bundles and the environment that they run in, as an owner pins them.

A bundle is read here as bytes: nothing of it is unpacked to disk, imported or run.
"""

from __future__ import annotations

from flower_ldp.apps.bundle import (
    Bundle,
    BundleError,
    bundle_of,
    differences,
    digest_of,
    read_bundle,
)
from flower_ldp.apps.environment import Environment, this_environment

__all__ = [
    "Bundle",
    "BundleError",
    "Environment",
    "bundle_of",
    "differences",
    "digest_of",
    "read_bundle",
    "this_environment",
]

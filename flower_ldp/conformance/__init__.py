"""Tests that a mechanism or a release of one's own has to pass, by a plugin of pytest's.

``pytest -p flower_ldp.conformance.plugin --ldp-mechanism one_bit_ldp:extension`` runs those of a
mechanism, ``--ldp-release`` those of a release. They refute false claims on few entries or rows.
They prove none: what it does at other sizes, its author has to show.
"""

#: How often a statistical test may fail with a right one; the seed is fixed.
FAILURE = 1e-6
SEED = 20_260_101


class ConformanceError(Exception):
    """The contract is not kept; the text says where."""

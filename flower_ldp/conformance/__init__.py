"""Tests that an extension has to pass, as a plugin of pytest's that is asked for by name.

``pytest -p flower_ldp.conformance.plugin --ldp-mechanism one_bit_ldp:extension`` runs them. They
refute false claims on few entries, where all reports can be counted. They prove none: what a
mechanism does at other sizes, its author has to show.
"""

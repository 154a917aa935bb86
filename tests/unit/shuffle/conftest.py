"""Fixtures of strategies' rounds, for shuffled ones."""

from tests.unit.strategies.conftest import _log, outside_a_run

__all__ = ["_log", "outside_a_run"]

"""In the place of a service that keeps figures: they are kept nowhere."""

from __future__ import annotations


def init(*, project: str, name: str) -> None:
    """Begin nothing."""


def log(figures: dict[str, float], *, step: int) -> None:
    """Forget the figures."""

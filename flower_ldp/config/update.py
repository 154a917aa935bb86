"""What the sections that training can go by have in common."""

from __future__ import annotations

from abc import abstractmethod

from flower_ldp.privacy import PrivacyEvent
from flower_ldp.yaml_source import Section


class UpdateConfig(Section):
    """A section that says how updates are protected."""

    @abstractmethod
    def events(self) -> tuple[PrivacyEvent, ...]:
        """Return what a round costs a client, the health bit apart."""

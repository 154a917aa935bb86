"""Texts of configurations, and the error that one must cause."""

from __future__ import annotations

import pytest

from flower_ldp.errors import ConfigError
from tests.fixtures import parse_config

HEAD = "encrypt:\n  encrypt_train_type: SIGNDS\n"


def signds_text(*fields: str) -> str:
    """Return a file whose signds section holds ``fields``, the first of them in line 4."""
    return HEAD + "  signds:\n" + "".join(f"    {field}\n" for field in fields)


def refusal(text: str) -> str:
    """Return the text of the error that ``text`` must cause."""
    with pytest.raises(ConfigError) as caught:
        parse_config(text, source="site.yaml")
    return str(caught.value)

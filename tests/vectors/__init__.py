"""Test vectors of the wire, and what makes them. See docs/other_languages.md."""

"""Charges and limits that are none are refused when they are made."""

from __future__ import annotations

import pytest

from flower_ldp.accounting.ledger import Limit
from flower_ldp.privacy import PrivacyEvent, Unit
from tests.fixtures import charge


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"data_id": ""}, "data_id must have"),
        ({"data_id": "a\nb"}, "data_id must have"),
        ({"data_id": "\ud800"}, "data_id must have"),
        ({"message_id": "x" * 1025}, "message_id must have"),
        ({"message_type": "\0"}, "message_type must have"),
        ({"run_id": -1}, "run_id must be"),
        ({"run_id": 2**64}, "run_id must be"),
        ({"fingerprint": b""}, "fingerprint must have"),
        ({"fingerprint": "text"}, "fingerprint must have"),
        ({"events": ()}, "at least one event"),
        ({"events": (PrivacyEvent("", 1.0),)}, "mechanism must have"),
        ({"events": (PrivacyEvent("m", 1e300),)}, "epsilon must be in"),
        ({"parameters": "{"}, "must be JSON"),
        ({"parameters": "[]"}, "JSON object"),
        ({"parameters": "[" * 9_000}, "must be JSON"),
        ({"parameters": '{"a": "' + "x" * 65_536 + '"}'}, "at most 65536"),
    ],
)
def test_malformed_charges_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        charge(**fields)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("month", 1.0), "scope must be"),
        (("life", 1e7), "epsilon must be"),
        (("life", float("inf")), "epsilon must be"),
        (("life", float("nan")), "epsilon must be"),
        (("life", -1.0), "epsilon must be"),
        (("life", 1.0, 1.5), "delta must be"),
        (("life", 1.0, float("nan")), "delta must be"),
        (("life", 1.0, 0.0, 5.0), "window_seconds must be given"),
        (("window", 1.0), "window_seconds must be given"),
        (("window", 1.0, 0.0, 0.0), "window_seconds must be in"),
        (("window", 1.0, 0.0, float("nan")), "window_seconds must be in"),
    ],
)
def test_malformed_limits_are_refused(arguments: tuple[object, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Limit(Unit.CLIENT, *arguments)  # type: ignore[arg-type]

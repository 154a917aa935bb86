"""The conformance tests pass the template's release, and each refutes a wrong one."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Metadata, RecordDict

from flower_ldp.cli.apps import texts
from flower_ldp.clients import OpenRelease, OwnerAuthorizer, Release
from flower_ldp.conformance import ConformanceError
from flower_ldp.conformance.releases import RELEASE_CHECKS, ReleaseCase
from flower_ldp.errors import RefusalError, ReleaseError
from flower_ldp.mechanisms import BinaryResponse, RandomSource
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.strategies.replies import payload_of

pytest.importorskip("scipy")
FILES = texts("row-counts", "release", "ward-7")


def _module(name: str, text: str) -> Any:
    module = sys.modules[name] = ModuleType(name)
    exec(text, module.__dict__)  # noqa: S102
    return module


_module("row_counts", "")
RELEASE = _module("row_counts.release", FILES["row_counts/release.py"])
CASE: ReleaseCase = _module("row_counts_case", FILES["tests/release_case.py"]).case
OPEN: Any = RELEASE.OpenRowCounts


def spoiled(**methods: Any) -> ReleaseCase:
    """Return the template's case with methods of the accepted question replaced."""
    wrong: Any = dataclass(frozen=True)(type("Wrong", (OPEN,), methods))

    class Wrong(Release):
        def open(self, content: RecordDict) -> OpenRelease:
            return wrong()  # type: ignore[no-any-return]

    return replace(CASE, release=Wrong())


def answers_itself(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Make a neutral report of a reply without rows: the run goes on."""
    try:
        return OPEN.privatize(self, reply, rng)  # type: ignore[no-any-return]
    except ReleaseError:
        return self.neutral(rng)  # type: ignore[no-any-return]


def hides_failures(_: Any, ask: Callable[[], RecordDict], timing: object) -> RecordDict:
    """Take an app that raises for one without rows."""
    try:
        return ask()
    except ValueError:
        return RecordDict({"rows": ConfigRecord({"values": ["none"]})})


def fails_for_one(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Raise because of one value."""
    if not all(np.isfinite(float(one)) for one in RELEASE._texts(reply)):
        raise ReleaseError("a value is no number")
    return OPEN.privatize(self, reply, rng)  # type: ignore[no-any-return]


def refuses_few(self: Any, report: bytes) -> RecordDict:
    """Refuse where the last interval has few rows."""
    if np.frombuffer(report, "<i8")[-1] < 3:
        raise RefusalError(REFUSED_POLICY, "too few rows")
    return OpenRelease.content(self, report)


def longer(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Say how many values are readable."""
    read = [one for one in RELEASE._texts(reply) if not np.isnan(RELEASE._number(one))]
    return OPEN.privatize(self, reply, rng) + bytes(8 * len(read))  # type: ignore[no-any-return]


def centred(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Count values around their mean: one row moves all others."""
    numbers = [RELEASE._number(one) for one in RELEASE._texts(reply)]
    found = np.clip(np.nan_to_num(numbers), -1e9, 1e9)
    moved = ConfigRecord({"values": [str(one) for one in found - found.mean() + 50]})
    return OPEN.privatize(self, RecordDict({"rows": moved}), rng)  # type: ignore[no-any-return]


def too_little_noise(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Add noise for two rows of four, at twice the epsilon that is charged."""
    counts = RELEASE.COUNTS.total(RELEASE._placed(RELEASE._texts(reply)))
    noise = replace(RELEASE.COUNTS, epsilon=3.0).noise.sample(len(counts), rng)
    return (counts + noise).astype("<i8").tobytes()  # type: ignore[no-any-return]


def charges_late(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Charge for each row, once it is read."""
    (policy,) = Path(tempfile.gettempdir()).rglob("policy.yaml")
    context = Context(9, 2, {"ldp-policy": str(policy)}, RecordDict(), {})
    asked = replace(self.request(Metadata(9, "", 1, 2, "", "", 0.0, 1.0, "query")), message_id="m")
    OwnerAuthorizer().authorize(asked, context).close()
    return OPEN.privatize(self, reply, rng)  # type: ignore[no-any-return]


def drawn_once(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Add one noise to every report: two of them tell their difference."""
    return OPEN.privatize(self, reply, RandomSource.seeded(1))  # type: ignore[no-any-return]


OWN_SOURCE = RandomSource.seeded(1)


def draws_elsewhere(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Draw noise from a source that everybody can make."""
    return OPEN.privatize(self, reply, OWN_SOURCE)  # type: ignore[no-any-return]


def scaled(self: Any, reply: RecordDict, rng: RandomSource) -> bytes:
    """Count values in parts of their largest one."""
    values = np.nan_to_num([RELEASE._number(one) for one in RELEASE._texts(reply)])
    parts = ConfigRecord({"values": [str(100 * one / values.max()) for one in values]})
    return OPEN.privatize(self, RecordDict({"rows": parts}), rng)  # type: ignore[no-any-return]


ENDS = "a_failing_app_ends_the_claim_about_examples"
REFUTED: list[tuple[str, dict[str, Any], str]] = [
    ("all_is_charged_before_the_app_runs", {"privatize": charges_late}, r"afterwards: \[1, 2\]"),
    ("one_row_ends_nothing", {"privatize": fails_for_one}, "earlier row 2 is 'inf', no report"),
    ("one_row_ends_nothing", {"content": refuses_few}, "no report leaves"),
    ("one_row_ends_nothing", {"privatize": longer}, "a report has 5 counts, got"),
    (ENDS, {"privatize": answers_itself}, "after the app replies with nothing, the run must end"),
    (ENDS, {"reply": hides_failures}, "after the app raises, the run must end"),
    (ENDS, {"request": OpenRelease.request}, "after the app raises, the run must end"),
    (ENDS, {"neutral": lambda self, rng: b""}, "a report has 5 counts, got 0"),
    ("epsilon_is_kept", {"privatize": centred}, "epsilon is at least"),
    ("epsilon_is_kept", {"privatize": too_little_noise}, "epsilon is at least"),
    ("epsilon_is_kept", {"privatize": drawn_once}, "epsilon is at least"),
    ("epsilon_is_kept", {"privatize": draws_elsewhere}, "the noise is not of privatize's rng"),
    ("epsilon_is_kept", {"privatize": scaled}, "epsilon is at least"),
]


def checked(check: str, case: ReleaseCase) -> None:
    for tried in case.settings():
        RELEASE_CHECKS[check](tried)


@pytest.mark.parametrize("check", RELEASE_CHECKS)
def test_the_templates_release_passes_and_another_is_refuted(check: str) -> None:
    checked(check, CASE)
    assert check in {one[0] for one in REFUTED}


@pytest.mark.parametrize(("check", "methods", "complaint"), REFUTED)
def test_each_check_refutes_what_is_wrong(
    check: str,
    methods: dict[str, Any],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where a release finds the policy
    if "content" in methods:  # the noise decides
        seeds = iter(range(99))
        monkeypatch.setattr(RandomSource, "from_os", lambda: RandomSource.seeded(next(seeds)))
    with pytest.raises((ConformanceError, ValueError), match=complaint):
        checked(check, spoiled(**methods))


def test_lengths_are_compared_where_read_takes_any() -> None:
    case = replace(spoiled(privatize=longer), read=lambda content: payload_of(content)[:5])
    with pytest.raises(ConformanceError, match=r"row 3 is 'nan', lengths are \[\d+, \d+\] bytes"):
        checked("one_row_ends_nothing", case)


class Whether(Release):
    """Releases whether a client has rows, at epsilon per client: a failing app is covered."""

    def open(self, content: RecordDict) -> OpenRelease:
        return OpenWhether()


class OpenWhether(OpenRelease):
    events = BinaryResponse(1.0, "binary_response").events()  # type: ignore[assignment]
    parameters = "{}"  # type: ignore[assignment]

    def privatize(self, reply: RecordDict, rng: RandomSource) -> bytes:
        has_rows = int(bool(reply.config_records.get("rows")))
        return bytes([BinaryResponse(1.0, "binary_response").randomize(has_rows, rng)])

    def neutral(self, rng: RandomSource) -> bytes:
        return bytes([rng.bits(1)])


@pytest.mark.parametrize("check", RELEASE_CHECKS)
def test_a_release_about_clients_goes_on_after_a_failing_app(check: str) -> None:
    case = replace(CASE, release=Whether(), read=lambda content: list(payload_of(content)))
    checked(check, case)

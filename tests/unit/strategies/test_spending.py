"""The server's account of what it asked for: worst client, smaller bound, conditional line."""

from __future__ import annotations

import pytest

from flower_ldp.accounting import shuffle_bound
from flower_ldp.accounting.composition import totals
from flower_ldp.privacy import PrivacyEvent, PrivacySpent, Unit
from flower_ldp.strategies.replies import ReplyValidator
from flower_ldp.strategies.rounds import Round, SpendingLog
from flower_ldp.strategies.sampling import RoundSample

SMALL = PrivacyEvent("signds", 0.5)
BIT = PrivacyEvent("magrr", 0.25)
LABEL = PrivacyEvent("kary_response", 1.0, unit=Unit.LABEL)


def asked(times: dict[int, int], *events: PrivacyEvent) -> SpendingLog:
    proposals = SpendingLog()
    for node, count in times.items():
        for _ in range(count):
            proposals.record(node, events)
    return proposals


def test_the_worst_client_counts_and_each_client_is_listed() -> None:
    report = asked({1: 3, 2: 5}, SMALL, BIT).report(delta=1e-6)
    assert report.units == {unit: PrivacySpent(unit, 3.75) for unit in Unit}
    assert report.direct == {Unit.CLIENT: PrivacySpent(Unit.CLIENT, 3.75)}
    assert report.clients[1] == {unit: PrivacySpent(unit, 2.25) for unit in Unit}
    assert "and as much per example" in str(report)


def test_the_worst_delta_counts_whoever_has_it() -> None:
    proposals = asked({1: 1}, PrivacyEvent("gaussian", 2.0))
    proposals.record(2, [PrivacyEvent("gaussian", 1.0, 1e-3)])
    assert proposals.worst()[Unit.CLIENT] == PrivacySpent(Unit.CLIENT, 2.0, 1e-3)
    assert "epsilon 2, delta 0.001 per client" in str(proposals.report(delta=1e-6))


def test_many_small_releases_have_a_smaller_bound_with_its_delta() -> None:
    report = asked({1: 400, 2: 399}, SMALL).report(delta=1e-6)
    expected = totals([PrivacyEvent("signds", 0.5, count=400)], delta=1e-6)[Unit.CLIENT]
    assert report.units[Unit.CLIENT].epsilon == 200.0
    assert report.smaller[Unit.CLIENT] == expected.approximate
    assert report.smaller[Unit.CLIENT].delta == 1e-6
    assert "epsilon 200 per client" in str(report)
    assert "delta 1e-06" in str(report)


def test_a_single_release_has_no_smaller_bound() -> None:
    report = asked({1: 1}, SMALL).report(delta=1e-6)
    assert report.smaller == report.units
    assert "delta" not in str(report).partition("conditional")[0]


def test_the_bound_covers_clients_that_were_asked_for_different_releases() -> None:
    proposals = asked({1: 100}, SMALL)
    for _ in range(100):
        proposals.record(2, [BIT])
    bound = proposals.report(delta=1e-6).smaller[Unit.CLIENT]
    alone = totals([PrivacyEvent("signds", 0.5, count=100)], delta=1e-6)[Unit.CLIENT]
    assert alone.approximate is not None
    assert alone.approximate.epsilon <= bound.epsilon <= 50.0


def test_what_is_about_a_client_counts_towards_its_labels() -> None:
    report = asked({1: 2}, SMALL, LABEL).report(delta=1e-6)
    assert report.units[Unit.CLIENT].epsilon == report.units[Unit.EXAMPLE].epsilon == 1.0
    assert report.units[Unit.LABEL].epsilon == 3.0
    assert report.direct[Unit.LABEL].epsilon == 2.0
    text = str(report)
    assert "2 releases promise nothing for it: the total does not bound them" in text
    assert "epsilon 3 per label (worst of 1 clients, a sum), of which directly epsilon 2" in text


def test_where_nothing_was_promised_there_is_no_figure() -> None:
    report = asked({1: 1}, LABEL).report(delta=1e-6)
    assert set(report.units) == {Unit.LABEL}
    for unit in ("client", "example"):
        assert f"no promise per {unit}: 1 release promises nothing for it" in str(report)
    claim = PrivacyEvent("codes:conditional", 1.0, unit=Unit.EXAMPLE)
    only = str(asked({1: 2}, claim).report(delta=1e-6))
    assert "no promise per example: 2 releases promise something under a condition only" in only


def test_a_withdrawn_proposal_costs_nothing() -> None:
    proposals = asked({1: 2, 2: 1}, SMALL)
    judge = ReplyValidator([1, 2])
    judge.uncharged, judge.raw = [1], [2]
    sample = RoundSample(None, (1, 2), 2, 2)
    proposals.after_replies(Round(1, sample, (SMALL,)), judge)
    report = proposals.report(delta=1e-6)
    assert report.units[Unit.CLIENT].epsilon == 0.5
    assert report.clients[2] == {}


def test_shuffling_is_a_line_of_its_own_and_names_its_condition() -> None:
    proposals = asked(dict.fromkeys(range(2000), 3), SMALL)
    proposals.answered([SMALL], 2_000)
    report = proposals.report(delta=1e-6)
    assert report.shuffle == shuffle_bound(0.5, clients=2_000, delta=1e-6)
    assert report.shuffle is not None
    assert report.shuffle.epsilon < 0.5
    assert report.units[Unit.CLIENT].epsilon == 1.5
    conditional = str(report).splitlines()[-1]
    assert conditional.startswith("conditional, in no total")
    assert "ONLY IF" in conditional


@pytest.mark.parametrize(
    ("events", "reports"), [([SMALL], 0), ([SMALL], 3), ([SMALL, LABEL], 2_000)]
)
def test_no_conditional_line_without_a_gain_or_where_a_part_promises_a_client_nothing(
    events: list[PrivacyEvent], reports: int
) -> None:
    proposals = asked({1: 1}, *events)
    proposals.answered(events, reports)
    assert proposals.report(delta=1e-6).shuffle is None

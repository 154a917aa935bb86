"""What a hostile server learns from an honest app behind the gate: no more than the ledger says."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp.typing import ClientAppCallable

from flower_ldp.clients import LdpMod, SignDSRelease
from flower_ldp.clients.release import ERROR_CODE
from flower_ldp.refusals import FAILED
from tests.hostile.site import WAYS, Site, guesses, most_right, seen

BITS, TIMES, EPSILON = 32, 15, 0.001


class SaysThatItFailed:
    """A gate that answers with an error where the app failed: what no epsilon counts."""

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        failed = []

        def watched(sent: Message, where: Context) -> Message:
            try:
                return call_next(sent, where)
            except BaseException as error:
                failed.append(error)
                raise

        reply = LdpMod(train=SignDSRelease())(message, context, watched)
        if failed:
            return Message(Error(code=ERROR_CODE, reason=FAILED), reply_to=message)
        return reply


def right(site: Site, ways: range, times: int = TIMES) -> int:
    """Return how many bits a server guesses that asks for each in every way, many times."""
    replies = [
        [site.ask(f"m-{bit}-{n}", EPSILON, bit, ways[n % len(ways)]) for n in range(times)]
        for bit in range(BITS)
    ]
    found = guesses(replies)
    return sum(guess == bit for guess, bit in zip(found, site.bits, strict=True))


def random_bits(count: int = BITS) -> list[bool]:
    # Not from a seed: what holds for every secret with the chance that is stated needs none.
    return [bool(secrets.randbits(1)) for _ in range(count)]


def test_hundreds_of_messages_tell_no_more_than_the_ledger_says(tmp_path: Path) -> None:
    site = Site(tmp_path, random_bits(), life=1.0)
    found = right(site, range(len(WAYS)))
    assert site.called == BITS * TIMES == 480
    assert site.spent() == pytest.approx(0.48)
    assert found <= most_right(site.spent(), BITS) < BITS
    set_bits = sum(site.bits)
    # Of 15 questions about a bit, three ways are met twice; seven of the twelve raise or are no
    # model, and of the others all but the update itself still leave one.
    assert site.counts()["failed"] > 5 * set_bits


def test_a_gate_that_tells_is_found_by_the_same_server(tmp_path: Path) -> None:
    site = Site(tmp_path, [bool(n % 2) for n in range(BITS)], mod=SaysThatItFailed())
    assert right(site, range(1), times=1) == BITS > most_right(BITS * EPSILON, BITS)


@pytest.mark.parametrize("way", range(len(WAYS)), ids=list(WAYS))
def test_every_answer_has_one_form(way: int, tmp_path: Path) -> None:
    site = Site(tmp_path, [False, True])
    one, other = (site.ask(f"m-{bit}", EPSILON, bit, way) for bit in (0, 1))
    assert seen(one) == seen(other)
    assert not one.has_error()
    again = site.ask("m-1", EPSILON, 1, way)
    assert (again.content, site.called) == (other.content, 2)


def test_a_price_below_the_least_is_refused_before_the_app_sees_anything(tmp_path: Path) -> None:
    site = Site(tmp_path, [True])
    for number, epsilon in enumerate((1e-12, 1e-6, 0.00099)):
        assert site.ask(f"m-{number}", epsilon, 0, 0).error.reason == "ldp:refused:policy"
    assert site.called == 0

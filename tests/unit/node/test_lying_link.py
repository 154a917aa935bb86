"""A SuperLink that says of a run or a message what is not so, to have another app take a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from flwr.common.config import get_fused_config_from_fab
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supernode.nodestate import NodeStateFactory

from flower_ldp.app_digests import digest_of
from flower_ldp.node.flower_api import Channel
from flower_ldp.wire.embedding import FORWARD
from tests.bundles import FILES, PYPROJECT, packed
from tests.unit.node.test_guard import ask, entries, given
from tests.unit.node.test_pinned_apps import (
    APP,
    DIGEST,
    OTHER,
    Far,
    embedding,
    of_run,
    refusal,
    site,
)


def announced(far: Far, channel: Channel, inner: Message, **said: Any) -> Any:
    """Return what the node makes of a message that is announced with other metadata."""
    far.announced = said
    far.waiting.append(inner)
    return channel.receive()


@pytest.mark.parametrize("first", [True, False], ids=["known run", "new run"])
def test_a_message_announced_as_another_runs_starts_no_app(tmp_path: Path, first: bool) -> None:
    """Flower starts the app of the run that is announced; the objects name the listed one's."""
    far, channel = site(tmp_path, app=OTHER)
    far.apps[4] = APP
    if first:
        channel.get_run(4)
    assert announced(far, channel, of_run(embedding(), 4), run_id=3) is None
    assert far.sent == []


def test_a_message_that_is_announced_under_another_type_starts_no_app(tmp_path: Path) -> None:
    far, channel = site(tmp_path)
    assert announced(far, channel, embedding(), message_type="train") is None
    assert announced(far, channel, ask(), message_type=FORWARD) is None
    assert (far.sent, entries(tmp_path)) == ([], 0)


def test_a_run_that_says_that_it_is_another_takes_no_place_of_that(tmp_path: Path) -> None:
    """Flower keeps what is known of a run under the identity that stands in it."""
    far, channel = site(tmp_path)
    far.apps[4] = OTHER
    state: Any = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    state.store_run(channel.get_run(3))
    far.said = {"run_id": 3}
    state.store_run(channel.get_run(4))
    assert f"sha256:{state.get_run(3).fab_hash}" == DIGEST
    assert f"sha256:{state.get_run(4).fab_hash}" == digest_of(OTHER)


def test_no_unlisted_bundle_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flower_ldp.node.received_apps.read_bundle", lambda _: pytest.fail("read"))
    far, channel = site(tmp_path, app=OTHER)
    assert refusal(far, channel, embedding()) == "ldp:refused:app"
    assert channel.get_fab("", 3).content == OTHER


@pytest.mark.parametrize("said", [DIGEST.upper(), DIGEST.rpartition(":")[2].upper(), "", "0" * 64])
def test_a_listed_app_is_one_however_its_hash_is_written(tmp_path: Path, said: str) -> None:
    far, channel = site(tmp_path)
    far.said = {"fab_hash": said}
    given(far, channel, embedding())
    assert f"sha256:{channel.get_run(3).fab_hash}" == DIGEST
    far, channel = site(tmp_path, app=packed()[:-1])
    far.said = {"fab_hash": said}
    assert refusal(far, channel, embedding()) == "ldp:refused:app"


@pytest.mark.parametrize(
    ("app", "overrides"),
    [
        (b"", {}),
        (b"no archive", {}),
        (packed({"a.py": ""}), {}),
        (packed({**FILES, "pyproject.toml": "[tool.flwr.app]"}), {}),
        (packed({**FILES, "pyproject.toml": PYPROJECT.replace("rate = 0.1", "rate = [1]")}), {}),
        (OTHER, {"not a key of the bundle's": 1}),
    ],
    ids=["empty", "no archive", "no settings", "no name", "a list", "a key that is none"],
)
def test_a_bundle_that_ends_flowers_loop_is_refused(
    tmp_path: Path, app: bytes, overrides: dict[str, object]
) -> None:
    """Flower reads the configuration in the node's own loop, and what that raises ends the node."""
    far, channel = site(tmp_path, listed="", gate="privatize", app=app)
    far.said = {"override_config": overrides}
    with pytest.raises(Exception):  # noqa: B017, PT011  # of many types
        get_fused_config_from_fab(app, Far(apps={3: app}, said=far.said)._run(3))
    assert refusal(far, channel, ask()) == "ldp:refused:app"
    assert entries(tmp_path) == 0

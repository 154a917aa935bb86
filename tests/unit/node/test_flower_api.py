"""The parts of Flower that the guarded node rests on, pinned.

A failure here means that Flower has changed. Before anything else:

1. Read ``start_client_internal.py``: is ``_init_connection`` still the only way to the SuperLink?
2. Read ``fleet_http_connection.py``: what does each of the functions send?
3. Run ``tests/network``, add the digest, and widen the range in ``flower_api.py``.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path
from typing import Any

import flwr.supernode.start_client_internal as worker
import pytest

from flower_ldp.node import flower_api

#: Digests of the SuperNode's source (loop and connection), for the releases that were read.
OLD, NEW = "120c0824005f5a14", "8299678fb3e7301a"
READ = {"1.40.0": OLD, "1.41.0": NEW, "1.42.0": NEW}
FILES = ("start_client_internal.py", "fleet_http_connection.py", "fleet_http_client.py")


def digest(folder: Path) -> str:
    """Return one digest over the files by which a SuperNode reaches the SuperLink."""
    whole = hashlib.sha256()
    for name in FILES:
        whole.update((folder / name).read_bytes())
    return whole.hexdigest()[:16]


def test_the_supernode_is_one_that_was_read() -> None:
    version = importlib.metadata.version("flwr")
    assert digest(Path(worker.__file__).parent) == READ.get(version), (
        f"flwr {version} has another SuperNode than those that were read"
    )


def test_the_installed_flower_is_known() -> None:
    flower_api.check_flower()


@pytest.mark.parametrize("version", ["1.39.1", "1.43.0", "2.0.0"])
def test_an_unknown_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(flower_api.FlowerChanged, match=version):
        flower_api.check_flower()


def test_another_start_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "start_client_internal", lambda node_config: None)
    with pytest.raises(flower_api.FlowerChanged, match="start_client_internal"):
        flower_api.check_flower()


def test_a_loop_that_waits_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_push_messages", lambda state: state.wait_for_messages())
    with pytest.raises(flower_api.FlowerChanged, match="replies"):
        flower_api.check_flower()


def known() -> list[Any]:
    return [
        7,
        lambda: None,
        lambda message, object_tree, clientapp_runtime: None,
        lambda run_id: None,
        lambda fab_hash, run_id: None,
        lambda run_id, object_id: None,
        lambda run_id, session_id, object_id, contents: None,
        lambda run_id, object_id: None,
    ]


def test_the_known_connection_is_taken() -> None:
    assert flower_api.checked_channel(tuple(known())).node_id == 7


def test_a_connection_of_another_form_is_refused() -> None:
    with pytest.raises(flower_api.FlowerChanged, match="yields"):
        flower_api.checked_channel((*known(), print))
    with pytest.raises(flower_api.FlowerChanged, match="yields"):
        flower_api.checked_channel(known())
    for place in range(1, 8):
        other = known()
        other[place] = lambda something: None
        with pytest.raises(flower_api.FlowerChanged, match="parameters"):
            flower_api.checked_channel(tuple(other))


def test_a_node_that_starts_apps_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_api, "_EXECUTOR", "flower-other")
    with pytest.raises(flower_api.FlowerChanged, match="does not start flower-other"):
        flower_api.check_flower()


def test_the_node_starts_its_own_executor_in_the_place_of_flowers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker, "subprocess", worker.subprocess)  # put back at the end
    flower_api.use_own_executor(["/bin/sh", "-c", f'echo "$@" >{tmp_path}/own', "own"])
    started: Any = worker.subprocess
    assert started.Popen(["flower-superexec", "--insecure"]).wait(60) == 0
    assert (tmp_path / "own").read_text() == "--insecure\n"
    assert started.Popen(["/bin/sh", "-c", "exit 3"]).wait(60) == 3

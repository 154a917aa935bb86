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


@pytest.mark.parametrize(
    ("owner", "name", "other", "said"),
    [
        (importlib.metadata, "version", lambda _: "1.43.0", "flwr 1.43.0"),
        (worker, "start_client_internal", lambda node_config: None, "start_client_internal"),
        (worker, "_push_messages", lambda state: state.wait_for_messages(), "replies"),
        (flower_api, "_EXECUTOR", "flower-other", "does not start flower-other"),
    ],
)
def test_another_flower_is_refused(
    owner: Any, name: str, other: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, other)
    with pytest.raises(flower_api.FlowerChanged, match=said):
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
    for odd in ((*known(), print), known()):
        with pytest.raises(flower_api.FlowerChanged, match="yields"):
            flower_api.checked_channel(odd)
    for place in range(1, 8):
        other = known()
        other[place] = lambda something: None
        with pytest.raises(flower_api.FlowerChanged, match="parameters"):
            flower_api.checked_channel(tuple(other))


def test_the_node_starts_its_own_executor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(worker, "subprocess", worker.subprocess)  # put back at the end
    flower_api.use_own_executor(["/bin/sh", "-c", f'echo "$@" >{tmp_path}/own', "own"])
    started: Any = worker.subprocess
    assert started.Popen(["flower-superexec", "--insecure"]).wait(60) == 0
    assert (tmp_path / "own").read_text() == "--insecure\n"
    assert started.Popen(["/bin/sh", "-c", "exit 3"]).wait(60) == 3

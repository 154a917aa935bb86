"""``flower-ldp app``: what an owner pins, and what differs between two bundles."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from flower_ldp.app_digests import bundle_of, digest_of, this_environment
from tests.bundles import FILES, app_folder, packed
from tests.cli import facts, flower_ldp


def test_the_digest_of_a_folder_is_that_of_the_bundle_that_flower_sends(tmp_path: Path) -> None:
    folder = app_folder(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from flwr.cli.build import build_fab_from_disk

        sent = build_fab_from_disk(folder)
    (tmp_path / "sent.fab").write_bytes(sent)
    for path in (folder, tmp_path / "sent.fab"):
        told = flower_ldp("app", "digest", path).out.splitlines()[0]
        assert told == digest_of(sent) == digest_of(bundle_of(folder))
    found = facts("app", "digest", folder)
    assert found["digest"] == digest_of(sent)
    assert set(found["files"]) == set(FILES)


def test_what_differs_between_two_apps_is_told(tmp_path: Path) -> None:
    one = app_folder(tmp_path / "a")
    other = app_folder(tmp_path / "b", {"pinned_app/client.py": "app = 1"})
    (tmp_path / "again.fab").write_bytes(packed())
    (tmp_path / "packed.fab").write_bytes(packed(dict(reversed(FILES.items()))))
    same = flower_ldp("app", "compare", one, app_folder(tmp_path / "c"))
    assert (same.code, "the same bundle" in same.out) == (0, True)
    done = flower_ldp("app", "compare", one, other)
    assert (done.code, "two digests" in done.err) == (1, True)
    assert re.search("differs +pinned_app/client.py\n", done.out)
    done = flower_ldp("app", "compare", tmp_path / "again.fab", tmp_path / "packed.fab")
    assert (done.code, "packed otherwise" in done.out) == (1, True)


def test_what_is_no_app_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.fab").write_bytes(packed({**FILES, "../evil.py": ""}))
    for path in (tmp_path, tmp_path / "gone.fab", tmp_path / "bad.fab"):
        assert flower_ldp("app", "digest", path).code == 1


def test_the_environments_digest_is_the_one_that_the_node_compares() -> None:
    assert facts("app", "environment")["digest"] == this_environment().digest

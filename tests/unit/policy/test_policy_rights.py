"""Who could have written a policy: judged on what is read, in every mode."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.policy import ENVIRONMENT_VARIABLE, Policy, find_policy, load_policy
from flower_ldp.policy import files as rights
from tests.cli import process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are POSIX's")

TEXT = """\
data_id: ward-7
ledger: spent.sqlite
mode: {mode}
messages:
  train: {{signds: {{epsilon: {epsilon}}}}}
budgets:
  client: {{life: {{epsilon: 90.0}}}}
"""
MODES = ("deployment", "simulation")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "policy.yaml")


def write(path: Path, mode: str = "deployment", epsilon: float = 8.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT.format(mode=mode, epsilon=epsilon))
    path.chmod(0o600)
    return path


def find(path: Path | str) -> Policy:
    found = find_policy({}, {ENVIRONMENT_VARIABLE: str(path)})
    assert found is not None
    return found


def refusal(path: Path | str) -> str:
    with pytest.raises(ConfigError) as caught:
        find(path)
    return str(caught.value)


def epsilon(policy: Policy) -> float:
    return policy.messages["train"]["signds"].epsilon


Give = Callable[[Path], None]


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Give:
    """Make a file another user's: to a process that is not root, its own are."""

    def give(path: Path) -> None:
        if os.geteuid() == 0:
            os.chown(path, 1234, -1, follow_symlinks=False)
        else:
            user = os.geteuid() + 1
            monkeypatch.setattr(os, "geteuid", lambda: user)

    return give


# What others may write.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [0o666, 0o602, 0o606])
def test_a_file_that_others_can_write_is_refused(path: Path, mode: str, bits: int) -> None:
    write(path, mode).chmod(bits)
    wanted = f"policy {path} can be written by others (mode {bits:04o}): chmod go-w"
    assert refusal(path) == wanted


@pytest.mark.parametrize("mode", MODES)
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: str) -> None:
    path = write(tmp_path / "open" / "inner" / "policy.yaml", mode)
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o777)
        wanted = f"folder {folder} can be written by others (mode 0777): chmod go-w"
        assert refusal(path) == wanted
        folder.chmod(0o1777)
        assert epsilon(find(path)) == 8.0
        folder.chmod(0o755)


@pytest.mark.parametrize("mode", MODES)
def test_what_belongs_to_somebody_else_is_refused(path: Path, mode: str, give_away: Give) -> None:
    give_away(write(path, mode))
    assert f"policy {path} belongs to user" in refusal(path)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bits", [0o755, 0o1777])
def test_anothers_folder_is_refused(tmp_path: Path, mode: str, bits: int, give_away: Give) -> None:
    path = write(tmp_path / "theirs" / "policy.yaml", mode)
    path.parent.chmod(bits)
    give_away(path.parent)
    assert f"folder {path.parent} belongs to user" in refusal(path)


@pytest.mark.skipif(os.name == "posix" and os.geteuid() != 0, reason="only root can give away")
def test_anothers_file_in_a_sticky_folder_is_refused(tmp_path: Path, give_away: Give) -> None:
    path = write(tmp_path / "shared" / "policy.yaml")
    path.parent.chmod(0o1777)
    give_away(path)
    assert f"policy {path} belongs to user 1234" in refusal(path)


@pytest.mark.parametrize(("file", "bits"), [("policy", 0o664), ("folder", 0o600)])
def test_a_clone_of_umask_002_is_refused_in_a_deployment_alone(
    path: Path, file: str, bits: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(path, "simulation").chmod(bits)
    path.parent.chmod(0o775)
    with caplog.at_level(logging.WARNING, logger="flower_ldp"):
        assert find(path).is_simulation
        assert find(path).is_simulation
    said = [f"simulation: folder {path.parent} can be written by others (mode 0775)"]
    if file == "policy":
        said.append(f"simulation: policy {path} can be written by others (mode 0664)")
    assert [line.split(": chmod")[0] for line in caplog.messages] == said  # once
    path.write_text(path.read_text().replace("simulation", "deployment"))
    assert "can be written by others" in refusal(path)
    path.chmod(0o600)
    path.parent.chmod(0o755)
    assert epsilon(find(path)) == 8.0


def test_rights_are_judged_again_though_the_text_is_known(path: Path) -> None:
    find(path)
    path.chmod(0o666)
    assert "can be written by others" in refusal(path)
    assert epsilon(load_policy(path)) == 8.0  # it can be looked at, whoever may write it
    path.chmod(0o600)
    assert epsilon(find(path)) == 8.0


# Links.


def test_a_link_is_judged_with_the_folders_of_both(tmp_path: Path) -> None:
    path = write(tmp_path / "real" / "policy.yaml")
    (tmp_path / "named").mkdir()
    link = tmp_path / "named" / "policy.yaml"
    link.symlink_to("../real/policy.yaml")
    assert find(link).ledger == link.parent / "spent.sqlite"
    for folder in (path.parent, link.parent):
        folder.chmod(0o777)
        assert refusal(link).startswith(f"folder {folder} can be written by others")
        folder.chmod(0o755)
    path.chmod(0o622)
    assert refusal(link).startswith(f"policy {path} can be written by others")


def test_a_linked_folder_on_the_way_is_judged(tmp_path: Path) -> None:
    path = write(tmp_path / "real" / "inner" / "policy.yaml")
    (tmp_path / "way").symlink_to(tmp_path / "real")
    assert epsilon(find(tmp_path / "way" / "inner" / "policy.yaml")) == 8.0
    path.parent.parent.chmod(0o777)
    assert "real can be written" in refusal(tmp_path / "way" / "inner" / "policy.yaml")
    # After a link, ".." leads to where the link does.
    write(tmp_path / "policy.yaml", epsilon=1.0)
    path.parent.parent.chmod(0o755)
    (tmp_path / "to-inner").symlink_to(path.parent)
    assert epsilon(find(write(tmp_path / "real" / "policy.yaml", epsilon=2.0))) == 2.0
    assert epsilon(find(tmp_path / "to-inner" / ".." / "policy.yaml")) == 2.0


def test_a_link_of_somebody_elses_is_refused(path: Path, give_away: Give) -> None:
    link = path.parent / "shared" / "policy.yaml"
    link.parent.mkdir()
    link.parent.chmod(0o1777)
    link.symlink_to(path)
    give_away(link)
    assert f"link {link} belongs to user" in refusal(link)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "Too many levels of symbolic links" in refusal(tmp_path / "a")


def test_a_relative_name_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in" / "policy.yaml")
    monkeypatch.chdir(tmp_path / "in")
    assert find("policy.yaml").ledger == tmp_path / "in" / "spent.sqlite"
    (tmp_path / "in").chmod(0o777)
    assert "folder" in refusal("policy.yaml")


def test_a_hard_link_is_the_file(path: Path) -> None:
    other = path.parent / "open" / "policy.yaml"
    other.parent.mkdir()
    other.parent.chmod(0o777)
    os.link(path, other)
    assert epsilon(find(path)) == 8.0
    assert "open can be written" in refusal(other)


# What is no policy.


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, said in (
        (tmp_path / "pipe", "is no regular file"),
        ("/dev/null", "is no regular file"),
        (tmp_path, "Is a directory"),
        ("/", "Is a directory"),
        (tmp_path / "absent", "cannot be read"),
        (tmp_path / "absent" / "x", "cannot be read"),
        (tmp_path / "pipe" / "x", "cannot be read"),
        ("a\0b", "must name a policy file"),
    ):
        assert said in refusal(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(tmp_path / "socket"))
        assert "cannot be read" in refusal(tmp_path / "socket")


def test_a_pipe_as_standard_input_is_refused() -> None:
    code = "from flower_ldp.policy import find_policy; find_policy({'ldp-policy': '/dev/stdin'})"
    done = process(sys.executable, "-c", code, input="")
    assert done.returncode == 1
    assert "/dev/stdin: cannot be read" in done.stderr


def test_a_huge_file_is_not_read(path: Path) -> None:
    os.truncate(path, 2**40)  # a sparse one
    assert "more than 1,048,576 bytes" in refusal(path)
    with pytest.raises(ConfigError, match="more than"):
        load_policy(path)


# What is changed meanwhile.


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, Callable[[], object]], None]]:
    """Act once, right after the walk has judged what is named; it must have been."""
    waiting: dict[str, Callable[[], object]] = {}
    judge = rights.faults

    def hook(what: str, status: os.stat_result) -> list[tuple[bool, str]]:
        found = list(judge(what, status))
        waiting.pop(what, lambda: None)()
        return found

    monkeypatch.setattr(rights, "faults", hook)
    yield waiting.__setitem__
    assert not waiting


def test_a_file_that_is_replaced_after_it_was_judged_is_not_read(path: Path, after: Any) -> None:
    other = write(path.with_name("other.yaml"), epsilon=100.0)
    other.chmod(0o666)
    after(f"policy {path}", lambda: os.replace(other, path))
    assert epsilon(find(path)) == 8.0
    assert "can be written by others" in refusal(path)


def test_a_folder_replaced_after_it_was_judged(tmp_path: Path, after: Any) -> None:
    path = write(tmp_path / "site" / "policy.yaml")
    write(tmp_path / "theirs" / "policy.yaml", epsilon=100.0)
    (tmp_path / "theirs").chmod(0o777)

    def swap() -> None:
        (tmp_path / "site").rename(tmp_path / "away")
        (tmp_path / "site").symlink_to(tmp_path / "theirs")

    after(f"folder {path.parent}", swap)
    assert epsilon(find(path)) == 8.0
    assert "theirs can be written by others" in refusal(path)


def test_a_file_that_becomes_a_link_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write(path.parent / "other" / "policy.yaml", epsilon=100.0)
    other.parent.chmod(0o777)
    found = os.stat

    def stat(name: Any, **rest: Any) -> os.stat_result:
        status = found(name, **rest)
        if name == "policy.yaml" and not path.is_symlink():
            path.unlink()
            path.symlink_to(other)
        return status

    monkeypatch.setattr(os, "stat", stat)
    assert "cannot be read" in refusal(path)


def test_a_file_written_meanwhile_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = rights._version
    calls: list[int] = []

    def version(status: os.stat_result) -> tuple[int, ...]:
        calls.append(status.st_size)
        return (*decoded(status), len(calls))

    assert decoded(os.stat(path))[0] == len(path.read_bytes())
    monkeypatch.setattr(rights, "_version", version)
    assert "it changed meanwhile" in refusal(path)


def test_a_link_that_turns_and_turns_never_leads_past_the_judgement(tmp_path: Path) -> None:
    write(tmp_path / "good" / "policy.yaml", epsilon=8.0)
    write(tmp_path / "bad" / "policy.yaml", epsilon=100.0)
    (tmp_path / "bad").chmod(0o777)
    link, stop = tmp_path / "now", threading.Event()
    link.symlink_to("good")

    def turn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            new = tmp_path / f"new-{number % 2}"
            new.symlink_to(("good", "bad")[number % 2])
            new.replace(link)

    turning = threading.Thread(target=turn)
    turning.start()
    try:
        found = [tried(link / "policy.yaml") for _ in range(400)]
    finally:
        stop.set()
        turning.join()
    assert set(found) == {8.0, None}


def tried(path: Path) -> float | None:
    """Return the epsilon of the policy there, or None if it is refused."""
    try:
        return epsilon(find(path))
    except ConfigError:
        return None

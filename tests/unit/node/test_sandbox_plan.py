"""The sandbox's plan: what an app is shown, how bubblewrap is told, how much it may use."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

import flower_ldp
from flower_ldp.node.command import site_parser
from flower_ldp.node.log import IN_AN_HOUR, Allowance
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing, Settings

if sys.platform != "linux":
    pytest.skip("the sandbox is for Linux", allow_module_level=True)

from flower_ldp.node.sandbox.bubblewrap import arguments, find_bubblewrap, make_group
from flower_ldp.node.sandbox.command import LONGEST, copy_output, harmless
from flower_ldp.node.sandbox.filesystem_view import View, view_of
from flower_ldp.node.sandbox.sandbox_init import SOCKET
from tests.cli import process
from tests.sandbox import needs_sandbox


def parsed(*words: str) -> Settings:
    return Settings.of(site_parser().parse_args(words))


def test_the_command_line_says_the_settings(tmp_path: Path) -> None:
    assert parsed() == Settings([], [])
    words = ["--sandbox-data", str(tmp_path), "--sandbox-data", "b", "--sandbox-memory", "512M"]
    words += ["--sandbox-device", "/dev/null", "--sandbox-processes", "100", "--sandbox-files"]
    words += ["99", "--sandbox-user", "who", "--sandbox-seconds", "60"]
    found = parsed(*words, "--sandbox-no-memory-limit")
    data = [str(tmp_path), str(Path("b").absolute())]
    assert found == Settings(data, ["/dev/null"], "who", 512 << 20, 100, 99, 60, False)


ODD = [("memory", "8"), ("memory", "8GB"), ("memory", "-1G"), ("files", "x"), ("files", "3")]


@pytest.mark.parametrize(("option", "size"), [*ODD, ("seconds", "0"), ("seconds", "1.5")])
def test_odd_sizes_are_refused(option: str, size: str) -> None:
    with pytest.raises(SystemExit):
        parsed(f"--sandbox-{option}", size)


def planned(*, as_root: bool) -> list[str]:
    shown = {"/usr": Path("/usr"), "/srv/a b/data": Path("/mnt/x")}
    view = View(shown, {"/bin": "usr/bin"}, (Path("/dev/nvidia0"),))
    files = {"/etc/passwd": Path("/tmp/own/passwd"), SOCKET: Path("/tmp/own/node.sock")}
    return arguments(view, files, {"HOME": "/tmp"}, as_root=as_root, memory=1 << 30)


def pairs(found: list[str], option: str) -> list[tuple[str, str]]:
    return [(found[at + 1], found[at + 2]) for at, word in enumerate(found) if word == option]


@pytest.mark.parametrize("as_root", [True, False])
def test_bubblewrap_is_told_to_share_nothing(as_root: bool) -> None:
    found = planned(as_root=as_root)
    for kind in ("ipc", "pid", "net", "uts"):
        assert f"--unshare-{kind}" in found
    for option in ("--die-with-parent", "--new-session", "--clearenv"):
        assert option in found
    assert found[found.index("--cap-drop") + 1] == "ALL"
    assert ("--unshare-user" in found, "--cap-add" in found) == (not as_root, as_root)
    # Whatever is written to is in memory; all else is read-only, the folders between too.
    assert "--bind" not in found
    assert found.count("--tmpfs") == 2
    assert found[-6:] == ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]
    assert pairs(found, "--ro-bind") == [
        ("/usr", "/usr"),
        ("/mnt/x", "/srv/a b/data"),
        ("/tmp/own/passwd", "/etc/passwd"),
        ("/tmp/own/node.sock", SOCKET),
    ]
    assert pairs(found, "--dev-bind") == [("/dev/nvidia0", "/dev/nvidia0")]
    made = [found[at + 1] for at, word in enumerate(found) if word == "--dir"]
    assert made.index("/srv") < made.index("/srv/a b")
    assert all(found[found.index("--dir") - 2 :][:2] == ["--perms", "0755"] for _ in made)


def made(path: Path, text: str = "x") -> Path:
    """Write a file in a folder of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    return made(tmp_path / "site" / "policy.yaml")


def view(*data: Path, **hidden: Path) -> View:
    return view_of(Settings(data=[str(path) for path in data]), hidden)


def test_the_view_holds_programs_and_named_data(tmp_path: Path, policy: Path) -> None:
    (tmp_path / "data").mkdir()
    data = (tmp_path / "data", made(tmp_path / "site" / "table.csv"))
    found = view(*data, policy=policy)
    for place in data:
        assert found.shown[str(place)] == place
    places = [*found.shown, *found.links]
    assert "/usr" in places
    for never in ("/", "/etc", "/home", "/root", "/var", "/run", "/tmp", "/srv", "/sys"):
        assert never not in places
    package = Path(flower_ldp.__file__).parent
    assert any(package.is_relative_to(place) for place in found.shown)
    assert not any(Path(__file__).is_relative_to(place) for place in found.shown)


@pytest.mark.parametrize("shown", ["", "site", "site/policy.yaml", "link", "link/policy.yaml"])
def test_what_is_hidden_may_be_shown_by_no_name(shown: str, policy: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "site")
    with pytest.raises(SandboxMissing, match="see policy"):
        view(tmp_path / shown, policy=tmp_path / "link" / "policy.yaml")


@pytest.mark.parametrize("deep", [True, False])
def test_hidden_files_have_other_names(deep: bool, policy: Path, tmp_path: Path) -> None:
    copy = made(tmp_path / "data" / "deep" / "table.csv").with_name("a copy")
    hidden = {"policy": policy, "key": tmp_path / "nowhere"}
    assert view(tmp_path / "data", **hidden)
    os.link(policy, copy)
    with pytest.raises(SandboxMissing, match=r"see policy, as .*a copy"):
        view(tmp_path / "data" if deep else copy, **hidden)


_MOUNTED = """
import sys
from pathlib import Path
from flower_ldp.node.sandbox.filesystem_view import SandboxMissing, Settings, view_of
try:
    view_of(Settings(data=(sys.argv[1],)), {"the policy": Path(sys.argv[2])})
except SandboxMissing as error:
    print(error)
"""


@needs_sandbox
def test_what_is_hidden_is_known_where_it_is_mounted(policy: Path, tmp_path: Path) -> None:
    file = made(tmp_path / "data" / "a file", "")
    folder = tmp_path / "data" / "a folder"
    folder.mkdir()
    run = [sys.executable, "-c", _MOUNTED, tmp_path / "data", policy]
    for mounted in ((policy, file), (policy.parent, folder)):
        done = process("bwrap", "--dev-bind", "/", "/", "--bind", *mounted, *run)
        assert done.returncode == 0
        assert "see the policy, as" in done.stdout


@pytest.mark.parametrize("name", ["/", "/tmp", "/proc/1", "/dev/shm", "/sys", "/etc", "/nowhere"])
def test_places_of_the_sandbox_and_places_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(SandboxMissing, match="--sandbox-data"):
        view(Path(name))


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_data_through_which_something_could_be_sent_is_refused(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "data" / "deep"
    place.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as one:
        if kind == "socket":
            one.bind(str(place / "it"))
        else:
            os.mkfifo(place / "it")
        with pytest.raises(SandboxMissing, match="socket, a pipe"):
            view(tmp_path / "data")


@pytest.mark.parametrize("name", ["/dev/nowhere", "/dev", "/etc/passwd"])
def test_devices_must_be_devices(name: str) -> None:
    with pytest.raises(SandboxMissing, match="--sandbox-device"):
        view_of(Settings(device=(name,)), {})
    found = view_of(Settings(device=("/dev/null",)), {})
    assert found.devices == (Path("/dev/null"),)
    assert "/sys/devices/system" in found.shown


def fake_kernel(folder: Path, mounts: str, own: str) -> Path:
    lines = [line.format(folder=folder) for line in mounts.strip().splitlines()]
    made(folder / "self" / "mountinfo", "".join(f"{line}\n" for line in lines))
    return made(folder / "self" / "cgroup", own).parent


SECOND = "32 24 0:28 / {folder}/cg rw - cgroup2 cgroup2 rw"


def test_a_group_of_the_second_version(tmp_path: Path) -> None:
    own = made(tmp_path / "cg" / "unit" / "cgroup.controllers", "cpu memory pids\n").parent
    made(own / "cgroup.subtree_control", "")
    left, of_another = own / "flower-ldp-apps-999999999", own / f"flower-ldp-apps-{os.getppid()}"
    left.mkdir()
    of_another.mkdir()
    kernel = fake_kernel(tmp_path, f"{SECOND},nsdelegate", "0::/unit\n")
    group = make_group(1 << 30, 99, kernel)
    assert (own / "cgroup.subtree_control").read_text() == "+memory +pids"
    (folder,) = group.folders
    assert (left.exists(), of_another.exists(), folder.parent) == (False, True, own)
    assert group.limits() == {"memory.max": str(1 << 30), "pids.max": "99"}


def test_a_group_of_the_first_version_below_a_container(tmp_path: Path) -> None:
    places = [tmp_path / "cg" / name / "x" for name in ("memory", "pids")]
    for place in places:
        place.mkdir(parents=True)
    mounts = """
30 24 0:26 /docker/1 {folder}/cg/memory rw - cgroup cgroup rw,memory
31 24 0:27 /docker/1 {folder}/cg/pids rw - cgroup cgroup rw,pids
"""
    made(tmp_path / "cg" / "cgroup.controllers", "hugetlb\n")
    own = "9:pids:/docker/1/x\n8:memory:/docker/1/x\n0::/\n"
    group = make_group(1 << 30, 99, fake_kernel(tmp_path, mounts + SECOND, own))
    assert [folder.parent for folder in group.folders] == places
    assert group.limits() == {"memory.limit_in_bytes": str(1 << 30), "pids.max": "99"}


@pytest.mark.parametrize("mounts", ["", SECOND])
def test_without_a_control_group_the_flag_is_named(mounts: str, tmp_path: Path) -> None:
    made(tmp_path / "cg" / "cgroup.controllers", "cpu memory\n")
    with pytest.raises(SandboxMissing, match="--sandbox-no-memory-limit"):
        make_group(1 << 30, 99, fake_kernel(tmp_path, mounts, "0::/\n"))


@pytest.mark.parametrize("said", [None, "bubblewrap 0.6.1", "nonsense"])
def test_a_bubblewrap_that_is_missing_or_old_is_named(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        made(tmp_path / "bwrap", f"#!/bin/sh\necho {said}\n").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissing, match="not installed" if said is None else said):
        find_bubblewrap()


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (b"plain\n", b"[app] plain\n"),
        (b"\x1b[92mINFO\x1b[0m: a\ttab\n", b"[app] INFO: a\ttab\n"),
        (b"\x1b]0;title\x07\n", b"[app] \\x1b]0;title\\x07\n"),
        (b"\xff\xe2\x80\xae half \xc3\n", b"[app] \\xff\\u202e half \\xc3\n"),
        (b"over\rwritten\x08\r\n", b"[app] over\\rwritten\\x08\n"),
        ("\u00fc \u009b31m".encode(), "[app] \u00fc \\x9b31m\n".encode()),
    ],
)
def test_an_apps_output_is_marked_and_steers_no_terminal(line: bytes, written: bytes) -> None:
    assert harmless(line) == written


def logged(folder: Path, said: bytes, **options: int) -> list[bytes]:
    """Return the lines of a log into which an app's output was copied."""
    (folder / "said").write_bytes(said)
    with (folder / "log").open("wb") as log:
        output = (folder / "said").open("rb")
        copy_output(output, log, Allowance(IN_AN_HOUR), **options).join(20)
    return (folder / "log").read_bytes().splitlines()


def test_a_long_line_becomes_several_and_each_is_marked(tmp_path: Path) -> None:
    lines = logged(tmp_path, b"x" * (2 * LONGEST + 5) + b"\nlast")
    assert [len(line) for line in lines] == [LONGEST + 6, LONGEST + 6, 11, 10]
    assert all(line.startswith(b"[app] ") for line in lines)


def test_an_app_cannot_fill_the_log(tmp_path: Path) -> None:
    lines = logged(tmp_path, b"123456789\n" * 100_000, largest=25)
    dropped = b"[app] (what it writes from here on is dropped)"
    assert lines == [*[b"[app] 123456789"] * 3, dropped]

"""The check of the sandbox: finds nothing open in it, everything outside it, and each weakening."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "linux":
    pytest.skip("the sandbox is for Linux", allow_module_level=True)

from flower_ldp.node.sandbox import bubblewrap
from flower_ldp.node.sandbox.bubblewrap import Group, make_group
from flower_ldp.node.sandbox.command import run_check
from flower_ldp.node.sandbox.escape_test import Attempts
from flower_ldp.node.sandbox.filesystem_view import PACKAGE, SandboxMissing, Settings
from flower_ldp.node.sandbox.seccomp import call_numbers
from tests.network.federation import NODE
from tests.network.processes import wait_for
from tests.sandbox import has_control_group, needs_sandbox

pytestmark = needs_sandbox

#: An ordinary user: neither the tests' own nor that of apps.
ORDINARY = 61_004
#: What a node runs from.
NEEDED = {Path(sys.prefix), Path(sys.base_prefix), PACKAGE.parent}
SMALL = Settings(memory=512 << 20, processes=200, files=300, control_group=has_control_group())
NO_LIMIT = () if SMALL.control_group else ("--sandbox-no-memory-limit",)


@pytest.fixture
def group() -> Iterator[Group]:
    made = make_group(SMALL.memory, SMALL.processes) if SMALL.control_group else Group()
    yield made
    made.remove()


def check(*words: str, before: tuple[str, ...] = (), home: Path) -> tuple[int, str]:
    """Run the command's own check; return its exit code and what it printed."""
    done = subprocess.run(
        [*before, *NODE, "--insecure", "--sandbox", "--check", *words],
        env={**os.environ, "FLWR_HOME": str(home), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_open_in_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("a folder for temporary files " * 5)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))  # longer than the path of a socket may be
    (tmp_path / "data").mkdir()
    (tmp_path / "node-key").write_text("secret")
    words = ["--sandbox-data", str(tmp_path / "data"), "--sandbox-device", "/dev/null"]
    words += ["--auth-supernode-private-key", str(tmp_path / "node-key"), *NO_LIMIT]
    code, printed = check(*words, home=tmp_path / "flower")
    assert code == 0, printed
    assert "OPEN" not in printed
    assert printed.count("closed") > 30
    assert str(tmp_path / "node-key") in printed


#: The command with one more option and then without, in one process: it imports Flower.
TWICE = """
import sys
from flower_ldp.node.command import main
given = list(sys.argv)
try:
    sys.argv = [*given, "--sandbox-no-memory-limit"]
    main()
except SystemExit as ended:
    sys.stdout.flush()
    print("the first ended:", ended.code or 0, file=sys.stderr, flush=True)
    sys.argv = given
    main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_nothing_is_open_where_the_node_is_an_ordinary_user(tmp_path: Path) -> None:
    before = ["bwrap", "--dev-bind", "/", "/", *readable(NEEDED)]
    before += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "setpriv"]
    before += [f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups"]
    done = subprocess.run(
        [*before, sys.executable, "-c", TWICE, "--insecure", "--sandbox", "--check"],
        env={**os.environ, "FLWR_HOME": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    printed, _, second = done.stderr.partition("the first ended: ")
    printed += done.stdout
    if "No permissions to create" in printed:
        pytest.skip("ordinary users may make no user namespace here")
    assert second.startswith("0\n"), printed
    assert "OPEN" not in printed
    assert printed.count("closed") > 30
    for said in ("This node is not root", "Memory is not limited"):
        assert said in printed
    assert (done.returncode, "--sandbox-no-memory-limit" in second) == (2, True)


def readable(folders: Iterable[Path]) -> list[str]:
    """Return options that show folders to every user, though they lie in closed ones.

    Python may be installed in root's home, and the checkout lie in a private folder of /tmp.
    """
    closed: dict[Path, list[Path]] = {}
    for folder in folders:
        above = (one for one in reversed(folder.parents) if not one.stat().st_mode & 0o001)
        if found := next(above, None):
            closed.setdefault(found, []).append(folder)
    words: list[str] = []
    for top, inner in closed.items():
        words += ["--perms", "0755", "--tmpfs", str(top)]
        for folder in inner:
            between = [one for one in reversed(folder.parents) if top in one.parents]
            for one in between:
                words += ["--perms", "0755", "--dir", str(one)]
            words += ["--ro-bind", str(folder), str(folder)]
    return words


def test_the_probe_finds_the_ways_open_where_there_is_no_sandbox(tmp_path: Path) -> None:
    secret = tmp_path / "policy.yaml"
    secret.write_text("x")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind("\0flower-ldp-test-of-the-probe")
        abstract.listen()
        kinds = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
        attempts = Attempts(
            port=1,
            addresses=[["127.0.0.1", listening.getsockname()[1]]],
            abstract="flower-ldp-test-of-the-probe",
            hidden={"the policy": str(secret)},
            namespaces={name: os.readlink(f"/proc/self/ns/{name}") for name in kinds},
            environment=[],
            devices=[],
            limits=SMALL.limits,
            calls=call_numbers(),
            socket="",
        )
        done = subprocess.run(
            [sys.executable, "-m", "flower_ldp.node.sandbox.escape_test"],
            input=json.dumps(asdict(attempts)),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
    found = json.loads(done.stdout)
    assert found["answers"] is False
    ways = {one["way"]: one["is_open"] for one in found["findings"]}
    expected = {
        "connect to 127.0.0.1 outside",
        "an abstract socket outside",
        f"the policy: {secret}",
        "places to write, but for a private /tmp",
        "namespaces shared with the node",
        "processes but the sandbox's own",
        "typing into a terminal",
        "a terminal's line discipline",
        "another limit on core dumps",
        "sockets of any other family",
        "netlink but for routes",
        "rights by programs that give some",
        "variables of the node's",
        "processes, files and dumps without a limit",
    }
    if os.geteuid() == 0:
        expected |= {"raw sockets", "AF_PACKET", "capabilities", "become root", "groups"}
    assert {way for way, is_open in ways.items() if is_open} >= expected
    assert any(is_open for way, is_open in ways.items() if way.startswith("ptrace"))


def weaker(change: Callable[[list[str]], list[str]]) -> Callable[[pytest.MonkeyPatch], None]:
    whole = bubblewrap.arguments

    def changed(*of: Any, **more: Any) -> list[str]:
        return change(whole(*of, **more))

    return lambda patch: patch.setattr(bubblewrap, "arguments", changed)


def without(option: str) -> Callable[[pytest.MonkeyPatch], None]:
    return weaker(lambda words: [word for word in words if word != option])


def no_filter(patch: pytest.MonkeyPatch) -> None:
    allow = struct.pack("=HHI", 0x06, 0, 0x7FFF0000)  # return SECCOMP_RET_ALLOW
    patch.setattr(bubblewrap, "app_filter", lambda: allow)


def keep_folder(patch: pytest.MonkeyPatch) -> None:
    weaker(lambda words: [*words[:-6], "--bind", "/tmp", "/a place", *words[-6:]])(patch)


def keep_descriptor(patch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    leaked = os.open("/etc/passwd", os.O_RDONLY)

    def leaking(*args: object, **more: object) -> object:
        more["pass_fds"] = (*more.get("pass_fds", ()), leaked)  # type: ignore[misc]
        return start(*args, **more)  # type: ignore[call-overload]

    patch.setattr(bubblewrap.subprocess, "Popen", leaking)


@pytest.mark.parametrize(
    ("weaken", "way"),
    [
        (without("--unshare-pid"), "processes but the sandbox's own"),
        (without("--unshare-ipc"), "namespaces shared with the node"),
        (without("--clearenv"), "variables of the node's"),
        (no_filter, "AF_VSOCK"),
        (no_filter, "a user namespace by clone"),
        (keep_folder, "places to write, but for a private /tmp"),
        (keep_descriptor, "open files of the node's"),
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_weaker_sandbox_is_noticed(
    weaken: Callable[[pytest.MonkeyPatch], None],
    way: str,
    group: Group,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "AF_VSOCK" and not _has_vsock():
        pytest.skip("this kernel has no AF_VSOCK")
    weaken(monkeypatch)
    found = run_check(SMALL, {}, group, every_file=False)
    assert any(one.is_open and one.way.startswith(way) for one in found)


def test_a_shared_folder_is_noticed(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="flower-ldp-shared-") as shared:
        os.chmod(shared, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", shared)
        weaker(lambda words: [*words, "--bind", shared, shared])(monkeypatch)
        found = run_check(SMALL, {}, group, every_file=False)
    assert any(one.is_open and one.way.startswith("a file in /tmp outside") for one in found)


def test_a_sandbox_in_this_machines_network_is_noticed(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    without("--unshare-net")(monkeypatch)
    with pytest.raises(SandboxMissing, match="Address already in use"):  # the node's own port
        run_check(SMALL, {}, group, every_file=False)


def _has_vsock() -> bool:
    try:
        socket.socket(40, socket.SOCK_STREAM).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not SMALL.control_group, reason="no control group can be made here")
def test_memory_is_limited_for_all_apps_together(group: Group) -> None:
    code = "b = bytearray(600 << 20); b[:: 4096] = b'x' * len(b[:: 4096])"
    made = bubblewrap.Jail(SMALL, {}, 40_001, group)
    try:
        for limited, ended in ((group, (137, -9)), (Group(), (0,))):
            made._group = limited
            process = made.start([sys.executable, "-c", code])
            assert process.wait(60) in ended
        # and what lies in its folders in memory counts
        made._group = group
        write = ["/bin/sh", "-c", "dd if=/dev/zero of=/tmp/x bs=1M count=600 2>/dev/null"]
        assert made.start(write).wait(60) != 0
    finally:
        made.close()


def test_nothing_lives_on_in_a_sandbox_that_is_ended(group: Group) -> None:
    made = bubblewrap.Jail(SMALL, {}, 40_002, group)
    try:
        # In a session of its own, deaf to what asks it to end, as an app may leave it.
        left = "trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 919' & sleep 919"
        process = made.start(["/bin/sh", "-c", left])
        wait_for(lambda: len(_sleeping()) >= 2, "two processes", timeout=30, shown=str)
        process.kill()
        process.wait(10)
        wait_for(lambda: _sleeping() == [], "their end", timeout=10, shown=str)
    finally:
        made.close()


def _sleeping() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == b"sleep\x00919\x00":
                found.append(path.parent.name)
    return found


def test_a_sandbox_that_cannot_start_python_says_so(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaker(lambda words: [*words, "--tmpfs", sys.prefix])(monkeypatch)
    with pytest.raises(SandboxMissing, match="nothing can be started"):
        run_check(SMALL, {}, group, every_file=False)

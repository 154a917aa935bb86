"""The arguments by which bubblewrap makes the sandbox of one app. A pure function of its plan."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flower_ldp.node.sandbox.settings import SandboxMissing
from flower_ldp.node.sandbox.view import View

#: The first version with every option that is used here; Debian 12 has it.
FIRST_VERSION = (0, 8)
#: Where the sandbox has the socket to the node.
SOCKET = "/run/flower/node.sock"
#: What the first program inside needs to become another user, where bubblewrap is run by root.
BECOME_ANOTHER = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")


@dataclass(frozen=True)
class Plan:
    """A sandbox.

    Parameters
    ----------
    view : View
        What of this machine is in it.
    files : mapping of str to Path
        Small files that are made for it, by their path in it.
    environment : mapping of str to str
        All of its variables.
    socket : Path
        On this machine, of the relay to the node.
    as_root : bool
        Whether bubblewrap is run by root: then the first program inside becomes another user;
        otherwise the sandbox is a user namespace.
    memory : int
        Bytes of each of its folders in memory.
    """

    view: View
    files: Mapping[str, Path]
    environment: Mapping[str, str]
    socket: Path
    as_root: bool
    memory: int


def arguments(plan: Plan) -> list[str]:
    """Return bubblewrap's arguments, without the filter's descriptor and the command."""
    found = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
    found += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if plan.as_root:
        for capability in BECOME_ANOTHER:
            found += ["--cap-add", capability]
    else:
        found += ["--unshare-user", "--disable-userns"]
    # It ends with the executor, and has no terminal of the node's to type into.
    found += ["--die-with-parent", "--new-session", "--clearenv"]
    for name, value in sorted(plan.environment.items()):
        found += ["--setenv", name, value]
    found += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/tmp", "/dev/shm"):
        found += ["--perms", "1777", "--size", str(plan.memory), "--tmpfs", place]
    places = [*plan.view.shown, *plan.files, SOCKET]
    for folder in _parents(places):
        found += ["--perms", "0755", "--dir", folder]
    for place, link in sorted(plan.view.links.items()):
        found += ["--symlink", link, place]
    for place, source in plan.view.shown.items():
        found += ["--ro-bind", str(source), place]
    for place, source in sorted(plan.files.items()):
        found += ["--ro-bind", str(source), place]
    for device in plan.view.devices:
        found += ["--dev-bind", str(device), str(device)]
    found += ["--ro-bind", str(plan.socket), SOCKET]
    return [*found, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"]


def _parents(places: Iterable[str]) -> list[str]:
    """Return the folders above some places, the outermost first: bubblewrap would close them."""
    folders = {str(folder) for place in places for folder in Path(place).parents}
    return sorted(folders - {"/"}, key=lambda one: (one.count("/"), one))


def find_bubblewrap() -> str:
    """Return the path of a bubblewrap that knows the options used here.

    Raises
    ------
    SandboxMissing
        If there is none.
    """
    path = shutil.which("bwrap")
    needed = ".".join(map(str, FIRST_VERSION))
    if path is None:
        raise SandboxMissing(
            f"bubblewrap is not installed: apt install bubblewrap ({needed} or later)"
        )
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"(\d+)\.(\d+)", done.stdout)
    if found is None or (int(found[1]), int(found[2])) < FIRST_VERSION:
        raise SandboxMissing(
            f"{path} is {done.stdout.strip() or 'of an unknown version'}; {needed} is needed"
        )
    return path

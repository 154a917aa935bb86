"""What goes into the container image, and what the compose file closes to the app."""

from __future__ import annotations

import ipaddress
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOYMENT = ROOT / "examples" / "deployment"


def compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOYMENT / "compose.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def image(instruction: str) -> list[list[str]]:
    """Return the words of each instruction of a kind in the Dockerfile."""
    text = (DEPLOYMENT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    return [words[1:] for words in lines if words and words[0] == instruction]


def test_an_image_holds_nothing_of_a_site() -> None:
    # A checkout may hold a site's folder, as the compose file makes it: its key and its ledger.
    copied = {source for words in image("COPY") for source in words[:-1]}
    assert copied == {"pyproject.toml", "README.md", "LICENSE", "constraints.txt", "flower_ldp"}
    here = copied - {"flower_ldp"}  # which may be installed, and not beside the tests
    assert all((ROOT / source).exists() for source in here)


def test_an_image_runs_the_examples() -> None:
    words = [word for run in image("RUN") for word in run]
    assert "/src[examples,shuffle]" in words
    assert "/src/constraints.txt" in words


def test_a_volume_belongs_to_the_user_of_the_image() -> None:
    ((user,),) = image("USER")
    volumes = compose()["volumes"]
    mounts = [one for part in compose()["services"].values() for one in part.get("volumes", [])]
    made = next(words for words in image("RUN") if words[0] == "useradd")
    for place in [one.split(":")[1] for one in mounts if one.split(":")[0] in volumes]:
        assert place in made
        assert made[made.index("-o") + 1] == user


def test_no_app_of_the_server_can_read_the_authority_s_key() -> None:
    sources = [one.split(":")[0] for one in compose()["services"]["superlink"]["volumes"]]
    assert "./certificates" not in sources
    assert not [source for source in sources if "ca.key" in source]


def test_the_app_reaches_the_node_without_any_resolver() -> None:
    found = compose()
    node, app = (found["services"][part] for part in ("node", "app"))
    inside = found["networks"]["inside"]
    assert inside["internal"] is True
    assert inside["x-podman.disable_dns"] is True
    assert app["dns"] == ["127.0.0.1"]
    assert app["sysctls"] == ["net.ipv6.conf.all.disable_ipv6=1"]
    addresses = [part["networks"]["inside"]["ipv4_address"] for part in (node, app)]
    assert app["extra_hosts"] == [f"node:{addresses[0]}"]
    # The app is the first to start at times: without one of its own it takes the node's address.
    (subnet,) = (ipaddress.ip_network(one["subnet"]) for one in inside["ipam"]["config"])
    gateway, *hosts = map(str, subnet.hosts())
    assert gateway not in addresses
    assert set(addresses) < set(hosts)
    assert len(set(addresses)) == 2


def test_the_app_writes_to_memory_alone() -> None:
    app = compose()["services"]["app"]
    assert app["read_only"] is True
    # No option of a mount besides: Podman knows fewer of them than Docker.
    assert app["tmpfs"] == ["/tmp"]
    assert app["working_dir"] == "/tmp"
    assert app["environment"] == ["HOME=/tmp"]

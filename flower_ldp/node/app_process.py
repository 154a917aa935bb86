"""The process of one app: Flower's ``flwr-clientapp``, which first asks its node who privatizes.

If the node says that it does, the app's own ``LdpMod`` steps aside; without that answer it stays.
The answer comes from the runtime API, which also chooses the app.
"""

import argparse
import ssl
import sys
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection

from flower_ldp import inner_gate

#: Where the node says that it privatizes, and the whole of its answer.
GATE, PRIVATIZES = "/flower-ldp/gate", b"privatize"
_SECONDS = 10.0


def says_that_it_privatizes(words: Sequence[str]) -> bool:
    """Return whether the node says that it privatizes what this process sends it.

    Only ``words``, the command's arguments, name the node: no proxy is read from the environment.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--root-certificates")
    parser.add_argument("--insecure", action="store_true")
    node, _ = parser.parse_known_args(words)
    try:
        if node.insecure:
            link = HTTPConnection(node.runtime_api_address, timeout=_SECONDS)
        else:
            trusted = ssl.create_default_context(cafile=node.root_certificates)
            link = HTTPSConnection(node.runtime_api_address, timeout=_SECONDS, context=trusted)
        with closing(link):
            link.request("GET", GATE)
            answer = link.getresponse()
            return answer.status == 200 and answer.read(len(PRIVATIZES) + 1) == PRIVATIZES
    except (OSError, HTTPException):
        return False


def main() -> None:
    """Run Flower's command."""
    inner_gate.node_privatizes = says_that_it_privatizes(sys.argv[1:])
    from flwr.supernode.cli import flwr_clientapp

    flwr_clientapp()


if __name__ == "__main__":
    main()

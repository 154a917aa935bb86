"""Certificates and keys, made by the deployment's own script."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

DEPLOYMENT = Path(__file__).resolve().parents[2] / "examples" / "deployment"

_spec = importlib.util.spec_from_file_location("deployment_prepare", DEPLOYMENT / "prepare.py")
assert _spec is not None
assert _spec.loader is not None
_prepare = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_prepare)


@dataclass(frozen=True)
class Certificates:
    """Files in PEM: the authority's certificate, the server's certificate and its key."""

    authority: Path
    certificate: Path
    key: Path


def prepared(*words: str) -> int:
    """Run the script; return its exit code, or raise what it raises."""
    done = CliRunner().invoke(_prepare.app, list(words))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code


def make_site(folder: Path, data_id: str, policy: str) -> None:
    """Write a site's folder, with the text of a policy."""
    _prepare.make_site(folder, data_id, policy)


def make_certificates(folder: Path) -> Certificates:
    """Write an authority, and a certificate of its for ``localhost`` and 127.0.0.1."""
    _prepare.certificates(folder, ["localhost", "127.0.0.1"])
    return Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")


def make_node_key(folder: Path) -> tuple[Path, Path]:
    """Write a SuperNode's key pair; return the paths of the private and the public key."""
    _prepare.node_key(folder)
    return folder / "node-key", folder / "node-key.pub"

"""Make the files of a federation: certificates for the SuperLink, and a folder for each site.

    python prepare.py certificates superlink superlink.example.org 192.0.2.10
    python prepare.py site /var/lib/flower-ldp/ward-7 --data-id ward-7 --epsilon 5 --examples 1200

Nothing that exists is overwritten: a site's ledger remembers what was spent.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.cli.output import reporting
from flower_ldp.policy.files import FORMAT

_AUTHORITY_DAYS, _SERVER_DAYS = 3_650, 397

# Local variables of a traceback would show keys.
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_show_locals=False,
)


@app.command()
@reporting(as_json=False)
def certificates(
    folder: Annotated[Path, typer.Argument(help="Where the files go.")],
    names: Annotated[list[str], typer.Argument(help="Names and addresses of the SuperLink.")],
) -> None:
    """Make an authority if there is none, and a certificate for the SuperLink.

    Writes ca.crt (for every node and user), ca.key (keep it offline), server.pem, server.key.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ca, ca_key = _authority(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    builder = _certificate(names[0], ca.subject, key.public_key(), _SERVER_DAYS)
    server = (
        builder.add_extension(
            x509.SubjectAlternativeName([_name(one) for one in names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()),
            critical=False,
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write(folder / "server.pem", server.public_bytes(Encoding.PEM), 0o644)
    _write(folder / "server.key", _pem(key, PrivateFormat.PKCS8), 0o600)
    typer.echo(f"wrote certificates for {', '.join(names)} to {folder}")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@reporting(as_json=False)
def site(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="The site's folder; it must not exist.")],
    data_id: Annotated[str, typer.Option(help="The site's name for its data, for ever.")],
    policy: Annotated[Path | None, typer.Option(help="A policy to start from instead.")] = None,
    with_key: Annotated[
        bool, typer.Option("--node-key/--no-node-key", help="Whether a SuperNode runs here.")
    ] = True,
) -> None:
    """Make a site's folder: a node key, a policy and an empty ledger.

    All other options are those of "flower-ldp policy sample", by default --for dpsgd: few sites,
    each with many people's rows.
    """
    if policy is None:
        command = (sys.executable, "-m", "flower_ldp", "policy", "sample", "--for", "dpsgd")
        done = subprocess.run([*command, *context.args], stdout=subprocess.PIPE, check=False)
        if done.returncode:
            raise typer.Exit(done.returncode)
        text = done.stdout.decode()
    elif context.args:
        raise typer.BadParameter(f"--policy has its own lines, so {context.args[0]} has no place")
    else:
        text = policy.read_text(encoding="utf-8")
    make_site(folder, data_id, text, with_key=with_key)
    keys = "node-key, node-key.pub, " if with_key else ""
    typer.echo(f"wrote {keys}policy.yaml and an empty ledger to {folder}")
    typer.echo("read policy.yaml now: it decides how much this site may ever release")


def make_site(folder: Path, data_id: str, policy: str, *, with_key: bool = True) -> None:
    """Make a site's folder, with a policy's text."""
    if policy.count("data_id: CHANGE-ME") != 1:
        raise typer.BadParameter("the policy does not hold 'data_id: CHANGE-ME' once")
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists, and its ledger may count: name a new folder")
    # As JSON, which YAML reads as text, whatever it is.
    name = f"data_id: {json.dumps(data_id, ensure_ascii=False)}"
    text = policy.replace("data_id: CHANGE-ME", name)
    context = {"folder": folder.absolute()}
    ledger = FORMAT.parse(text, source="the site's policy", context=context).ledger
    folder.mkdir(mode=0o700, parents=True)
    if with_key:
        node_key(folder)
    _write(folder / "policy.yaml", text.encode(), 0o640)
    Ledger.open(ledger, create=True).close()


def node_key(folder: Path) -> None:
    """Write a SuperNode's key pair, as ``ssh-keygen -t ecdsa -b 384`` does."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write(folder / "node-key", _pem(key, PrivateFormat.OpenSSH), 0o600)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _write(folder / "node-key.pub", public, 0o644)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority in a folder; make it if there is none."""
    if (folder / "ca.crt").exists():
        key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise typer.BadParameter(f"{folder / 'ca.key'} is no elliptic curve key")
        return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key
    key = ec.generate_private_key(ec.SECP384R1())
    name = "flower federation authority"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    authority = (
        _certificate(name, subject, key.public_key(), _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.crt", authority.public_bytes(Encoding.PEM), 0o644)
    _write(folder / "ca.key", _pem(key, PrivateFormat.PKCS8), 0o600)
    return authority, key


def _certificate(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file that does not exist, with its mode from the first moment on."""
    path.touch(mode=mode, exist_ok=False)
    path.chmod(mode)
    path.write_bytes(content)


if __name__ == "__main__":
    app()

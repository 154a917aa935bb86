"""``flower-ldp analyzer``: the third party that opens shuffled reports and answers with sums."""

import logging
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from flower_ldp.cli.output import File, Report, command, group
from flower_ldp.clients.keys import own_key
from flower_ldp.errors import needed
from flower_ldp.parameter_bounds import Bounded
from flower_ldp.safe_files import make_whole
from flower_ldp.shuffle.analyzer import ReportAnalyzer
from flower_ldp.shuffle.batch import AnalyzerError
from flower_ldp.shuffle.sealing import signer_of

_KEYGEN = "flower-ldp analyzer keygen analyzer.key"
_SERVE = (
    "flower-ldp analyzer serve --key analyzer.key --minimum 2000 --tls-key server.key "
    "--tls-certificate server.pem"
)
app = group(_KEYGEN, _SERVE)
_TOKEN = re.compile(r"[0-9a-f]{64}")


@command(app, "keygen", _KEYGEN)
def keygen(report: Report, file: File) -> None:
    """Make an analyzer's signing key, and the token by which the server is known to it.

    Prints the public key. Owners name it in their policies, and the server in its strategy. The
    token is in FILE.token; bring a copy to the server's machine alone.

    Parameters
    ----------
    file
        Where the private key goes.
    """
    token = _token_of(file)
    if os.path.lexists(file) or os.path.lexists(token):
        report.problem(f"{file} or {token} exists: a key is not replaced, remove or rename it")
        return
    signer = signer_of(own_key(file))
    make_whole(token, f"{os.urandom(32).hex()}\n".encode("ascii"))
    report.line(signer, key=signer, token_file=str(token))


@command(app, "serve", _SERVE)
def serve(
    report: Report,
    key: Annotated[Path, typer.Option()],
    minimum: Annotated[int, Bounded("[1, 4294967296]")],
    tls_key: Annotated[Path, typer.Option()],
    tls_certificate: Annotated[Path, typer.Option()],
    host: str = "127.0.0.1",
    port: Annotated[int, Bounded("[0, 65535]")] = 9443,
    delta: Annotated[float, Bounded("(0, 1)")] = 1e-6,
    days: Annotated[float, Bounded("(0, 3650]")] = 1.0,
) -> None:
    """Answer one server's batches with sums, over HTTPS, until it is ended.

    Parameters
    ----------
    key
        The private signing key. Its token is in FILE.token.
    minimum
        The fewest reports of a round that are answered for.
    tls_key
        Private key of the certificate, PEM.
    tls_certificate
        Certificate of this host, PEM.
    host
        Address to listen at.
    port
        Its port; 0 takes a free one.
    delta
        Of the central epsilon that is stated.
    days
        After which a round's key and answer are erased.
    """
    with needed("the analyzer's service needs uvicorn", "shuffle"):
        import uvicorn

        from flower_ldp.shuffle.service import application
    if not os.path.lexists(key):  # own_key would make one
        report.problem(f"{key} does not exist: {_KEYGEN}")
        return
    token = _token_of(key).read_text(encoding="ascii").strip()
    if not _TOKEN.fullmatch(token):
        raise AnalyzerError(f"{_token_of(key)} holds no token: make a key anew, by {_KEYGEN}")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    analyzer = ReportAnalyzer(minimum, signing=own_key(key), delta=delta, days=days)
    config = uvicorn.Config(
        application(analyzer, token),
        host=host,
        port=port,
        ssl_keyfile=tls_key,
        ssl_certfile=tls_certificate,
        access_log=False,
        server_header=False,
        lifespan="on",
    )
    report.line(f"analyzer {analyzer.signer}, minimum {minimum:,}", key=analyzer.signer)
    uvicorn.Server(config).run()


def _token_of(key: Path) -> Path:
    return key.with_name(f"{key.name}.token")

"""An analyzer on another machine, as the server's strategy uses it: HTTPS, a token, retries.

A batch is sent again if no answer came: the analyzer has stored the answer, or has seen nothing.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from flower_ldp.errors import cut, error_text, one_line, quoted
from flower_ldp.parameter_bounds import Bounded, Checked
from flower_ldp.shuffle.batch import (
    AnalyzerError,
    AnalyzerRefusal,
    Batch,
    ReportSums,
    SealedProposal,
)
from flower_ldp.shuffle.sealing import SIGNER, RoundKey

#: An analyzer's address.
ADDRESS = r"https://[^\s/?#@]+/?"
#: Seconds before each further attempt.
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
#: Of an answer: the sum of the largest updates, and its line of JSON.
_MOST_ANSWER = (1 << 27) + (1 << 16)
_OK, _REFUSED, _MOST_TOLD = 200, 409, 1_000


@dataclass(frozen=True)
class Analyzer(Checked):
    """The analyzer at an address, for a strategy.

    Parameters
    ----------
    url : str
        As ``"https://analyzer.example.org:9443"``.
    key : str
        The signing key that owners name, as ``"ed25519:..."``: runs of another key are refused.
    token : path-like
        File with the token that ``flower-ldp analyzer keygen`` wrote.
    certificates : path-like, optional
        PEM file of the authority of its certificate; by default the system's.
    timeout : float
        Seconds to wait for one answer.

    Raises
    ------
    ValueError
        If the address is not of HTTPS, or the key is none.
    """

    url: str
    key: str
    token: str | Path = field(repr=False)
    certificates: str | Path | None = None
    timeout: Annotated[float, Bounded("(0, 3600]")] = 120.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not re.fullmatch(ADDRESS, self.url):
            wanted = "https://HOST:PORT without a path"
            raise ValueError(f"url must be {wanted}, got {quoted(self.url)}")
        if not re.fullmatch(SIGNER, self.key):
            wanted = "'ed25519:' and 64 hexadecimal digits, as flower-ldp analyzer keygen prints"
            raise ValueError(f"key must be {wanted}, got {quoted(self.key)}")

    def new_key(self, run_id: int) -> RoundKey:
        """Return a round's new key; AnalyzerError unless this analyzer signed it for this run."""
        try:
            found = RoundKey.from_bytes(self._ask(f"/runs/{run_id}/keys"))
            found.verify(self.key)
            if found.run_id != run_id:
                raise ValueError(f"it is of run {found.run_id}, not of {run_id}")
        except ValueError as error:
            raise AnalyzerError(f"{self.url} sent no key of run {run_id}: {error}") from error
        return found

    def sums(self, batch: Batch) -> ReportSums:
        """Return the sums of a round; AnalyzerRefusal, or AnalyzerError if no answer came."""
        entries = SealedProposal.parse(batch.proposal).entries
        return ReportSums.from_bytes(self._ask("/sums", batch.to_bytes()), entries)

    def _ask(self, path: str, body: bytes = b"") -> bytes:
        for pause in (*_PAUSES, None):
            try:
                status, answer = self._once(path, body)
            except (OSError, http.client.HTTPException) as error:
                told = f"the analyzer {self.url} does not answer: {error_text(error)}"
                if pause is None or isinstance(error, ssl.SSLCertVerificationError):
                    raise AnalyzerError(told) from error
                time.sleep(pause)
                continue
            break
        if status == _OK:
            return answer
        if status == _REFUSED:
            try:
                told = json.loads(answer)
                code, detail = str(told["code"]), one_line(str(told["detail"]), _MOST_TOLD)
            except (KeyError, TypeError, ValueError):
                code, detail = "", "no reason given"
            raise AnalyzerRefusal(code, detail)
        text = one_line(cut(answer.decode("utf-8", "replace"), _MOST_TOLD), _MOST_TOLD)
        raise AnalyzerError(f"the analyzer {self.url} answers {status}: {text}")

    def _once(self, path: str, body: bytes) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        context = ssl.create_default_context(cafile=self.certificates)
        token = Path(self.token).read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}"}
        link = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=self.timeout, context=context
        )
        try:
            link.request("POST", path, body, headers)
            answer = link.getresponse()
            content = answer.read(_MOST_ANSWER + 1)
            if len(content) > _MOST_ANSWER:
                raise AnalyzerError(f"the analyzer {self.url} answers without end")
            return answer.status, content
        finally:
            link.close()

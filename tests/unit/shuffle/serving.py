"""An analyzer's service in a process of its own, which can be killed and started again."""

from __future__ import annotations

import http.client
import signal
import socket
import ssl
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from flower_ldp.shuffle import Analyzer
from tests.network.processes import free_port
from tests.unit.shuffle.certificates import make_certificate

FEW = 20


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "flower_ldp", "analyzer", *words]


class Service:
    """A process that serves, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key, self.token = folder / "analyzer.key", folder / "analyzer.key.token"
        made = subprocess.run(
            command("keygen", str(self.key)), check=True, capture_output=True, text=True
        )
        self.signer = made.stdout.strip()
        self.tls_key, self.certificate = make_certificate(folder)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, words: list[str]) -> None:
        log = (self.folder / "log").open("ab")
        with log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log)

    def start(self) -> None:
        words = ["serve", "--key", str(self.key), "--minimum", str(FEW), "--port", str(self.port)]
        words += ["--tls-key", str(self.tls_key), "--tls-certificate", str(self.certificate)]
        self.begin(command(*words))
        end = time.monotonic() + 120.0
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with socket.socket() as link:
                if link.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("the service does not listen")

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(30)
            self.process = None

    def analyzer(self) -> Analyzer:
        url = f"https://127.0.0.1:{self.port}"
        return Analyzer(url, self.signer, token=self.token, certificates=self.certificate)

    def ask(self, method: str, path: str, body: bytes = b"", token: str = "") -> tuple[int, bytes]:
        context = ssl.create_default_context(cafile=self.certificate)
        link = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        with closing(link):
            link.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
            answer = link.getresponse()
            return answer.status, answer.read()

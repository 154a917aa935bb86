"""The encoder in JavaScript makes the same bytes: one run of Node over all vectors."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "javascript"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="Node is not installed: the encoder in JavaScript")
def test_all_vectors_agree() -> None:
    command = [str(NODE), str(FOLDER / "check.mjs")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    agreeing = re.fullmatch(r"(\d+) agree, 0 differ\n", found.stdout)
    assert agreeing
    assert int(agreeing[1]) > 250


def test_the_encoder_is_one_file_without_a_network() -> None:
    source = (FOLDER / "codeword.mjs").read_text(encoding="utf-8")
    code = re.sub(r"(?s)/\*\*.*?\*/", "", source)
    reaching = r"\b(import|require|fetch|XMLHttpRequest|WebSocket|process|Math\.random)\b"
    assert re.findall(reaching, code) == []

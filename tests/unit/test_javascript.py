"""The encoders in JavaScript make the same bytes: one run of Node over all vectors."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "javascript"
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="Node is not installed: the encoders in JavaScript")
def test_all_vectors_agree() -> None:
    command = [str(NODE), str(FOLDER / "check.mjs")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    agreeing = re.fullmatch(r"(\d+) agree, 0 differ\n", found.stdout)
    assert agreeing
    assert int(agreeing[1]) > 1_000


@pytest.mark.parametrize("name", ["codeword", "exact", "laplace", "signds"])
def test_an_encoder_reaches_nothing_but_the_draws_beside_it(name: str) -> None:
    source = (FOLDER / f"{name}.mjs").read_text(encoding="utf-8")
    code = re.sub(r"(?s)/\*\*.*?\*/", "", source)
    code = re.sub(r'(?s)import \{[^}]*\} from "\./exact\.mjs";', "", code)
    reaching = r"\b(import|require|fetch|XMLHttpRequest|WebSocket|process|Math\.random)\b"
    assert re.findall(reaching, code) == []

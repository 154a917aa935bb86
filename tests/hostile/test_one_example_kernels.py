"""The attacks by last bits, with the kernels that MKL has for older processors.

On some processors MKL rounds a row alike in each place, and the attacks find nothing to try. It
chooses its kernels when it is loaded, so these run in a process of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch

ROOT = Path(__file__).resolve().parents[2]
TESTS = [
    "tests/hostile/test_one_example_attacks.py",
    # With noise it tells less than the sums without it, which are compared here.
    "--deselect=tests/hostile/test_one_example_attacks.py::"
    "test_the_model_does_not_tell_that_a_patient_lost_its_group",
    "tests/long/test_audit_path_verdicts.py::"
    "test_private_training_that_stacks_rows_is_refuted_by_last_bits",
]


def test_the_attacks_find_nothing_with_kernels_of_older_processors() -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("torch has no MKL here")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *TESTS],
        cwd=ROOT,
        env={**os.environ, "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stdout[-4000:]
    if "skipped" in done.stdout:
        pytest.skip(f"some found no row that is rounded by its place: {done.stdout[-1000:]}")

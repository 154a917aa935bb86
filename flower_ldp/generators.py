"""The generators that apps draw from: fresh entropy for each row, and put back afterwards.

A row that fails, or draws more than before, thus moves nothing that other rows draw.
"""

import os
import random
import sys
from typing import Any

import numpy as np

_ENTROPY_BYTES = 16
#: What ``np.random.seed`` and the functions beside it are of.
_numpy = np.random.mtrand._rand


class Generators:
    """State of Python's, numpy's and, if it is loaded, torch's generator."""

    def __init__(self) -> None:
        self._torch: Any = sys.modules.get("torch")
        of_torch = None if self._torch is None else self._torch.get_rng_state()
        self._found = random.getstate(), _numpy.get_state(), of_torch

    def restore(self) -> None:
        """Put them back as they were when this was made."""
        of_python, of_numpy, of_torch = self._found
        random.setstate(of_python)
        _numpy.set_state(of_numpy)
        if of_torch is not None:
            self._torch.set_rng_state(of_torch)

    def renew(self, entropy: bytes | None = None) -> None:
        """Seed them anew, by default with entropy of the operating system."""
        seed = os.urandom(_ENTROPY_BYTES) if entropy is None else entropy
        random.seed(seed)
        _numpy.seed(np.frombuffer(seed, np.uint32))
        if self._torch is not None:
            self._torch.default_generator.manual_seed(int.from_bytes(seed[:8], "little"))

"""Scikit-learn's breast cancer data: five sites of 91 patients, and 114 held-out patients."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

SITES = 5
#: Of the thirty columns, those that are trained on: the ten largest values. The means and standard
#: errors before them say little more, and each column has a centre and a weight to learn.
COLUMNS = 10
_TRAINING = 455
# The power of ten that a column's values stay below, in the data's own units. Public constants.
_POWERS = [2, 2, 3, 4, 0, 1, 1, 0, 0, 0]
# Rows are stretched to several times the clipping length: what is not yet learned counts alike.
_DECADES, _MIDDLE, _STRETCH = 3.0, 0.75, 9.0


class Ward(NamedTuple):
    """Rows of patients: all columns (n, 30), what was found (n,), and who each is."""

    columns: NDArray[np.float64]
    malignant: NDArray[np.int64]
    patients: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.patients)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one row, scaled by itself: private training reads rows one by one."""
        scaled = torch.from_numpy(scale(self.columns[row]))
        return scaled, torch.tensor(float(self.malignant[row]))

    def part(self, rows: NDArray[np.int64]) -> Ward:
        """Return some of the rows."""
        return Ward(*(one[rows] for one in self))


def scale(columns: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return decades of the last columns below their public powers of ten, about their middle.

    Nothing is fitted. A ``StandardScaler`` that is fitted to the patients' rows would leak: no
    noise covers what it says.
    """
    share = np.clip(columns[..., -COLUMNS:] / 10.0 ** np.array(_POWERS), 10.0**-_DECADES, 1.0)
    return (_STRETCH * (np.log10(share) + _MIDDLE)).astype(np.float32)


@lru_cache(maxsize=2)
def load(evaluate_on: str, seed: int) -> tuple[tuple[Ward, ...], Ward]:
    """Return the sites' patients, and the held-out ones.

    Parameters
    ----------
    evaluate_on : {"test", "validation"}
        Whether the held-out ones are the test set, the same for all seeds, or a tenth of the
        training patients, which no site has then.
    seed : int
        Of the split among sites.
    """
    found = load_breast_cancer()
    malignant = 1 - found.target.astype(np.int64)
    everyone = Ward(found.data, malignant, np.arange(len(malignant)))
    kept, test = train_test_split(
        everyone.patients, train_size=_TRAINING, stratify=malignant, random_state=0
    )
    kept = np.random.default_rng(seed).permutation(kept)
    if evaluate_on == "validation":
        test, kept = np.split(kept, [_TRAINING // 10])
    elif evaluate_on != "test":
        raise ValueError(f"evaluate-on must be 'test' or 'validation', got {evaluate_on!r}")
    sites = tuple(everyone.part(rows) for rows in np.array_split(kept, SITES))
    return sites, everyone.part(test)

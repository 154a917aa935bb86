"""The model and the data: scikit-learn's breast cancer, one share a site."""

from functools import lru_cache

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

Row = tuple[Tensor, Tensor]
#: Typical values of the features, from textbooks: means, errors and worst values of ten. A scaler
#: fitted on patients would be a release about them.
TYPICAL = (
    *(14, 19, 92, 655, 0.1, 0.1, 0.09, 0.05, 0.2, 0.06),
    *(0.4, 1.2, 2.9, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004),
    *(16, 26, 107, 881, 0.13, 0.25, 0.27, 0.11, 0.29, 0.08),
)


@lru_cache(maxsize=1)
def load_data() -> tuple[list[Row], list[Row]]:
    """Return training rows and test rows: features and a label."""
    features, labels = load_breast_cancer(return_X_y=True)
    scaled = torch.tensor(features, dtype=torch.float32) / torch.tensor(TYPICAL) - 1.0
    rows = list(zip(scaled, torch.tensor(labels), strict=True))
    train, test = train_test_split(rows, test_size=0.2, stratify=labels, random_state=0)
    return train, test


def stacked(rows: list[Row]) -> Row:
    """Return rows as one batch."""
    features, labels = zip(*rows, strict=True)
    return torch.stack(features), torch.stack(labels)


def make_model() -> nn.Module:
    """Return the model, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))


def share(site: int, sites: int) -> list[Row]:
    """Return one site's rows."""
    return load_data()[0][site::sites]


def fit(model: nn.Module, rows: list[Row]) -> None:
    """Train a model for five epochs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for batch in torch.randperm(len(rows)).split(16):
            features, labels = stacked([rows[i] for i in batch])
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()


def accuracy(model: nn.Module) -> float:
    """Return the share of test rows that are predicted right."""
    features, labels = stacked(load_data()[1])
    with torch.no_grad():
        return float((model(features).argmax(dim=1) == labels).float().mean())

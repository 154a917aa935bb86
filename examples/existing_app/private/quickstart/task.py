"""The model and the data: scikit-learn's digits, one share a client."""

from functools import lru_cache

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

Array = NDArray[np.float64]


@lru_cache(maxsize=1)
def load_data() -> list[Array]:
    """Return training images, test images, training labels and test labels."""
    images, labels = load_digits(return_X_y=True)
    parts: list[Array] = train_test_split(
        images / 16, labels, test_size=0.2, stratify=labels, random_state=0
    )
    return parts


def initial_weights() -> ArrayRecord:
    """Return a model that knows nothing."""
    return ArrayRecord([np.zeros((10, 64)), np.zeros(10)])


def make_model(arrays: ArrayRecord) -> SGDClassifier:
    """Return a classifier with the given weights."""
    model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1, alpha=1e-4)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = arrays.to_numpy_ndarrays()
    return model


def share(client: int, clients: int) -> tuple[Array, Array]:
    """Return one client's images and labels."""
    images, _, labels, _ = load_data()
    return images[client::clients], labels[client::clients]


def fit(arrays: ArrayRecord, images: Array, labels: Array) -> ArrayRecord:
    """Return the weights after training on some images."""
    model = make_model(arrays)
    for _ in range(5):
        model.partial_fit(images, labels, classes=np.arange(10))
    return ArrayRecord([model.coef_, model.intercept_])


def accuracy(arrays: ArrayRecord) -> float:
    """Return the accuracy on the test images."""
    _, images, _, labels = load_data()
    return float(make_model(arrays).score(images, labels))

"""Write the data sets of :mod:`local_data`: MNIST, scikit-learn's breast cancer, WikiText-2.

    python benchmarks/flower_apps/prepare.py MNIST.npz WIKITEXT_FOLDER OUTPUT

Run in the environment of the apps. The training rows stand in one fixed order.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Image, Value
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split

#: Typical values of the features, from textbooks: means, errors and worst values of ten. A scaler
#: fitted on patients would be a release about them.
TYPICAL = (
    *(14, 19, 92, 655, 0.1, 0.1, 0.09, 0.05, 0.2, 0.06),
    *(0.4, 1.2, 2.9, 40, 0.007, 0.025, 0.03, 0.012, 0.02, 0.004),
    *(16, 26, 107, 881, 0.13, 0.25, 0.27, 0.11, 0.29, 0.08),
)
ARTICLES = {"the", "a", "an"}
PREPOSITIONS = {"of", "in", "to", "on", "for", "with", "at", "by", "from"}
#: Words to each side of the hidden word, and how many words of the public part have a number.
AROUND, VOCABULARY = 7, 1_500


#: Images to train on, at most: the apps read them one by one.
IMAGES = 30_000


def images(arrays: Any, part: str, colours: bool) -> Dataset:
    """Return MNIST's first images; in colours of CIFAR-10's shape: 3 channels of 32 x 32."""
    pixels, labels = arrays[f"x_{part}"][:IMAGES], arrays[f"y_{part}"][:IMAGES].tolist()
    name = "img" if colours else "image"
    if colours:
        pixels = np.repeat(np.pad(pixels, [(0, 0), (2, 2), (2, 2)])[..., None], 3, axis=-1)
    features = Features({name: Image(), "label": Value("int64")})
    return Dataset.from_dict({name: list(pixels), "label": labels}, features=features)


def waves(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return 27 low frequencies of each image, weighted as in docs/asked_once.md, at length 1."""
    n = np.arange(28)
    basis = np.cos(np.pi * (n + 0.5) * n[:, None] / 28)
    total = n[:, None] + n
    low = (total > 0) & (total < 7)
    found = np.einsum("ij,njk,lk->nil", basis, pixels / 255.0, basis)[:, low]
    found *= np.sqrt(1 + 2.0 * total[low] ** 2)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))


def wave_table(arrays: Any, part: str) -> Dataset:
    """Return the low frequencies of MNIST as columns, and the digit as ``species``."""
    found = waves(arrays[f"x_{part}"])
    columns: dict[str, Any] = {f"wave_{i}": column for i, column in enumerate(found.T)}
    return Dataset.from_dict({**columns, "species": arrays[f"y_{part}"].tolist()})


def patients() -> tuple[Dataset, Dataset]:
    """Return scikit-learn's breast cancer: features on a public scale, and ``income`` 1 or 0."""
    features, labels = load_breast_cancer(return_X_y=True)
    scaled = (features / np.array(TYPICAL) - 1.0).astype(np.float32)
    parts = train_test_split(scaled, labels, test_size=0.2, stratify=labels, random_state=0)
    train, test, train_labels, test_labels = parts
    return _table(train, train_labels), _table(test, test_labels)


def _table(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Dataset:
    columns: dict[str, Any] = {f"feature_{i}": column for i, column in enumerate(features.T)}
    return Dataset.from_dict({**columns, "income": labels.tolist()})


def cloze(folder: Path) -> tuple[Dataset, Dataset, list[str]]:
    """Return windows of WikiText-2 in which the middle word is hidden, and a public vocabulary.

    The label is 1 if the hidden word is an article and 0 if it is a preposition. The last fifth of
    the text is the test part, and the vocabulary has its most frequent words.
    """
    names = ("wikitext2-valid.txt", "wikitext2-test.txt")
    text = " ".join((folder / name).read_text() for name in names).lower()
    words = text.replace("<unk>", "[UNK]").replace("@-@", "-").split()
    cut = 4 * len(words) // 5
    frequent = Counter(words[cut:]).most_common(VOCABULARY)
    common = [word for word, _ in frequent if word != "[UNK]"]
    return _windows(words[:cut], 40_000), _windows(words[cut:], 10_000), common


def _windows(words: list[str], most: int) -> Dataset:
    rng = random.Random(0)
    found: tuple[list[str], list[str]] = ([], [])
    for i in range(AROUND, len(words) - AROUND):
        if words[i] in ARTICLES | PREPOSITIONS:
            before, after = words[i - AROUND : i], words[i + 1 : i + 1 + AROUND]
            found[words[i] in ARTICLES].append(" ".join([*before, "[MASK]", *after]))
    each = min(most // 2, *map(len, found))
    rows = [(text, label) for label in (0, 1) for text in rng.sample(found[label], each)]
    rng.shuffle(rows)
    texts, labels = zip(*rows, strict=True)
    return Dataset.from_dict({"text": list(texts), "label": list(labels)})


def main(mnist: Path, wikitext: Path, output: Path) -> None:
    """Write each data set's two parts."""
    with np.load(mnist) as arrays:
        for part in ("train", "test"):
            images(arrays, part, colours=True).save_to_disk(output / "mnist-rgb" / part)
            images(arrays, part, colours=False).save_to_disk(output / "mnist" / part)
            wave_table(arrays, part).save_to_disk(output / "mnist-waves" / part)
    *texts, common = cloze(wikitext)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    for part, rows, text in zip(("train", "test"), patients(), texts, strict=True):
        rows.save_to_disk(output / "breast-cancer" / part)
        text.save_to_disk(output / "cloze" / part)
    (output / "vocabulary.txt").write_text("\n".join([*special, *common]) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

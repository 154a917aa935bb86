"""Proposals, by the tables of docs/wire.md: those that are accepted, and those that are refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

Fields = dict[str, Any]

HEALTH: Fields = {"health-epsilon": 0.5}
SIGNDS: Fields = {
    "version": 1,
    "mechanism": "signds",
    "epsilon": 8.0,
    "k": 0.1,
    "threshold-ratio": 0.6,
    "dim-out": 0,
}
MAGNITUDE: Fields = {"magnitude-epsilon": 1.0, "magnitude-threshold": 0.03125}
CODEWORD: Fields = {
    "version": 1,
    "mechanism": "codeword",
    "epsilon": 8.0,
    "favoured": 13,
    "rotations": 64,
    "seed": 2**63 - 1,
}
GAUSSIAN: Fields = {
    "version": 1,
    "mechanism": "gaussian",
    "epsilon": 8.0,
    "delta": 1e-5,
    "clip-norm": 1.0,
}
EXTENSION: Fields = {
    "version": 1,
    "mechanism": "my_mean2",
    "epsilon": 2.0,
    "delta": 0.0,
    "report-bytes": 3,
    "option.step": 0.0625,
}
ROWS: Fields = {
    "version": 1,
    "mechanism": "laplace",
    "epsilon": 4.0,
    "classes": 10,
    "rows": 2,
    "grid-bits": 20,
}
METRICS: Fields = {
    "metric-names": ["accuracy", "loss"],
    "metric-epsilons": [1.0, 0.5],
    "metric-lowers": [0.0, -1.0],
    "metric-uppers": [1.0, 4.0],
    "metric-grid-bits": [20, 16],
}
CODES: Fields = {
    "version": 1,
    "mechanism": "codebook",
    "epsilon": 1.0,
    "classes": 2,
    "rows": 3,
    "codebook": struct.pack("<6d", 1.0, 0.0, 0.5, 0.5, 0.0, 1.0),
}
EMBEDDING: Fields = {
    "version": 1,
    "mechanism": "embedding_dp",
    "epsilon": 5.0,
    "width": 12,
    "one-hot": False,
    "table": "train",
    "ids": "ab" * 32,
    "records": 5,
    "block-size": 2,
    "block": 2,
}
PART: Fields = {
    "trainable": ["head.weight", "head.bias"],
    "subspace-dimension": 5,
    "subspace-seed": 7,
}
#: Of private training, in the configuration that a strategy of Flower's sends along.
PLAN: Fields = {
    "ldp-rounds": 10,
    "ldp-steps": 20,
    "ldp-rate": 0.05,
    "ldp-noise": 1.1,
    "ldp-clip": 1.0,
    "ldp-epsilon": 3.0,
    "ldp-delta": 1e-5,
}


def leaving(out: str, fields: Fields) -> Fields:
    return {name: value for name, value in fields.items() if name != out}


#: By message: a name, and the fields of a proposal that is accepted.
ACCEPTED: Mapping[str, Mapping[str, Fields]] = {
    "signds": {
        "plain": SIGNDS,
        "h is stated": SIGNDS | {"dim-out": 238},
        "with a magnitude bit": SIGNDS | MAGNITUDE,
        "with both bits": SIGNDS | MAGNITUDE | HEALTH,
        "about a part": SIGNDS | PART,
    },
    "codeword": {
        "plain": CODEWORD,
        "least numbers": CODEWORD | {"epsilon": 1e-12, "favoured": 1, "rotations": 1, "seed": 0},
        "largest numbers": CODEWORD | {"epsilon": 100.0, "favoured": 2**24, "rotations": 4096},
        "with blocks": CODEWORD | {"blocks": 10},
        "with a health bit": CODEWORD | HEALTH,
        "of named arrays": CODEWORD | {"trainable": PART["trainable"]},
        "in a subspace": CODEWORD | {"subspace-dimension": 5, "subspace-seed": 7},
    },
    "gaussian": {"plain": GAUSSIAN, "with a health bit": GAUSSIAN | HEALTH},
    "extension": {
        "plain": EXTENSION,
        "with a delta, about a part": EXTENSION | PART | {"delta": 1e-5},
        "a name of 64, no option": leaving("option.step", EXTENSION | {"mechanism": "z" * 64}),
        "16 options": EXTENSION | {f"option.o{n}": -float(n) for n in range(15)},
        "with a health bit": EXTENSION | HEALTH,
    },
    "evaluation": {
        "rows": ROWS,
        "rows and metrics": ROWS | METRICS,
        "the largest rate": ROWS | {"grid-bits": 0, "epsilon": 64.0},
        "the least rate": ROWS | {"grid-bits": 40, "epsilon": 0.0078125},
        "the most entries": ROWS | {"classes": 2**20, "rows": 64},
        "codes": CODES,
        "codes, metrics and a health bit": CODES | METRICS | HEALTH,
    },
    "embedding": {
        "bits": EMBEDDING,
        "fair bits": EMBEDDING | {"epsilon": 0.0},
        "one-hot": EMBEDDING | {"one-hot": True},
        "codes": EMBEDDING | {"mechanism": "codebook_embedding", "width": 300},
    },
    "training": {
        "plain": PLAN,
        "with a name": PLAN | {"ldp-plan": "second"},
        "with automatic clipping": leaving("ldp-clip", PLAN),
    },
}

#: No extension may have these names, or what is read as one of them.
TAKEN = ("signds", "unary", "laplace_2", "laplace2", "code_word")
NAN, INFINITY = float("nan"), float("inf")
#: By message: the fields, what of them is changed, and to what, one at a time.
CHANGES: Mapping[str, tuple[Fields, Fields]] = {
    "signds": (
        SIGNDS | MAGNITUDE,
        {
            "epsilon": [0.0, 100.5, NAN, 8, "8"],
            "k": [0.0, 0.2500001, 0],
            "threshold-ratio": [0.4999, 1.0001],
            "dim-out": [-1, 4097, 1.0, True],
            "magnitude-epsilon": [0.0, 101.0],
            "magnitude-threshold": [0.0, INFINITY],
        },
    ),
    "codeword": (
        CODEWORD | {"blocks": 2},
        {
            "epsilon": [0.0, 9e-13, 100.5, NAN, INFINITY, 8, True],
            "favoured": [0, -1, 2**24 + 1, 13.0],
            "rotations": [0, 4097, "64"],
            "seed": [-1, 1.0],
            "blocks": [0, 65_537, 2.0],
            "trainable": [[], ["head", "head"], "head"],
        },
    ),
    "gaussian": (
        GAUSSIAN,
        {
            "epsilon": [0.0009, 100.5, 8],
            "delta": [0.0, 0.51, 1],
            "clip-norm": [0.0, 1e31, INFINITY],
        },
    ),
    "extension": (
        EXTENSION,
        {
            "mechanism": [*TAKEN, "", "Mean", "2mean", "mean ", "z" * 65, 3],
            "epsilon": [0.0, -1.0, NAN, INFINITY, 2],
            "delta": [-0.1, 1.0, NAN, 0],
            "report-bytes": [0, -1, 3.0, True],
            "option.step": [NAN, INFINITY, 1, "1"],
        },
    ),
    "evaluation": (
        ROWS | METRICS,
        {
            "epsilon": [0.0, 1e7, 4],
            "classes": [1, 2**20 + 1, 10.0],
            "rows": [0, 2**20 + 1],
            "grid-bits": [-1, 41],
            "metric-names": [["loss", "loss"], ["loss"], [], ["a\nb", "c"]],
            "metric-uppers": [[0.0, 4.0], [1.0, NAN]],
        },
    ),
    "embedding": (
        EMBEDDING,
        {
            "epsilon": [-1.0, 100.5, 5],
            "width": [0, 2**20 + 1, 12.0],
            "one-hot": [0],
            "records": [5.0],
            "block": ["2"],
        },
    ),
    "training": (
        PLAN,
        {
            "ldp-rounds": [0, 1_000_001, 1.0],
            "ldp-steps": [0, 100_000_000],
            "ldp-rate": [0.0, 1.5, 1],
            "ldp-noise": [0.04, NAN],
            "ldp-clip": [0.0, INFINITY],
            "ldp-epsilon": [0.009, 30.5, 3],
            "ldp-delta": [0.0, 0.51],
            "ldp-plan": ["a" * 101, 1],
            "ldp-colour": ["red"],
        },
    ),
}
#: What is wrong in a proposal of any message.
ANY: Fields = {"version": [2, 0, True, 1.0], "mechanism": ["magrr", 3], "colour": ["red"]}
HEALTHS: Fields = {"health-epsilon": [0.0, 100.5, 1]}
SUBSPACES = (
    {"subspace-dimension": 5},
    {"subspace-seed": 7},
    {"subspace-dimension": 0, "subspace-seed": 7},
    {"subspace-dimension": 2**22 + 1, "subspace-seed": 7},
    {"subspace-dimension": 5, "subspace-seed": -1},
)
#: Of Laplace-protected rows: more than 2^26 entries, and rates just outside [2^-48, 32].
MANY: Fields = {"classes": 2**20, "rows": 65}
FAST: Fields = {"grid-bits": 0, "epsilon": 64.00000000000001}
SLOW: Fields = {"grid-bits": 40, "epsilon": 0.0078124999999999}
#: Fields that may be left out.
OPEN = {"blocks", "option.step", "ldp-clip"}


def typed(value: Any) -> dict[str, Any]:
    """Return a field's value with its type: numbers as text, which no reader of JSON rounds."""
    if isinstance(value, list):
        kind = type(value[0]).__name__ if value else "str"
        texts = [repr(entry) if kind == "float" else str(entry) for entry in value]
        return {f"list of {kind}": texts}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, bool):
        return {"bool": value}
    return {type(value).__name__: repr(value) if isinstance(value, float) else str(value)}


def record(fields: Fields) -> dict[str, Any]:
    return {name: typed(value) for name, value in fields.items()}


def refused(message: str) -> Iterator[tuple[str, Fields]]:
    """Yield what is wrong, and the fields."""
    fields, own = CHANGES[message]
    own = own if message == "training" else own | (ANY | own)
    own = own if message in ("embedding", "training") else own | HEALTHS
    for name, values in own.items():
        for value in values:
            yield f"{name}: {value!r}", fields | {name: value}
    for name in fields:
        if name not in OPEN:
            yield f"without {name}", leaving(name, fields)
    if message == "evaluation":
        for change in (MANY, FAST, SLOW):
            yield ", ".join(f"{name}: {value}" for name, value in change.items()), ROWS | change
    if message == "extension":
        yield "17 options", fields | {f"option.o{n}": 0.0 for n in range(16)}
    if message in ("signds", "codeword", "gaussian", "extension"):
        for change in SUBSPACES:
            told = ", ".join(f"{name}: {value}" for name, value in change.items())
            yield told, fields | change


def made() -> dict[str, Any]:
    return {
        "about": "Fields of ldp.proposal, with their types; those of training stand in config.",
        "accepted": [
            {"message": message, "name": name, "fields": record(fields)}
            for message, found in ACCEPTED.items()
            for name, fields in found.items()
        ],
        "refused": [
            {
                "message": message,
                "name": name,
                "fields": record(fields),
                "refusal": "ldp:refused:proposal",
            }
            for message in CHANGES
            for name, fields in refused(message)
        ],
    }

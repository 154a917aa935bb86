"""Proposals of all kinds: the same on both ends, or refused. The vectors have their fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flower_ldp.errors import WireError
from flower_ldp.mechanisms import Codeword, Gaussian, MagRR, SignDS, TrainingPlan, UnaryEncoding
from flower_ldp.mechanisms.signds_round import SignDSRound
from flower_ldp.privacy import PrivacyEvent, Unit
from flower_ldp.wire.embedding import EmbeddingProposal, TableTerms
from flower_ldp.wire.evaluation import EvalProposal
from flower_ldp.wire.layout import without_part
from flower_ldp.wire.proposal import UpdateProposal
from flower_ldp.wire.training_plan import plan_fields, read_plan
from tests.fixtures import parsed, reason_of, signds_proposal
from tests.unit.wire.test_eval_wire import CODEBOOK, LAPLACE

NAN, INF = math.nan, math.inf
PLAIN = signds_proposal(SignDS(epsilon=7.0, k=0.2))
WITH_BIT = signds_proposal(SignDS(7.0, 0.2, 0.7, 12), 1.0, 0.03125)
CODEWORD = UpdateProposal(Codeword(8.0, 5, 3, 2**63 - 1))
GAUSSIAN = UpdateProposal(Gaussian(8.0, 1e-6, 0.5))
TABLE = TableTerms("train", "ab" * 32, 100, 8)
EMBEDDING = EmbeddingProposal(UnaryEncoding(5.0, 128), TABLE, 3)
PLAN = TrainingPlan(20, 5, 0.05, 3.74, 1.0, 1e-5, clip=1.0)
PART = {"trainable": ["head.weight"], "subspace-dimension": 2, "subspace-seed": 5}

NO_CODEBOOKS = [np.zeros((300, 3)), np.full((2, 3), NAN), np.eye(1, 3)]

#: How each kind is read, and fields that are good.
KINDS: dict[str, tuple[Callable[[Any], object], dict[str, Any]]] = {
    "signds": (parsed, {**WITH_BIT.to_fields()}),
    "codeword": (parsed, {**CODEWORD.to_fields()}),
    "gaussian": (parsed, {**GAUSSIAN.to_fields()}),
    "laplace": (EvalProposal.from_fields, {**LAPLACE.to_fields()}),
    "codebook": (EvalProposal.from_fields, {**CODEBOOK.to_fields()}),
    "embedding": (EmbeddingProposal.from_fields, {**EMBEDDING.to_fields()}),
    "plan": (read_plan, plan_fields(PLAN)),
    "part": (without_part, PART),
}
#: By kind: a reason, a field, and values for which the proposal is refused.
REFUSED: dict[str, list[tuple[str, str, list[Any]]]] = {
    "signds": [
        ("version", "version", [2, "1", None, True, 1.0]),
        ("fields", "mechanism", ["laplace", 1]),
        ("fields", "extra", [1.0]),
        ("fields", "seed", [1]),
        ("fields", "epsilon", [7, "7.0", True, [7.0]]),
        ("fields", "k", [0]),
        ("fields", "threshold-ratio", [b"1"]),
        ("fields", "dim-out", [12.0, True]),
        ("fields", "magnitude-epsilon", [1]),
        ("fields", "magnitude-threshold", ["x"]),
        ("domain", "epsilon", [0.0, 100.5, NAN, INF]),
        ("domain", "k", [0.0, 0.3]),
        ("domain", "threshold-ratio", [0.4, NAN]),
        ("domain", "dim-out", [-1, 4097, 2**70]),
        ("domain", "magnitude-epsilon", [0.0, 101.0]),
        ("domain", "magnitude-threshold", [0.0, -1.0, NAN, INF]),
    ],
    "codeword": [
        ("version", "version", [2, True, 1.0]),
        ("fields", "mechanism", ["signds", 3]),
        ("fields", "code", ["hadamard"]),
        ("fields", "epsilon", [8, True]),
        ("fields", "favoured", [5.0, True]),
        ("fields", "rotations", ["3"]),
        ("fields", "seed", [[1]]),
        ("fields", "blocks", [2.0]),
        ("domain", "blocks", [0, 65_537]),
        ("domain", "epsilon", [0.0, 100.5, NAN]),
        ("domain", "favoured", [0, -1, 2**24 + 1]),
        ("domain", "rotations", [0, 4097]),
        ("domain", "seed", [-1, 2**63]),
    ],
    "gaussian": [
        ("version", "version", [2, True, 1.0]),
        ("fields", "mechanism", ["signds"]),
        ("fields", "sensitivity", [1.0]),
        ("fields", "epsilon", [8, True]),
        ("fields", "delta", ["1e-6"]),
        ("fields", "clip-norm", [[1.0]]),
        ("domain", "epsilon", [0.0, 200.0, NAN]),
        ("domain", "delta", [0.0, 1.0]),
        ("domain", "clip-norm", [INF, -1.0]),
    ],
    "laplace": [
        ("version", "version", [2, True, None]),
        ("fields", "mechanism", ["signds", 3, "codebook"]),
        ("fields", "extra", [1]),
        ("fields", "epsilon", [4, [4.0]]),
        ("fields", "classes", [True]),
        ("fields", "rows", [2.0]),
        ("fields", "metric-names", ["loss", ["loss"], ["loss", "loss"], [], ["loss", 1]]),
        ("fields", "metric-epsilons", [[1, 1]]),
        ("fields", "metric-lowers", [[0.0]]),
        ("domain", "metric-names", [["loss", ""], ["loss", "a\nb"]]),
        ("domain", "metric-uppers", [[-1.0, 1.0]]),
        ("domain", "metric-epsilons", [[NAN, 1.0]]),
        ("domain", "epsilon", [0.0, INF]),
        ("domain", "classes", [1]),
        ("domain", "rows", [0, 1 << 21]),
        ("domain", "grid-bits", [41]),
    ],
    "codebook": [
        ("fields", "codebook", [b"", bytes(24 * 300 - 1), "text"]),
        ("fields", "classes", [0]),
        ("domain", "codebook", [codes.tobytes() for codes in NO_CODEBOOKS]),
        ("domain", "epsilon", [101.0]),
    ],
    "embedding": [
        ("version", "version", [2, True, 1.0]),
        ("fields", "extra", [1]),
        ("fields", "epsilon", [5]),
        ("fields", "width", [128.0, True]),
        ("fields", "one-hot", [1]),
        ("fields", "block", ["3"]),
        ("fields", "table", [b"train"]),
        ("fields", "records", [1.0]),
        ("fields", "mechanism", ["laplace"]),
        ("domain", "epsilon", [-1.0, NAN, 101.0]),
        ("domain", "width", [0]),
    ],
    "plan": [
        ("fields", "ldp-rounds", [20.0, True]),
        ("fields", "ldp-rate", [1]),
        ("fields", "ldp-plan", [7]),
        ("fields", "ldp-round", [3]),
        ("fields", "ldp-clip", [None]),
        ("domain", "ldp-rounds", [0]),
        ("domain", "ldp-rate", [1.5]),
        ("domain", "ldp-noise", [NAN]),
        ("domain", "ldp-delta", [0.0]),
        ("domain", "ldp-epsilon", [99.0]),
        ("domain", "ldp-clip", [0.0]),
        ("domain", "ldp-plan", ["a\nb", "x" * 101]),
    ],
    "part": [
        ("fields", "subspace-dimension", [2.0, True, "2"]),
        ("fields", "subspace-seed", [[5]]),
        ("fields", "trainable", ["head.weight", [1]]),
        ("domain", "subspace-dimension", [0, -1, 2**22 + 1, 2**80]),
        ("domain", "subspace-seed", [-1, 2**63]),
        ("domain", "trainable", [[], ["a", "a"], ["é" * 10_000]]),  # six characters each in JSON
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_changed_fields_are_refused(kind: str) -> None:
    read, fields = KINDS[kind]
    for reason, name, values in REFUSED[kind]:
        for value in values:
            assert (name, value, reason_of(read, {**fields, name: value})) == (name, value, reason)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "part"])
def test_no_field_may_be_missing(kind: str) -> None:
    read, fields = KINDS[kind]
    for name in fields.keys() - {"ldp-clip"}:  # without it, clipping is automatic
        reason = reason_of(read, {n: value for n, value in fields.items() if n != name})
        assert reason == ("version" if name == "version" else "fields")


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("laplace", {"rows": 1 << 20, "classes": 65}, "domain"),
        ("embedding", {"mechanism": "codebook_embedding", "one-hot": True}, "fields"),
        ("embedding", {"mechanism": "codebook_embedding", "epsilon": 0.0}, "domain"),
    ],
)
def test_fields_that_do_not_go_together(kind: str, changes: dict[str, Any], reason: str) -> None:
    read, fields = KINDS[kind]
    assert reason_of(read, {**fields, **changes}) == reason


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "version: "),
        ({**PLAIN.to_fields(), "magnitude-epsilon": 1.0}, "not a signds proposal"),
        ({**PLAIN.to_fields(), "magnitude-threshold": 1.0}, "not a signds proposal"),
        (GAUSSIAN.to_fields(), "not a signds proposal"),
        (CODEWORD.to_fields(), "not a signds proposal"),
    ],
)
def test_what_is_no_signds_proposal(fields: dict[str, object], text: str) -> None:
    with pytest.raises(WireError, match=text):
        UpdateProposal.from_fields(fields, {"signds": SignDSRound.of_parameters})


EPSILONS = st.floats(0, 100, exclude_min=True)


@st.composite
def proposals(draw: st.DrawFn) -> UpdateProposal[SignDSRound]:
    """Draw any proposal of the whole domain."""
    k, ratio = draw(st.floats(0, 0.25, exclude_min=True)), draw(st.floats(0.5, 1))
    selection = SignDS(draw(EPSILONS), k, ratio, draw(st.integers(0, 4096)))
    if draw(st.booleans()):
        return signds_proposal(selection)
    threshold = draw(st.floats(0, exclude_min=True, allow_infinity=False))
    return signds_proposal(selection, draw(EPSILONS), threshold)


@given(proposals())
def test_round_trip_is_exact(proposal: UpdateProposal[SignDSRound]) -> None:
    fields = proposal.to_fields()
    assert parsed(fields) == proposal
    assert {type(value) for value in fields.values()} <= {int, float, str}


def test_integers_given_in_code_travel_as_floats() -> None:
    proposal = signds_proposal(SignDS(epsilon=100, k=0.2, threshold_ratio=1), 1, 2)
    fields = proposal.to_fields()
    assert [type(fields[name]) for name in ("epsilon", "threshold-ratio")] == [float, float]
    assert parsed(fields) == proposal


def test_cost_is_the_selection_and_the_bit_if_asked_for() -> None:
    selection = PrivacyEvent("signds", 7.0, unit=Unit.CLIENT)
    assert PLAIN.events() == (selection,)
    assert WITH_BIT.events() == (selection, PrivacyEvent("magrr", 1.0, unit=Unit.CLIENT))
    assert (PLAIN.mechanism.magnitude, WITH_BIT.mechanism.magnitude) == (None, MagRR(1.0))


@pytest.mark.parametrize(
    ("epsilon", "threshold", "text"),
    [(1.0, None, "go together"), (None, 1.0, "go together")]
    + [
        (1.0, value, r"magnitude_threshold must be in \(0, inf\), got")
        for value in (0.0, -1.0, INF)
    ]
    + [(value, 1.0, r"epsilon must be in \(0, 100\], got") for value in (0.0, 101.0, NAN)],
)
def test_a_question_about_the_magnitude_that_is_none(
    epsilon: float | None, threshold: float | None, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        signds_proposal(SignDS(7.0, 0.2), epsilon, threshold)

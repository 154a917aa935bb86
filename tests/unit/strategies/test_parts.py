"""A part of a model through the real gate: what leaves, what moves, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flower_ldp.clients import (
    CodewordRelease,
    GaussianRelease,
    LdpMod,
    Release,
    ReleaseRequest,
    SignDSRelease,
)
from flower_ldp.mechanisms import Codeword, Gaussian, RandomSource, SignDS, Subspace
from flower_ldp.mechanisms import hadamard as subspace_module
from flower_ldp.mechanisms.inputs import noted
from flower_ldp.mechanisms.signds_round import decode_report
from flower_ldp.refusals import REFUSED_PROPOSAL
from flower_ldp.strategies import (
    ClientPool,
    CodewordStrategy,
    FixedLength,
    FixedStep,
    GaussianStrategy,
    SignDSStrategy,
)
from flower_ldp.strategies.training import TrainingStrategy
from flower_ldp.wire.layout import ModelLayout, Part
from flower_ldp.wire.proposal import PROPOSAL_KEY, UpdateProposal
from tests.fixtures import UnrecordedPermit, context, message, record, signds_proposal
from tests.unit.strategies.rounds import ask, change, cosine, run

MODEL = {
    "trunk.weight": np.random.default_rng(0).normal(size=(7, 11)).astype(np.float32),
    "head.weight": np.zeros((10, 20), dtype=np.float32),
    "head.bias": np.zeros(100, dtype=np.float64),
    "count": np.array(3, dtype=np.int64),
    "trunk.scale": np.array(0.1, dtype=np.float16),
}
HEAD = ("head.weight", "head.bias")
FROZEN = ("trunk.weight", "count", "trunk.scale")
TARGET = {
    "head.weight": np.random.default_rng(1).normal(size=(10, 20)).astype(np.float32),
    "head.bias": np.random.default_rng(2).normal(size=100),
}
WITHIN = Subspace(220, seed=9)
Make = Callable[..., TrainingStrategy[Any]]


def step() -> FixedLength:
    return FixedLength(0.5, rounds=10, momentum=0.0)


ANEW: dict[str, Any] = {"answers_per_client": None}
KINDS: Mapping[str, tuple[Make, type[Any], int]] = {
    # The lengths are those of k = 220: 8 indices, 64 codes of 256 rows, and as many noisy entries.
    "signds": (
        lambda **part: SignDSStrategy(
            SignDS(8.0, 0.25, dim_out=8), FixedStep(0.1), server_optimizer=step(), **part
        ),
        SignDSRelease,
        9,
    ),
    "codeword": (
        lambda **part: CodewordStrategy(Codeword(8.0), step(), **(ANEW | part)),
        CodewordRelease,
        3,
    ),
    "gaussian": (
        lambda **part: GaussianStrategy(Gaussian(8.0, 1e-6, 9.0), server_optimizer=step(), **part),
        GaussianRelease,
        221,
    ),
}
EVERY_KIND = pytest.mark.parametrize(("make", "release", "length"), KINDS.values(), ids=KINDS)


class Asked:
    """An authorizer that allows all, and notes what it was asked."""

    def __init__(self) -> None:
        self.requests: list[ReleaseRequest] = []

    def authorize(self, request: ReleaseRequest, _: Context) -> UnrecordedPermit:
        self.requests.append(request)
        return UnrecordedPermit()

    def acknowledge(self, message_type: str, _: Context) -> UnrecordedPermit:
        raise AssertionError("nothing is acknowledged")


def moved(result: Any) -> np.ndarray:
    return change({name: result.arrays[name].numpy() for name in HEAD}, MODEL, *HEAD)


def opened(release: Release, fields: Mapping[str, Any], model: Mapping[str, Any] = MODEL) -> Any:
    content = RecordDict({"arrays": record(model), PROPOSAL_KEY: ConfigRecord({**fields})})
    return release.open(content)


@pytest.mark.usefixtures("simulation_policy")
@EVERY_KIND
def test_a_head_in_a_subspace_is_trained_and_the_trunk_stays(
    make: Make, release: type[Any], length: int
) -> None:
    """The app replies with the head alone; a report is as long as k says."""
    result = run(make(trainable="head.*", subspace=WITHIN), release(trainable=HEAD), MODEL, TARGET)
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["accepted"], metrics["bytes-up"]) == (4, length)
    for name in FROZEN:
        frozen = result.arrays[name].numpy()
        assert frozen.dtype == MODEL[name].dtype
        assert frozen.tobytes() == MODEL[name].tobytes()
    found = moved(result)
    assert 0.4 < np.linalg.norm(found) < 1.0  # steps of 0.5 and 0.45
    np.testing.assert_allclose(WITHIN.lift(WITHIN.project(found), 300), found, atol=1e-6)


@pytest.mark.usefixtures("simulation_policy")
@EVERY_KIND
def test_what_else_an_app_replies_never_leaves(make: Make, release: type[Any], length: int) -> None:
    """All arrays come back, with NaN in the trunk: reports are about the head, none neutral."""
    spoiled = np.full((7, 11), np.nan, dtype=np.float32)
    with noted() as notes:
        trained = {**MODEL, **TARGET, "trunk.weight": spoiled}
        result = run(make(trainable=HEAD), release(), MODEL, trained)
    assert notes == []
    assert result.train_metrics_clientapp[2]["accepted"] == 4
    assert result.arrays["trunk.weight"].numpy().tobytes() == MODEL["trunk.weight"].tobytes()
    assert np.linalg.norm(moved(result)) > 0.4


@pytest.mark.usefixtures("simulation_policy")
def test_clients_that_agree_move_the_model_along_the_projection() -> None:
    part: dict[str, Any] = {"trainable": HEAD, "subspace": WITHIN}
    strategy = GaussianStrategy(Gaussian(100.0, 1e-6, 9.0), server_optimizer=step(), **part)
    result = run(strategy, GaussianRelease(), MODEL, TARGET)
    update = np.concatenate([TARGET[name].ravel() for name in HEAD])
    along = WITHIN.lift(WITHIN.project(update), 300)
    # About as much noise as signal; five deviations of a random direction's cosine are 0.3.
    assert cosine(moved(result), along) > 0.4


def asked_for(
    release: Release, fields: Mapping[str, Any], reply: Mapping[str, Any] = TARGET
) -> tuple[list[ReleaseRequest], Message]:
    """Return what the authorizer was asked, and what the server is told."""
    authorizer = Asked()
    content = RecordDict({"arrays": record(MODEL), PROPOSAL_KEY: ConfigRecord({**fields})})

    def app(sent: Message, _: Context) -> Message:
        return Message(RecordDict({"a": record(reply)}), reply_to=sent)

    gate = LdpMod(train=release, authorizer=authorizer)
    return authorizer.requests, gate(message(content), context(), app)


PROPOSALS: Mapping[str, tuple[type[Any], dict[str, Any]]] = {
    "signds": (SignDSRelease, dict(signds_proposal(SignDS(8.0, 0.25, dim_out=8)).to_fields())),
    "codeword": (CodewordRelease, dict(UpdateProposal(Codeword(8.0, 13)).to_fields())),
    "gaussian": (GaussianRelease, dict(UpdateProposal(Gaussian(8.0, 1e-6)).to_fields())),
}
EVERY_PROPOSAL = pytest.mark.parametrize(
    ("release", "fields"), PROPOSALS.values(), ids=list(PROPOSALS)
)


#: Parts that no proposal may have.
HOSTILE: list[dict[str, Any]] = [
    {"subspace-dimension": 0, "subspace-seed": 0},
    {"subspace-dimension": -1, "subspace-seed": 0},
    {"subspace-dimension": 301, "subspace-seed": 0, "trainable": [*HEAD]},
    {"subspace-dimension": 2**22, "subspace-seed": 0},
    {"subspace-dimension": 2**62, "subspace-seed": 0},
    {"subspace-dimension": 60, "subspace-seed": -1},
    {"subspace-dimension": 60},
    {"subspace-seed": 1},
    {"subspace-dimension": 60.0, "subspace-seed": 0},
    {"trainable": ["count"]},
    {"trainable": ["head.*"]},  # names, no patterns
    {"trainable": ["head.weight", "head.weight"]},
    {"trainable": "head.weight"},
    {"trainable": [f"w{n}" for n in range(20_000)]},
]
#: Eight indices of seven, thirteen codewords of eight rows: by k, not by the weights.
TOO_SMALL = {"subspace-dimension": 7, "subspace-seed": 0}


@pytest.mark.parametrize(
    ("release", "fields", "hostile"),
    [
        *((*PROPOSALS[name], TOO_SMALL) for name in ("signds", "codeword")),
        *((*one, hostile) for one in PROPOSALS.values() for hostile in HOSTILE),
    ],
)
def test_hostile_proposals_are_refused_before_the_charge(
    release: type[Any], fields: dict[str, Any], hostile: dict[str, Any]
) -> None:
    requests, reply = asked_for(release(), {**fields, **hostile})
    assert (requests, reply.error.reason) == ([], REFUSED_PROPOSAL)


@EVERY_PROPOSAL
@pytest.mark.parametrize(
    ("app", "named"),
    [
        ("head.*", None),
        ("head.*", ["head.weight"]),
        ("head.weight", [*HEAD]),
        ("lora.*", [*HEAD]),
        ("count", None),
    ],
)
def test_another_part_than_the_app_trains_is_refused_before_the_charge(
    release: type[Any], fields: dict[str, Any], app: str, named: list[str] | None
) -> None:
    part = {} if named is None else {"trainable": named}
    requests, reply = asked_for(release(trainable=app), {**fields, **part})
    assert (requests, reply.error.reason) == ([], REFUSED_PROPOSAL)


@EVERY_PROPOSAL
def test_the_same_part_is_answered_and_the_ledger_is_told(
    release: type[Any], fields: dict[str, Any]
) -> None:
    part = {"trainable": list(reversed(HEAD)), "subspace-dimension": 60, "subspace-seed": 9}
    requests, reply = asked_for(release(trainable="head.*"), {**fields, **part})
    assert not reply.has_error()
    (request,) = requests
    assert '"subspace-dimension":60,"subspace-seed":9' in request.parameters
    assert '"dimension":300' in request.parameters
    assert '"trainable":["head.bias","head.weight"]' in request.parameters
    everything, _ = asked_for(release(), fields)
    assert [event.epsilon for event in request.events] == [8.0]
    assert everything[0].events == request.events  # a part costs what all costs


@pytest.mark.parametrize(
    ("spoil", "neutral"),
    [
        (lambda update: update, False),
        (lambda update: np.full_like(update, np.finfo(np.float32).max / 2), False),
        (lambda update: np.where(np.arange(300) == 100, np.nan, update), True),
        (lambda update: np.where(np.arange(300) == 100, np.inf, update), True),
        (lambda update: update[:150], True),
    ],
)
def test_what_is_neutral_is_decided_before_the_projection(
    spoil: Callable[[np.ndarray], np.ndarray], neutral: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of 8 weights hide NaN at one weight from nearly all rows, not from the gate."""
    monkeypatch.setattr(subspace_module, "MAX_ORDER", 8)
    model = {"w": np.zeros(300, dtype=np.float32)}
    proposal = UpdateProposal(Gaussian(8.0, 1e-6), health_epsilon=100.0)
    part = Part(subspace=Subspace(4, seed=1))
    asked = opened(GaussianRelease(), {**proposal.to_fields(), **part.to_fields()}, model)
    update = spoil(np.ones(300)).astype(np.float32)
    if len(update) == 300:
        assert np.isfinite(ModelLayout.of(model, part).project(update)).all()
    with noted() as notes:
        report = asked.privatize(RecordDict({"a": record({"w": update})}), RandomSource.seeded(0))
    assert notes == (["gaussian"] if neutral else [])
    assert (len(report), report[-1]) == (1 + 4 + 1, int(neutral))
    asked.check_form(report)
    assert len(asked.neutral(RandomSource.seeded(0))) == len(report)


def test_what_spoils_a_rehearsal_is_in_the_part() -> None:
    """Of NaN in the trunk nothing is said; of NaN in the head the array is named."""
    fields = {**PROPOSALS["gaussian"][1], "trainable": [*HEAD]}
    asked, nan = opened(GaussianRelease(), fields), np.full((7, 11), np.nan, dtype=np.float32)
    good = RecordDict({"a": record({**TARGET, "trunk.weight": nan})})
    assert asked.complaint(good) is None
    bad = RecordDict({"a": record({**TARGET, "head.bias": np.full(100, np.inf)})})
    assert "'head.bias', shape (100,), 0 NaN and 100 infinite" in str(asked.complaint(bad))
    missing = RecordDict({"a": record({"head.bias": TARGET["head.bias"]})})
    assert "arrays missing ['head.weight']" in str(asked.complaint(missing))


def test_the_magnitude_bit_is_about_the_projection() -> None:
    """One entry of 2,000 is 62.5 in each of the subspace's numbers, with either sign."""
    model = {"w": np.zeros(1_024, dtype=np.float32)}
    proposal = signds_proposal(SignDS(8.0, 0.25, dim_out=2), 100.0, 20.0)
    trained = {"w": np.where(np.arange(1_024) == 5, 2_000, 0).astype(np.float32)}
    # Of the update itself the top set's mean is 2,000 / 256, or 0.
    for part, size, is_below in ((Part(), 1_024, 1), (Part(subspace=Subspace(512)), 512, 0)):
        fields = {**proposal.to_fields(), **part.to_fields()}
        asked, reply = opened(SignDSRelease(), fields, model), RecordDict({"a": record(trained)})
        report = asked.privatize(reply, RandomSource.seeded(0))
        _, _, bit = decode_report(report, dimension=size, dim_out=2, has_bit=True)
        assert bit == is_below


@pytest.mark.parametrize("pattern", ["lora", "count"])
def test_a_pattern_without_an_array_ends_the_run_before_anybody_is_asked(pattern: str) -> None:
    pool = ClientPool(1)
    strategy = KINDS["codeword"][0](trainable=[*HEAD, pattern], answers_per_client=pool)
    with pytest.raises(ValueError, match=f"{pattern}.*there are 'trunk.weight', 'head.weight'"):
        run(strategy, CodewordRelease(), MODEL, TARGET)
    assert pool.asked() == {}


def test_a_subspace_of_more_dimensions_than_weights_ends_the_run_too() -> None:
    strategy = KINDS["signds"][0](trainable="head.*", subspace=Subspace(301))
    with pytest.raises(ValueError, match="needs a model of 301 to"):
        ask(strategy, MODEL)


@EVERY_KIND
def test_arguments_of_other_types_are_refused(make: Make, release: type[Any], length: int) -> None:
    for call in (make, release):
        with pytest.raises(TypeError, match="trainable must be names"):
            call(trainable=3)
        with pytest.raises(ValueError, match="trainable must be one name"):
            call(trainable=())
    with pytest.raises(TypeError, match="subspace must be a Subspace"):
        make(subspace=60)


def test_the_summary_says_which_part(caplog: pytest.LogCaptureFixture) -> None:
    KINDS["gaussian"][0](trainable=["head.*", "*lora*"], subspace=WITHIN).summary()
    assert "Trained: head.*, *lora*" in caplog.text
    assert "In 220 public dimensions, seed 9" in caplog.text

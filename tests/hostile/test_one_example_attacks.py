"""A server that looks for last bits: whether one patient moves what others add to a sum.

The weights are about 1e8 and cancel on the patients' rows, so a last bit of a dot product decides
whether a gradient is zero or clipped, and a prediction right or wrong. Kernels round by a row's
place in a batch and in memory. Here each patient's row is one that rounds otherwise one place
further up; where the gate's training let places depend on another patient, all of them would move.

Which rows these are depends on the processor, so each attack looks for its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("scipy")

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn

from flower_ldp.clients import AccuracyRelease, DPSGDRelease, LdpMod
from flower_ldp.mechanisms import ExampleMean
from flower_ldp.training import private, private_accuracy
from flower_ldp.training import rows as training_rows
from tests.fixtures import message, record
from tests.hostile.site import CHANCE
from tests.unit.training.gated import Site, weights

PATIENTS, WIDTH = 91, 30
EPSILON, DELTA, OF_ONE_COUNT = 1.0, 1e-5, 0.05
#: Enough for the claim in one step, by its rate.
NOISE = {1.0: 7.462, 0.3: 2.407}
POLICY = """
data_id: ward
ledger: ledger.sqlite
mode: deployment
example: {example}
examples: 91
messages:
  train:
    dpsgd:
      epsilon: 1.0
      delta: 1.0e-5
      unit: example
      plan: {{rounds: 1, steps: 1, rate: {rate}, noise: {noise}, clip: 1.0}}
  evaluate:
    example_mean: {{epsilon: 0.05, unit: example}}
budgets:
  example:
    life: {{epsilon: 2.0, delta: 1.0e-5}}
"""
LIKE = (torch.zeros(WIDTH), torch.tensor(0))
#: So long a step that the model is the sum and nothing else.
STEP = 2.0**60

# Rows that are rounded by their place.

Table = torch.Tensor


def _together(table: Table, weight: torch.Tensor) -> torch.Tensor:
    bias = torch.zeros(2)
    side_by_side = torch.vmap(lambda row: nn.functional.linear(row[None], weight, bias)[0])
    found: torch.Tensor = side_by_side(table)
    return found


def _as_one_batch(table: Table, weight: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(table, weight, torch.zeros(2))


def _where_they_lie(table: Table, weight: torch.Tensor) -> torch.Tensor:
    bias = torch.zeros(2)
    places = range(len(table))
    return torch.cat([nn.functional.linear(table[i : i + 1], weight, bias) for i in places])


#: Ways to compute rows in which a row's place may matter.
WAYS: tuple[Callable[[Table, torch.Tensor], torch.Tensor], ...] = (
    _together,
    _as_one_batch,
    _where_they_lie,
)
#: Weights that are tried, and rows for each of them.
TRIED_WEIGHTS, TRIED_ROWS = 6, 100
#: So far apart that the class with the larger logit has all of the probability.
FAR = 20.0


@dataclass(frozen=True)
class Attack:
    """What the server sends, and patients' rows.

    Where the first row is computed together with the others, or lies before them, their first
    class has all of the probability; where it is missing, so that they are one place further up,
    their second class has it. ``moved`` says of how many this is so, in one of the ways.
    """

    weight: torch.Tensor
    rows: Table
    moved: int
    way: str

    @property
    def model(self) -> dict[str, NDArray[Any]]:
        return {"weight": self.weight.numpy(), "bias": np.zeros(2, dtype=np.float32)}

    @property
    def towards(self) -> NDArray[np.float64]:
        """Direction of a gradient where the second class is predicted and the first is right."""
        mean = self.rows.double().mean(dim=0).numpy()
        found = np.concatenate([-mean, mean, [-1.0, 1.0]])
        return np.asarray(found / np.linalg.norm(found))


@functools.cache
def attacks(places: int, places_without: int) -> tuple[Attack, ...]:
    """Return for each way the worst attack that was found, the strongest first.

    Parameters
    ----------
    places, places_without : int
        How many rows there are to compute with the first one and without it.
    """
    found = [_worst(way, places, places_without) for way in WAYS]
    found = sorted((one for one in found if one.moved), key=lambda one: -one.moved)
    if not found:
        pytest.skip("this processor rounds a row alike wherever it is")
    return tuple(found)


def _worst(
    way: Callable[[Table, torch.Tensor], torch.Tensor], places: int, places_without: int
) -> Attack:
    found: list[Attack] = []
    for seed in range(TRIED_WEIGHTS):
        found.append(_attack(way, places, places_without, seed))
        if found[-1].moved == places - 1:
            break
    return max(found, key=lambda one: one.moved)


def _attack(
    way: Callable[[Table, torch.Tensor], torch.Tensor], places: int, places_without: int, seed: int
) -> Attack:
    rng = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (WIDTH,), generator=rng) * 2.0 - 1.0
    weight = torch.zeros(2, WIDTH)
    weight[1] = 1e8 * (0.5 + torch.rand(WIDTH, generator=rng)) * signs
    # Rows that are nearly the same, so that their gradients point the same way.
    near = 1.0 + 1e-2 * torch.randn((TRIED_ROWS, WIDTH), generator=rng)
    rows = (1.0 + torch.rand(WIDTH, generator=rng)) * near
    of_second = weight[1].double()
    rows[:, -1] = -(rows[:, :-1].double() @ of_second[:-1] / of_second[-1]).float()

    def lead(number: int) -> torch.Tensor:
        """Return by how much the second logit is the larger one, of each row in each place."""
        logits = [way(row.expand(number, WIDTH).contiguous(), weight) for row in rows]
        return torch.stack([one[:, 1] - one[:, 0] for one in logits])

    with_her, without = lead(places)[:, 1:], lead(places_without)[:, : places - 1]
    moved = (with_her < -FAR) & (without > FAR)
    chosen = [0, *moved.double().argmax(dim=0).tolist()]
    return Attack(weight, rows[chosen], int(moved.any(dim=0).sum()), way.__name__)


# A ward that is asked with them.


@dataclass
class Ward(Site):
    """A site of one row a patient, of which the first class is the target."""

    example: str = "patient"
    rate: float = 1.0
    rows: Any = ()
    groups: Sequence[str | None] | None = field(
        default_factory=lambda: [f"patient {i}" for i in range(PATIENTS)]
    )
    target: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        text = POLICY.format(example=self.example, rate=self.rate, noise=NOISE[self.rate])
        (self.folder / "policy.yaml").write_text(text)
        self.arguments = {
            **{"model": lambda: nn.Linear(WIDTH, 2), "loss": nn.functional.cross_entropy},
            **{"data": self, "like": LIKE, "groups": self.groups},
            "optimizer": lambda learning: torch.optim.SGD(learning, lr=STEP),
        }

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], self.target

    def evaluate(self, sent: Message, given: Context) -> Message:
        model = nn.Linear(WIDTH, 2).eval()
        content = private_accuracy(given, model, self, like=LIKE, groups=self.groups)
        return Message(content, reply_to=sent)

    def app(self, release: DPSGDRelease | None = None) -> ClientApp:
        mod = LdpMod(
            train=release or DPSGDRelease(), evaluate=AccuracyRelease(epsilon=OF_ONE_COUNT)
        )
        app = ClientApp(mods=[mod])
        app.train()(self.train)
        app.evaluate()(self.evaluate)
        return app

    def sum(self, attack: Attack) -> NDArray[np.float64]:
        """Return what the server reads of a step's sum from the model that it gets."""
        found = weights(self.ask(arrays=attack.model)).astype(np.float64)
        first = np.concatenate([one.ravel() for one in attack.model.values()])
        return np.asarray((first - found) / STEP * (self.rate * PATIENTS))

    def right(self, attack: Attack) -> float:
        """Return how many predictions are right by the reply."""
        content = RecordDict({"arrays": record(attack.model), "config": ConfigRecord({})})
        reply = self.app()(message(content, kind="evaluate"), self.context)
        assert not reply.has_error(), reply.error
        share = reply.content.metric_records["metrics"]["accuracy"]
        return float(share) * PATIENTS  # type: ignore[arg-type]


def _without_a_group(rows: Table) -> dict[str, Any]:
    return {"rows": rows, "groups": [None, *(f"patient {i}" for i in range(1, PATIENTS))]}


def _not_in_the_table(rows: Table) -> dict[str, Any]:
    return {"rows": rows[1:].clone(), "groups": [f"patient {i}" for i in range(1, PATIENTS)]}


def _that_fails(rows: Table) -> dict[str, Any]:
    return {"rows": [torch.zeros(WIDTH + 1), *rows[1:]]}


#: Neighbours of a ward: what can become of its first patient.
LOST: dict[str, Callable[[Table], dict[str, Any]]] = {
    "without a group": _without_a_group,
    "not in the table": _not_in_the_table,
    "with a row that fails": _that_fails,
}


def neighbours(
    folder: Path, attack: Attack, lost: str = "without a group", **settings: Any
) -> tuple[Ward, Ward]:
    """Return a ward, and one that differs from it in the first patient alone."""
    both = []
    for name, kept in (("with", {"rows": attack.rows}), ("without", LOST[lost](attack.rows))):
        own = folder / name
        own.mkdir(parents=True)
        both.append(Ward(own, **{**settings, **kept}))
    return both[0], both[1]


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "noised_whole", lambda whole, unit, rng: whole.double() * unit)
    monkeypatch.setattr(ExampleMean, "noised", lambda self, total, rng: total)


def apart(sums: Sequence[NDArray[np.float64]]) -> float:
    return float(np.linalg.norm(sums[0] - sums[1]))


#: What the model's single precision may add to a distance between sums, in clipping lengths.
SLACK = 1e-4


# The attacks.


@pytest.mark.parametrize("lost", LOST)
def test_one_patient_moves_a_sum_by_its_own_gradient_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Sums of neighbours, without noise, are no further apart than one clipped gradient moves."""
    without_noise(monkeypatch)
    for attack in attacks(PATIENTS, PATIENTS):
        both = neighbours(tmp_path / attack.way, attack, lost)
        # By another row in its place it would be 2; here there is none.
        assert apart([ward.sum(attack) for ward in both]) <= 1.0 + SLACK, attack.way


#: If all guesses are right, the claim is refuted: 0.73 to the power of 52 is below 1e-6.
RUNS = 26


def most_right(guesses: int) -> int:
    """Return how many of the guesses can be right by the claim, but for a chance of 1e-6.

    One half of them is made of either data set. By (epsilon, delta) the two probabilities of a
    right guess have a mean of at most (e^epsilon + delta) / (1 + e^epsilon). A sum of independent
    coins lies above a number beyond its mean at most as often as one of equal coins (Hoeffding,
    1956).
    """
    mean = (math.exp(EPSILON) + DELTA) / (1.0 + math.exp(EPSILON))
    return next(k for k in range(guesses) if binom.sf(k, guesses, mean) <= CHANCE)


def test_the_model_does_not_tell_that_a_patient_lost_its_group(tmp_path: Path) -> None:
    """A server that guesses from the model, with noise, is right as seldom as epsilon 1 says."""
    attack = attacks(PATIENTS, PATIENTS)[0]
    right = 0
    for run in range(RUNS):
        both = neighbours(tmp_path / str(run), attack)
        kept, lost = (float(ward.sum(attack) @ attack.towards) > attack.moved / 2 for ward in both)
        right += (not kept) + lost
    assert right <= most_right(2 * RUNS)


def test_an_examples_own_coin_moves_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the coins of all others, an example's own coin moves a sum by one clipped gradient."""
    without_noise(monkeypatch)
    drawn = np.arange(0, PATIENTS, 3)[: round(0.3 * PATIENTS)]
    for attack in attacks(len(drawn), len(drawn) - 1):
        rows = torch.zeros(PATIENTS, WIDTH)
        rows[drawn] = attack.rows
        sums = []
        for name, coins in (("drawn", drawn), ("not drawn", drawn[1:])):
            monkeypatch.setattr(training_rows, "taking_part", lambda *_, coins=coins: coins)
            folder = tmp_path / attack.way / name
            folder.mkdir(parents=True)
            ward = Ward(folder, example="row", rate=0.3, rows=rows, groups=None)
            sums.append(ward.sum(attack))
        assert apart(sums) <= 1.0 + SLACK, attack.way


@pytest.mark.parametrize("lost", LOST)
def test_one_patient_moves_a_count_of_right_predictions_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Counts of neighbours, without noise, are no further apart than one patient."""
    without_noise(monkeypatch)
    for attack in attacks(PATIENTS, PATIENTS):
        for target in (0, 1):
            both = neighbours(tmp_path / attack.way / str(target), attack, lost, target=target)
            with_her, without = (ward.right(attack) for ward in both)
            assert abs(with_her - without) <= 1.0 + 1e-9, (attack.way, target)

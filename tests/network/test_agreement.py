"""The statistics by which two engines are compared: they hold for honest reports, and can fail."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from flower_ldp.mechanisms import BoundedMean, Laplace, MagRR, RandomSource, SignDS
from flower_ldp.mechanisms.signds_round import encode_report
from flower_ldp.wire.evaluation import EvalProposal, encode_eval_report
from tests.fixtures import signds_proposal
from tests.network.agreement import Exchanges, differences, known, rejected, sizes, statistics

ROUNDS, NODES, EVERY = 9, 3, 4


SELECTION, MAGNITUDE, ROWS = SignDS(epsilon=4.0, k=0.2), MagRR(epsilon=0.02), Laplace(2.0, 10, 6)


@dataclass(frozen=True)
class Reports:
    """How the reports of a run are drawn; the defaults are honest."""

    selection: SignDS = SELECTION
    drawn_by: SignDS = SELECTION
    magnitude: MagRR = MAGNITUDE
    rows: Laplace = ROWS
    noise_times: float = 1.0
    shifted: float = 0.0
    sign: int = 0
    bit: int | None = None
    backwards: bool = False
    narrow: bool = False

    def run(self, seed: int) -> Exchanges:
        rng = RandomSource.seeded(seed)
        found: Exchanges = []
        for server_round in range(1, ROUNDS + 1):
            proposal = signds_proposal(self.selection, self.magnitude.epsilon, 0.001)
            found.append(
                {
                    "type": "train",
                    "proposal": proposal.to_fields(),
                    "payloads": [self._trained(rng) for _ in range(NODES)],
                }
            )
            if server_round % EVERY == 0:
                asked = EvalProposal(self.rows, {"loss": BoundedMean(1.0, 0.0, 4.0)})
                payloads = [self._evaluated(asked, rng) for _ in range(NODES)]
                found.append(
                    {"type": "evaluate", "proposal": asked.to_fields(), "payloads": payloads}
                )
        return found

    def _trained(self, rng: RandomSource) -> str:
        update = known.update().ravel()
        plan = self.selection.plan(update.size)
        drawn_by = replace(self.drawn_by, dim_out=plan.dim_out)
        drawn = drawn_by.randomize(-update if self.backwards else update, rng)
        # The place in the falling update, from the end that the sign makes the largest.
        sign, end = self.sign or drawn.sign, update.size - 1
        places = drawn.indices if drawn.sign > 0 else end - drawn.indices
        if self.narrow:
            others = plan.top_size + np.arange(plan.dim_out)
            places = np.where(places < plan.top_size, places, others)
        indices = np.sort(places if sign > 0 else end - places)
        bit = self.magnitude.randomize(False, rng) if self.bit is None else self.bit
        return encode_report(indices, sign, bit, dimension=update.size).hex()

    def _evaluated(self, asked: EvalProposal, rng: RandomSource) -> str:
        true = known.rows(self.rows.rows)
        honest = self.rows.randomize(true, rng)
        exact = np.rint(true * self.rows.steps)
        scaled = exact + (honest - exact) * self.noise_times + self.shifted * self.rows.steps
        loss = asked.metrics["loss"]
        centre = loss.steps // 4
        noise = (loss.randomize(known.LOSS, rng) - centre) * self.noise_times
        noisy = round(centre + noise + self.shifted * loss.steps)
        return encode_eval_report(asked, np.rint(scaled).astype(np.int64), [noisy]).hex()


def test_honest_reports_agree_with_their_laws_and_with_each_other() -> None:
    runs = [Reports().run(seed) for seed in range(1, 4)]
    assert sizes(runs[0]) == sizes(runs[1])
    found = [statistics(run) for run in runs]
    for one in found:
        assert rejected(one) == {}
    assert rejected(differences(found[0], found[1])) == {}


@pytest.mark.filterwarnings("ignore::flower_ldp.mechanisms.signds.SmallTopSetWarning")
@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (Reports(sign=1), {"positive signs"}),
        (Reports(bit=0), {"true magnitude bits"}),
        (Reports(bit=1), {"true magnitude bits"}),
        (Reports(drawn_by=SignDS(epsilon=100.0, k=0.01)), {"top dimensions of the first half"}),
        (Reports(drawn_by=SignDS(epsilon=0.01, k=0.2)), {"top dimensions"}),
        (Reports(backwards=True), {"top dimensions"}),
        (Reports(noise_times=0.0), {"sizes of the rows' noise", "sizes of the loss's noise"}),
        (Reports(noise_times=0.5), {"sizes of the rows' noise"}),
        (Reports(noise_times=2.0), {"sizes of the rows' noise"}),
        (Reports(shifted=0.6), {"signs of the rows' noise", "mean of the rows' noise"}),
        (Reports(narrow=True), {"other dimensions of the first half"}),
        (Reports(shifted=7.0), {"mean where a row is 1", "mean of the loss's noise"}),
    ],
    ids=lambda value: " and ".join(sorted(value)) if isinstance(value, set) else "",
)
def test_what_is_not_drawn_as_it_should_be_is_found(wrong: Reports, names: set[str]) -> None:
    assert names <= rejected(statistics(wrong.run(5))).keys()


def test_a_difference_between_engines_is_found() -> None:
    honest, wrong = statistics(Reports().run(1)), statistics(Reports(noise_times=3.0).run(2))
    assert "sizes of the rows' noise" in rejected(differences(honest, wrong))

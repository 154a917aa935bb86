"""``from_config``: every key of one file is in force in what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.serverapp.strategy import FedAvg

from flower_ldp.clients import LdpMod
from flower_ldp.config import from_config
from flower_ldp.errors import ConfigError
from flower_ldp.mechanisms import Codeword, Gaussian, Laplace, SignDS, Subspace
from flower_ldp.strategies import (
    AgreedLength,
    ClientPool,
    CodewordStrategy,
    FixedLength,
    GaussianStrategy,
    Momentum,
    ProtectedEvalStrategy,
    SignDSStrategy,
)

CONFIGS = Path(__file__).parents[3] / "configs"
PART = "trainable: [head.*], subspace: {dimension: 9, seed: 3}"
SECTIONS = {
    "SIGNDS": "signds: {sign_eps: 8.0, sign_scaling: unbiased, sign_global_lr: 0.25, "
    f"sign_server_optimizer: {{kind: momentum}}, {PART}}}",
    "CODEWORD": f"codeword: {{codeword_eps: 4.0, codeword_blocks: 3, {PART}}}",
    "DP_ENCRYPT": f"dp_encrypt: {{dp_eps: 2.0, dp_delta: 1.0e-6, {PART}}}",
}
EVERY = pytest.mark.parametrize("kind", SECTIONS)


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return tmp_path / "run.yaml"


def written(file: Path, kind: str, *more: str) -> Path:
    lines = ["encrypt:", f"  encrypt_train_type: {kind}", "  health_eps: 0.5"]
    lines += [f"  {text}" for text in (SECTIONS.get(kind, ""), *more)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


@EVERY
def test_part_health_and_options_are_in_the_strategy(
    kind: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy: Any = from_config(written(file, kind)).strategy(
        fraction_train=0.25, answers_per_client=2
    )
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    epsilon = {"SIGNDS": 8.5, "CODEWORD": 4.5, "DP_ENCRYPT": 2.5}[kind]
    assert f"Cost of a round: at most epsilon {epsilon}" in caplog.text
    assert "Trained: head.*" in caplog.text
    assert strategy.subspace == Subspace(9, 3)
    assert strategy.fraction_train == 0.25
    assert strategy.pool is not None


def test_signds_has_its_scaling_step_and_optimizer(file: Path) -> None:
    strategy = from_config(written(file, "SIGNDS")).strategy()
    assert isinstance(strategy, SignDSStrategy)
    assert strategy.mechanism == SignDS(8.0, 0.01)
    assert strategy.scaling == "unbiased"
    assert isinstance(strategy.server_optimizer, Momentum)


def test_codeword_has_its_blocks_and_steps_without_a_length(file: Path) -> None:
    strategy = from_config(written(file, "CODEWORD")).strategy()
    assert isinstance(strategy, CodewordStrategy)
    assert strategy.mechanism == Codeword(4.0, blocks=3)
    assert isinstance(strategy.server_optimizer, AgreedLength)


def test_gaussian_has_its_delta(file: Path) -> None:
    strategy = from_config(written(file, "DP_ENCRYPT")).strategy()
    assert isinstance(strategy, GaussianStrategy)
    assert strategy.mechanism == Gaussian(2.0, 1e-6, 1.0)


@EVERY
@pytest.mark.parametrize("name", ["trainable", "subspace", "health"])
def test_what_the_file_says_cannot_be_said_again(kind: str, name: str, file: Path) -> None:
    options: Any = {name: None}
    with pytest.raises(TypeError, match=f"{name} is given by the configuration file"):
        from_config(written(file, kind)).strategy(**options)


def test_evaluation_wraps_training_and_shares_its_pool(file: Path) -> None:
    text = "laplace_eval: {laplace_eval_eps: 4, rows: 2, metrics: {loss: {epsilon: 1.0, lower: 0.0"
    text += ", upper: 1.0}}}"
    run = from_config(written(file, "SIGNDS", "privacy_eval_type: LAPLACE", text))
    strategy = run.strategy(classes=10, answers_per_client=ClientPool(answers_per_client=1))
    assert isinstance(strategy, ProtectedEvalStrategy)
    assert isinstance(strategy.strategy, SignDSStrategy)
    assert strategy.mechanism == Laplace(8.0, 10, 2)
    assert list(strategy.metrics) == ["loss"]
    assert strategy.cluster_client_num == 1_000
    with pytest.raises(TypeError, match=r"classes= is for privacy_eval_type LAPLACE.*classes=None"):
        run.strategy()


def test_classes_without_evaluation_are_refused(file: Path) -> None:
    with pytest.raises(TypeError, match="NOT_ENCRYPT, got classes=10"):
        from_config(written(file, "SIGNDS")).strategy(classes=10)


def test_each_strategy_has_fresh_state(file: Path) -> None:
    run = from_config(written(file, "SIGNDS"))
    first, second = run.training(), run.training()
    assert first is not second
    assert first.server_optimizer is not second.server_optimizer  # type: ignore[attr-defined]


def test_no_protection_is_fedavg_without_a_gate(file: Path) -> None:
    run = from_config(written(file, "NOT_ENCRYPT"))
    assert type(run.strategy(fraction_train=0.5)) is FedAvg
    assert run.client_mods() == []


@pytest.mark.parametrize("name", ["signds", "codeword", "dp_encrypt", "laplace_eval"])
def test_the_samples_make_a_gate(name: str) -> None:
    (gate,) = from_config(CONFIGS / f"{name}.yaml").client_mods()
    assert isinstance(gate, LdpMod)


def test_rounds_are_the_files_or_the_plans(file: Path) -> None:
    assert from_config(written(file, "SIGNDS")).rounds is None
    planned = file.read_text().replace("kind: momentum", "kind: fixed_length, length: 1, rounds: 7")
    file.write_text(planned)
    assert from_config(file).rounds == 7
    assert isinstance(from_config(file).training().server_optimizer, FixedLength)  # type: ignore[attr-defined]
    file.write_text(planned + "fl_iteration_num: 7\n")
    assert from_config(file).rounds == 7
    file.write_text(planned + "fl_iteration_num: 8\n")
    with pytest.raises(ConfigError, match="fl_iteration_num must be the optimizer's rounds, 7"):
        from_config(file)

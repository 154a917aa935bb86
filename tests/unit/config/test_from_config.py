"""``from_config``: every key of one file is in force in what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import RecordDict
from flwr.serverapp.strategy import FedAvg

from flower_ldp import strategies
from flower_ldp.clients import LdpMod, UnprotectedMod
from flower_ldp.config import from_config
from flower_ldp.errors import ConfigError, WireError
from flower_ldp.mechanisms import Codeword, Gaussian, Laplace, SignDS, Subspace
from flower_ldp.wire.proposal import UpdateProposal
from tests.fixtures import CONFIGS
from tests.unit.clients.world import asking

PART = "trainable: [head.*], subspace: {dimension: 9, seed: 3}"
SECTIONS = {
    "SIGNDS": "signds: {sign_eps: 8.0, sign_scaling: unbiased, sign_global_lr: 0.25, "
    f"sign_server_optimizer: {{kind: momentum}}, {PART}}}",
    "CODEWORD": f"codeword: {{codeword_eps: 4.0, codeword_blocks: 3, {PART}}}",
    "DP_ENCRYPT": f"dp_encrypt: {{dp_eps: 2.0, dp_delta: 1.0e-6, {PART}}}",
}
EVERY = pytest.mark.parametrize("kind", SECTIONS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def written(file: Path, kind: str, *more: str) -> Path:
    lines = ["encrypt:", f"  encrypt_train_type: {kind}", "  health_eps: 0.5"]
    lines += [f"  {text}" for text in (SECTIONS.get(kind, ""), *more)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def made(file: Path, kind: str, *more: str, **options: Any) -> Any:
    """Return the strategy of a file."""
    return from_config(written(file, kind, *more)).strategy(**options)


def unprotected(run: Any) -> object:
    """Return the types of messages that are answered without protection."""
    (mod,) = run.client_mods()
    assert isinstance(mod, UnprotectedMod)
    return mod.message_types


@EVERY
def test_part_health_and_options_are_in_the_strategy(
    kind: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = made(file, kind, fraction_train=0.25, answers_per_client=2)
    with caplog.at_level("INFO", logger="flwr"):
        strategy.summary()
    epsilon = {"SIGNDS": 8.5, "CODEWORD": 4.5, "DP_ENCRYPT": 2.5}[kind]
    assert f"Cost of a round: at most epsilon {epsilon}" in caplog.text
    assert "Trained: head.*" in caplog.text
    assert strategy.subspace == Subspace(9, 3)
    assert strategy.fraction_train == 0.25
    assert strategy.pool is not None


@pytest.mark.parametrize(
    ("kind", "made_of", "mechanism"),
    [
        ("SIGNDS", strategies.SignDSStrategy, SignDS(8.0, 0.01)),
        ("CODEWORD", strategies.CodewordStrategy, Codeword(4.0, blocks=3)),
        ("DP_ENCRYPT", strategies.GaussianStrategy, Gaussian(2.0, 1e-6, 1.0)),
    ],
)
def test_each_kind_has_its_mechanism(kind: str, made_of: type, mechanism: Any, file: Path) -> None:
    strategy = made(file, kind)
    assert isinstance(strategy, made_of)
    assert strategy.mechanism == mechanism


def test_signds_and_codeword_have_their_optimizers(file: Path) -> None:
    signds = made(file, "SIGNDS")
    assert signds.scaling == "unbiased"
    assert isinstance(signds.server_optimizer, strategies.Momentum)
    assert isinstance(made(file, "CODEWORD").server_optimizer, strategies.AgreedLength)


@EVERY
@pytest.mark.parametrize("name", ["trainable", "subspace", "health"])
def test_what_the_file_says_cannot_be_said_again(kind: str, name: str, file: Path) -> None:
    with pytest.raises(TypeError, match=f"{name} is given by the configuration file"):
        made(file, kind, **{name: None})


def test_evaluation_wraps_training_and_shares_its_pool(file: Path) -> None:
    metrics = "{loss: {epsilon: 1.0, lower: 0.0, upper: 1.0}}"
    text = f"laplace_eval: {{laplace_eval_eps: 4, rows: 2, metrics: {metrics}}}"
    run = from_config(written(file, "SIGNDS", "privacy_eval_type: LAPLACE", text))
    pool = strategies.ClientPool(answers_per_client=1)
    strategy = run.strategy(classes=10, answers_per_client=pool)
    assert isinstance(strategy, strategies.ProtectedEvalStrategy)
    assert isinstance(strategy.strategy, strategies.SignDSStrategy)
    assert strategy.mechanism == Laplace(8.0, 10, 2)
    assert list(strategy.metrics) == ["loss"]
    assert strategy.cluster_client_num == 1_000
    with pytest.raises(TypeError, match=r"classes= is for privacy_eval_type LAPLACE.*classes=None"):
        run.strategy()


def test_classes_without_evaluation_are_refused(file: Path) -> None:
    with pytest.raises(TypeError, match="None, got classes=10"):
        made(file, "SIGNDS", classes=10)


def test_each_strategy_has_fresh_state(file: Path) -> None:
    run = from_config(written(file, "SIGNDS"))
    first, second = run.training(), run.training()
    assert first is not second
    assert first.server_optimizer is not second.server_optimizer  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said", "message_type"),
    [
        (("not_encrypt",), "RAW UPDATES", "train"),
        (("SIGNDS", "privacy_eval_type: not_encrypt"), "RAW EVALUATION REPLIES", "evaluate"),
    ],
)
def test_no_protection_says_so_in_capitals(
    words: tuple[str, ...],
    said: str,
    message_type: str,
    file: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = from_config(written(file, *words))
    strategy: Any = run.strategy(fraction_train=0.5)
    assert (type(strategy) is FedAvg) == (message_type == "train")
    assert strategy.fraction_evaluate == (message_type == "evaluate")
    assert f"{said} LEAVE THE CLIENTS" in caplog.text
    assert unprotected(run) == (message_type,)


@pytest.mark.parametrize("name", ["signds", "codeword", "dp_encrypt", "laplace_eval"])
def test_the_samples_make_a_gate(name: str) -> None:
    (gate,) = from_config(CONFIGS / f"{name}.yaml").client_mods()
    assert isinstance(gate, LdpMod)


def test_rounds_are_the_files_or_the_plans(file: Path) -> None:
    assert from_config(written(file, "SIGNDS")).rounds is None
    planned = file.read_text().replace("kind: momentum", "kind: fixed_length, length: 1, rounds: 7")
    file.write_text(planned)
    assert from_config(file).rounds == 7
    assert isinstance(from_config(file).training().server_optimizer, strategies.FixedLength)  # type: ignore[attr-defined]
    file.write_text(planned + "fl_iteration_num: 7\n")
    assert from_config(file).rounds == 7
    file.write_text(planned + "fl_iteration_num: 8\n")
    with pytest.raises(ConfigError, match="fl_iteration_num must be the optimizer's rounds, 7"):
        from_config(file)


LAPLACE = ("privacy_eval_type: LAPLACE", "laplace_eval: {laplace_eval_eps: 4}")


def proposed(mechanism: Any) -> RecordDict:
    """Return a server's message that asks for a report about a small model."""
    return asking(UpdateProposal(mechanism).to_fields(), {"w": np.zeros(40, dtype=np.float32)})


def test_the_gate_lets_reports_of_the_files_mechanism_out_alone(file: Path) -> None:
    section = from_config(written(file, "CODEWORD")).config.encrypt.protection()
    assert section is not None
    gate = section.release()
    assert gate.open(proposed(Codeword(4.0).sized(40))).events
    with pytest.raises(WireError):
        gate.open(proposed(Gaussian(50.0, 0.01, 1.0)))


def test_what_options_say_holds_for_evaluation_too(file: Path) -> None:
    keys = {"arrayrecord_key": "model", "configrecord_key": "asked", "min_available_nodes": 1}
    strategy = made(file, "SIGNDS", *LAPLACE, classes=4, answers_per_client=1, **keys)
    assert strategy._pool is strategy.strategy.pool
    assert strategy._available == strategy.strategy.min_available_nodes == 1


def test_a_file_that_protects_evaluation_alone_asks_for_no_training(file: Path) -> None:
    run = from_config(written(file, "null", *LAPLACE))
    strategy: Any = run.strategy(classes=4, answers_per_client=1)
    assert strategy.strategy.fraction_train == 0.0
    assert strategy._pool is not None
    (gate,) = run.client_mods()
    assert isinstance(gate, LdpMod)


def test_evaluation_can_be_protected_where_training_is_not(file: Path) -> None:
    run = from_config(written(file, "NOT_ENCRYPT", *LAPLACE))
    strategy: Any = run.strategy(classes=4, fraction_train=0.5)
    assert strategy.strategy.fraction_train == 0.5
    assert unprotected(run) == ("train",)


@pytest.mark.parametrize("build", ["training", "strategy"])
def test_a_training_without_a_type_is_an_error(build: str, file: Path) -> None:
    file.write_text("encrypt: {signds: {sign_eps: 8.0}}\n")
    with pytest.raises(ConfigError, match="NOT_ENCRYPT, sends raw updates, so it must be written"):
        getattr(from_config(file), build)()


def test_the_published_defaults_of_the_gaussian_mechanism_need_no_section(file: Path) -> None:
    file.write_text("encrypt: {encrypt_train_type: dp_encrypt}\n")
    assert from_config(file).strategy().mechanism == Gaussian(50.0, 0.01, 1.0)  # type: ignore[attr-defined]


def test_an_optimizer_that_is_not_used_plans_no_rounds(file: Path) -> None:
    planned = "signds: {sign_server_optimizer: {kind: fixed_length, length: 1, rounds: 7}}"
    written(file, "NOT_ENCRYPT", planned)
    file.write_text(file.read_text() + "fl_iteration_num: 8\n")
    assert from_config(file).rounds == 8

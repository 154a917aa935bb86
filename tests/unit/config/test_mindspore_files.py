"""MindSpore Federated's whole files: every field that its own files have is known.

The names are those of the 86 files with a section ``encrypt``, ``unsupervised`` or ``privacy`` in
the history of mindspore-ai/federated; no file is copied here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from flower_ldp.clients import LdpMod
from flower_ldp.config import SECTIONS, from_config, load_config, load_vertical_config
from flower_ldp.errors import ConfigError

HORIZONTAL: dict[str, Any] = yaml.safe_load("""
fl_name: Lenet
fl_iteration_num: 25
server_mode: FEDERATED_LEARNING
enable_ssl: false
distributed_cache: {type: redis, address: "127.0.0.1:2345", plugin_lib_path: "",
  cacert_filename: "", capath: "", cert_filename: "", private_key_filename: "", server_name: ""}
round: {start_fl_job_threshold: 2, start_fl_job_time_window: 30000, update_model_ratio: 1.0,
  update_model_time_window: 30000, global_iteration_time_window: 60000}
summary: {metrics_file: metrics.json, failure_event_file: event.txt, continuous_failure_times: 10,
  data_rate_dir: .., participation_time_level: "5,15"}
encrypt:
  encrypt_train_type: NOT_ENCRYPT
  privacy_eval_type: LAPLACE
  pw_encrypt: {share_secrets_ratio: 1.0, cipher_time_window: 3000, reconstruct_secrets_threshold: 1}
  dp_encrypt: {dp_eps: 50.0, dp_delta: 0.01, dp_norm_clip: 1.0}
  signds: {sign_k: 0.01, sign_eps: 100, sign_thr_ratio: 0.6, sign_global_lr: 0.1, sign_dim_out: 0}
  laplace_eval: {laplace_eval_eps: 8}
unsupervised: {cluster_client_num: 1000, eval_type: SILHOUETTE_SCORE}
compression: {upload_compress_type: NO_COMPRESS, upload_sparse_rate: 0.4,
  download_compress_type: NO_COMPRESS}
ssl: {server_cert_path: server.p12, client_cert_path: client.p12, ca_cert_path: ca.crt,
  crl_path: "", cipher_list: ECDHE-RSA-AES128-GCM-SHA256, cert_expire_warning_time_in_day: 90}
client_verify: {pki_verify: false, root_first_ca_path: "", root_second_ca_path: "",
  equip_crl_path: "", replay_attack_time_diff: 600000}
client: {http_url_prefix: "", client_epoch_num: 20, client_batch_size: 32,
  client_learning_rate: 0.01, connection_num: 10000}
""")
VERTICAL: dict[str, Any] = yaml.safe_load("""
role: leader
model: {train_net: {name: net, inputs: [{name: x, source: local}]}}
opts: [{type: Adam, hyper_parameters: {learning_rate: 3.5e-4}}]
grad_scalers: [{inputs: [{name: x}], sens: 1024.0}]
dataset: {name: criteo, features: [id], labels: [ctr]}
hyper_parameters: {epochs: 20, batch_size: 16000, is_eval: true}
ckpt_path: ./checkpoints
network: {master_ip: "127.0.0.1:8082", peer_ip: "127.0.0.1:8081"}
privacy: {embedding_dp: {eps: 5.0}, label_dp: {eps: 1.0}}
""")


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "file.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def names(content: dict[str, Any], way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the way to each field whose name this package judges."""
    free = {"model", "dataset", "hyper_parameters", "network"}
    for name, value in content.items():
        yield (*way, name)
        if isinstance(value, dict) and name not in free:
            yield from names(value, (*way, name))


def misspelt(content: dict[str, Any], way: tuple[str, ...]) -> dict[str, Any]:
    """Return the file with one name misspelt."""
    name, *deeper = way
    if not deeper:
        return {(f"{key}x" if key == name else key): value for key, value in content.items()}
    return {**content, name: misspelt(content[name], tuple(deeper))}


@pytest.mark.parametrize("content", [HORIZONTAL, VERTICAL], ids=["horizontal", "vertical"])
def test_a_misspelt_name_is_an_error(content: dict[str, Any], tmp_path: Path) -> None:
    load = SECTIONS["privacy" if content is VERTICAL else "encrypt"]
    load(written(tmp_path, content))
    for way in names(content):
        with pytest.raises(ConfigError, match=r"x is not a known field"):
            load(written(tmp_path, misspelt(content, way)))


def test_what_is_used_is_mapped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="flower_ldp"):
        run = from_config(written(tmp_path, HORIZONTAL))
    assert "ssl is not used; Flower has it in flower-superlink --ssl-certfile" in caplog.text
    assert "signds" not in caplog.text
    assert run.rounds == 25
    told = {"local-epochs": 20, "batch-size": 32, "learning-rate": 0.01}
    assert dict(run.train_config()) == told
    strategy: Any = run.training()
    assert (strategy.min_train_nodes, strategy.min_available_nodes) == (2, 2)
    assert 0.0 < strategy.fraction_train * 2**32 < 1.0
    with pytest.raises(TypeError, match="min_train_nodes is given by the configuration file"):
        run.training(min_train_nodes=3)


def test_secure_aggregation_is_refused_in_one_sentence(tmp_path: Path) -> None:
    for name in ("encrypt_train_type", "encrypt_type"):
        encrypt = {name: "pw_encrypt"}
        with pytest.raises(ConfigError) as refused:
            load_config(written(tmp_path, {**HORIZONTAL, "encrypt": encrypt}))
        (line,) = str(refused.value).splitlines()
        assert f"encrypt.{name} must be another type: PW_ENCRYPT is secure aggregation" in line


def test_not_eval_asks_for_no_evaluation(tmp_path: Path) -> None:
    unsupervised = {"unsupervised": {"eval_type": "NOT_EVAL"}}
    run = from_config(written(tmp_path, {**HORIZONTAL, **unsupervised}))
    assert not run.evaluates
    run.strategy()


def test_not_eval_lets_no_raw_reply_out_either(tmp_path: Path) -> None:
    content = {
        "encrypt": {"encrypt_train_type": "SIGNDS", "privacy_eval_type": "NOT_ENCRYPT"},
        "unsupervised": {"eval_type": "NOT_EVAL"},
    }
    run = from_config(written(tmp_path, content))
    strategy: Any = run.strategy()
    assert strategy.fraction_evaluate == 0.0
    (mod,) = run.client_mods()
    assert isinstance(mod, LdpMod)


def test_one_client_is_enough_where_the_file_says_so(tmp_path: Path) -> None:
    content = {**HORIZONTAL, "round": {"start_fl_job_threshold": 1}}
    strategy: Any = from_config(written(tmp_path, content)).strategy(classes=10)
    assert strategy._least == 1
    assert strategy._available == 1


def test_a_snippet_of_the_score_alone_loads_and_builds_nothing(tmp_path: Path) -> None:
    run = from_config(written(tmp_path, {"unsupervised": {"eval_type": "silhouette_score"}}))
    with pytest.raises(ConfigError, match="the published default, NOT_ENCRYPT, sends raw updates"):
        run.strategy()


def test_a_party_has_its_epsilons(tmp_path: Path) -> None:
    read = load_vertical_config(written(tmp_path, VERTICAL))
    section = read.embedding(width=64)
    assert (section.eps, section.width, section.label_eps) == (5.0, 64, 1.0)
    assert (read.labels(2).eps, read.labels(2).categories) == (1.0, 2)
    bare = load_vertical_config(written(tmp_path, {"privacy": {}}))
    assert bare.epochs is None
    with pytest.raises(ValueError, match=r"no privacy\.embedding_dp"):
        bare.embedding(64)
    with pytest.raises(ValueError, match=r"no privacy\.label_dp"):
        bare.labels(2)

"""Fields of MindSpore Federated's files beside ``encrypt``: what they become here.

A field is mapped, or named with where Flower has the same. A misspelt one is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Field, create_model

from flower_ldp.yaml_source import Section, interval

_SECONDS = "strategy.start(timeout=) and grid_with_deadlines, in seconds"
_FLOWER_TLS = "flower-superlink --ssl-certfile, --ssl-keyfile and --ssl-ca-certfile"
_IN_THE_APP = "in the app's own code"


def elsewhere(told: str) -> Any:
    """Return a field that is read and not used, with where Flower has it."""
    return Field(default=None, description=told)


def told_elsewhere(section: Section, within: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each given field that is not used, and where Flower has it."""
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{within}{name}"
        if name in section.model_fields_set and field.description is not None:
            yield path, field.description
        elif isinstance(value, Section):
            yield from told_elsewhere(value, f"{path}.")


def _unused(name: str, fields: str) -> Any:
    """Return a section with these fields, of any values."""
    known: Any = dict.fromkeys(fields.split(), (Any, None))
    return create_model(name, __base__=Section, **known) | None


_Cache = _unused(
    "distributed_cache",
    "type address plugin_lib_path cacert_filename capath cert_filename private_key_filename "
    "server_name",
)
_Ssl = _unused(
    "ssl",
    "ca_cert_path cert_expire_warning_time_in_day cipher_list client_cert_path crl_path "
    "server_cert_path",
)
_Summary = _unused(
    "summary",
    "continuous_failure_times data_rate_dir failure_event_file metrics_file "
    "participation_time_level",
)
_Verify = _unused(
    "client_verify",
    "equip_crl_path pki_verify replay_attack_time_diff root_first_ca_path root_second_ca_path",
)
_Compression = _unused(
    "compression", "upload_compress_type upload_sparse_rate download_compress_type"
)


class RoundConfig(Section):
    """The ``round`` section.

    Parameters
    ----------
    start_fl_job_threshold : int, optional
        Clients that a round asks; it waits for as many.
    """

    start_fl_job_threshold: Annotated[int, interval("[1, inf)", int)] | None = None
    update_model_ratio: Annotated[float, interval("(0, 1]")] | None = elsewhere(
        "nowhere: a round uses all replies until its timeout, since their clients paid for them"
    )
    start_fl_job_time_window: Any = elsewhere(_SECONDS)
    update_model_time_window: Any = elsewhere(_SECONDS)
    global_iteration_time_window: Any = elsewhere(_SECONDS)


class ClientConfig(Section):
    """The ``client`` section: what the server tells clients about their training.

    Parameters
    ----------
    client_epoch_num, client_batch_size : int, optional
        Passes over a client's data, and examples of a step.
    client_learning_rate : float, optional
        Rate of a client's training.
    """

    client_epoch_num: Annotated[int, interval("[1, inf)", int)] | None = None
    client_batch_size: Annotated[int, interval("[1, inf)", int)] | None = None
    client_learning_rate: Annotated[float, interval("(0, inf)")] | None = None
    connection_num: Any = elsewhere("flower-superlink, which limits no connections")
    http_url_prefix: Any = elsewhere("flower-supernode --superlink")

    def train_config(self) -> dict[str, int | float]:
        """Return the fields of Flower's ``train_config``, by the names of its templates."""
        named = {
            "local-epochs": self.client_epoch_num,
            "batch-size": self.client_batch_size,
            "learning-rate": self.client_learning_rate,
        }
        return {name: value for name, value in named.items() if value is not None}


class HorizontalFile(Section):
    """Outermost fields of a cross-device file."""

    round: RoundConfig = RoundConfig()
    client: ClientConfig = ClientConfig()
    fl_name: Any = elsewhere("[project] name of the app's pyproject.toml")
    server_mode: Any = elsewhere("the app: a ServerApp that trains too is HYBRID_TRAINING")
    enable_ssl: Any = elsewhere(f"{_FLOWER_TLS}; TLS is on without --insecure")
    ssl: _Ssl = elsewhere(_FLOWER_TLS)  # type: ignore[valid-type]
    distributed_cache: _Cache = elsewhere(  # type: ignore[valid-type]
        "flower-superlink --database"
    )
    client_verify: _Verify = elsewhere(  # type: ignore[valid-type]
        "flower-superlink --enable-supernode-auth"
    )
    summary: _Summary = elsewhere(  # type: ignore[valid-type]
        "the strategy's metrics and flower-superlink --log-file"
    )
    compression: _Compression = elsewhere(  # type: ignore[valid-type]
        "nowhere: private reports are short, and Flower compresses no models"
    )


class VerticalFile(Section):
    """Outermost fields of a split-learning file: networks and optimizers are the app's code."""

    role: Any = elsewhere("the two apps of examples/split-digits: parties, and a server")
    model: Any = elsewhere(_IN_THE_APP)
    opts: Any = elsewhere(_IN_THE_APP)
    grad_scalers: Any = elsewhere(_IN_THE_APP)
    dataset: Any = elsewhere(_IN_THE_APP)
    hyper_parameters: dict[str, Any] | None = elsewhere("the app's run configuration")
    ckpt_path: Any = elsewhere(_IN_THE_APP)
    network: Any = elsewhere("flower-supernode --superlink, flower-superlink --host and --port")

"""The apps of a folder, with the configuration that its pyproject.toml gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

from flower_ldp.errors import ConfigError
from flower_ldp.simulation.origins import Origins


@dataclass(frozen=True)
class FolderApp:
    """An app as ``flwr run`` would start it.

    Parameters
    ----------
    server, client : ServerApp and ClientApp
        Loaded.
    run_config : mapping
        The folder's, with what was overridden.
    """

    server: ServerApp
    client: ClientApp
    run_config: Mapping[str, bool | float | int | str]


def load_folder(
    folder: str | Path, overrides: Mapping[str, bool | float | int | str] | None = None
) -> FolderApp:
    """Load the apps that a folder's pyproject.toml names.

    Parameters
    ----------
    folder : path-like
        Holds the pyproject.toml.
    overrides : mapping, optional
        Of the run's configuration; only keys that the file has.

    Raises
    ------
    ConfigError
        If there is no such file, it is not an app's, what it names are no apps, or an override
        has another key; or if Python would take a module of the app from another folder, or as it
        was before its file was changed.
    """
    folder = Path(folder)
    try:
        components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
        config = get_fused_config_from_dir(folder, dict(overrides or {}))
        names = components["serverapp"], components["clientapp"]
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    except KeyError as error:  # Flower also has folders of other kinds of apps
        raise ConfigError(f"{folder}: its pyproject.toml names no {error.args[0]}") from error
    origins = Origins.of(folder, (name.partition(":")[0] for name in names))
    origins.check()
    server, client = (load_app(name, ConfigError, folder) for name in names)
    origins.check_places()
    origins.remember()
    if not isinstance(server, ServerApp) or not isinstance(client, ClientApp):
        raise ConfigError(
            f"{folder}: {names[0]} and {names[1]} must be a ServerApp and a ClientApp, got "
            f"{type(server).__name__} and {type(client).__name__}"
        )
    return FolderApp(server, client, config)

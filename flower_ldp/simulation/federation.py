"""What ``flwr run`` would take for an app's run: settings of its command line and its federation.

Flower's own parsers read them. Nothing is written: ``flwr run`` makes a configuration file where
there is none and moves old federations from an app's pyproject.toml into it; here they are only
read, and count for as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from flwr.cli.flower_config import parse_superlink_connection, read_flower_config
from flwr.cli.typing import SuperLinkConnection, SuperLinkSimulationOptions
from flwr.common.config import get_project_config, parse_config_args
from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG
from flwr.supercore.utils import get_flwr_home, simulation_config_from_json

from flower_ldp.errors import ConfigError, quoted

#: What the simulation takes from a federation; the rest is about Flower's engine.
_USED = ("num-supernodes", "verbose")


@dataclass(frozen=True)
class Federation:
    """How large a simulated federation is, and who says so.

    Parameters
    ----------
    nodes : int
        How many nodes; at least 1.
    source : str
        Where the number is from, in words.
    verbose : bool
        Whether Flower's log shall show details.
    unused : tuple of str
        Settings that are made and mean nothing in one process, as ``client-resources-num-cpus``.
    """

    nodes: int
    source: str
    verbose: bool = False
    unused: tuple[str, ...] = ()


def read_settings(items: Sequence[str]) -> dict[str, bool | float | int | str]:
    """Read settings as ``flwr run --run-config`` does.

    Parameters
    ----------
    items : sequence of str
        Each ``KEY=VALUE``, or several of them with spaces between, or one name of a TOML file. A
        value is TOML: a text has quotation marks.

    Raises
    ------
    ConfigError
        If an item is nothing of this, a number does not fit into a message, or the file cannot be
        read.
    """
    for item in items:
        if "=" not in item and not item.endswith(".toml"):
            raise ConfigError(f"a setting is KEY=VALUE or the name of a .toml file, got {item!r}")
    try:
        found = dict(parse_config_args(list(items)))
    except click.ClickException as error:
        raise ConfigError(f"{' '.join(items)}: {error.format_message()}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{' '.join(items)}: {error}") from error
    for name, value in found.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{name}: {value} does not fit into 64 bits")
    return found


def find_federation(
    folder: Path, connection: str | None = None, overrides: Sequence[str] = ()
) -> Federation:
    """Return the federation that ``flwr run`` would simulate for an app's folder.

    Looked at, and the first that there is counts as a whole: ``overrides``; the options of the
    connection, in the app's pyproject.toml or in Flower's configuration file; Flower's default.

    Parameters
    ----------
    folder : Path
        The app's.
    connection : str, optional
        Its name among those of the two files; else the one that they call the default.
    overrides : sequence of str
        As ``flwr run --federation-config`` takes them.

    Raises
    ------
    ConfigError
        If a file or a setting is not valid, or there is no such connection.
    """
    found = _connection(folder, connection)
    if overrides:
        settings = read_settings(overrides)
        federation = _federation(settings, "--federation-config")
        try:
            simulation_config_from_json({k.replace("-", "_"): v for k, v in settings.items()})
        except (TypeError, ValueError) as error:
            raise ConfigError(f"federation-config: {error}") from error
        return federation
    if found is not None and found.options is not None:
        return _federation(dict(_flat(found.options)), f"connection {found.name!r}")
    return _federation({}, "")


def _federation(settings: Mapping[str, Any], source: str) -> Federation:
    nodes = settings.get("num-supernodes")
    if nodes is None:
        nodes, source = DEFAULT_SIMULATION_CONFIG.num_supernodes, "Flower's default"
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"num-supernodes must be an integer of at least 1, got {quoted(nodes)}")
    unused = tuple(name for name in settings if name not in _USED)
    return Federation(nodes, source, bool(settings.get("verbose", False)), unused)


def _flat(options: SuperLinkSimulationOptions) -> Iterator[tuple[str, Any]]:
    """Yield what a connection's options set, by the names that the command line has for it."""
    yield "num-supernodes", options.num_supernodes
    if options.verbose is not None:
        yield "verbose", options.verbose
    if options.backend is not None:
        backend = asdict(options.backend)
        for group in ("client_resources", "init_args"):
            for name, value in (backend[group] or {}).items():
                if value is not None:
                    yield f"{group}_{name}".replace("_", "-"), value
        if options.backend.name != DEFAULT_SIMULATION_CONFIG.backend:
            yield "backend", options.backend.name


def _connection(folder: Path, name: str | None) -> SuperLinkConnection | None:
    """Return a connection of the two files, or None if they name no default."""
    known = _connections(folder)
    name = known.get("default") if name is None else name
    if name is None:
        return None
    if name == "default" or not isinstance(known.get(name), dict):
        names = ", ".join(sorted(key for key, one in known.items() if isinstance(one, dict)))
        raise ConfigError(f"there is no connection {quoted(name)}; there are: {names or 'none'}")
    try:
        return parse_superlink_connection(known[name], name)
    except ValueError as error:
        raise ConfigError(f"connection {name!r}: {error}") from error


def _connections(folder: Path) -> dict[str, Any]:
    """Return the connections of Flower's file and, over them, of the app's pyproject.toml."""
    found: dict[str, Any] = {}
    try:
        if (get_flwr_home() / "config.toml").is_file():
            found |= read_flower_config()[0].get("superlink", {})
        old = get_project_config(folder)["tool"]["flwr"].get("federations", {})
    except click.ClickException as error:
        raise ConfigError(error.format_message()) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(str(error)) from error
    for name, one in old.items():
        found[name] = one
        if isinstance(one, dict):  # nothing is connected to, so certificates need not be there
            kept = {key: value for key, value in one.items() if key != "root-certificates"}
            found[name] = {"address": ":local:", **kept}
    return found

"""The apps of a folder, with the configuration of its pyproject.toml.

Python keeps one module per name, so a process could take modules of another folder's app, or old
versions: an app without its gate, for example. Both are refused, for all modules that the app's
files import by a literal name. Command line and federations are read by Flower's own parsers.
Nothing is written.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
from flwr.cli.flower_config import parse_superlink_connection, read_flower_config
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_dir, get_project_config, parse_config_args
from flwr.serverapp import ServerApp
from flwr.supercore.constant import DEFAULT_SIMULATION_CONFIG
from flwr.supercore.object_ref import load_app
from flwr.supercore.utils import get_flwr_home, simulation_config_from_json

from flower_ldp.errors import ConfigError, quoted


@dataclass(frozen=True)
class _Origin:
    file: Path
    code: bytes
    is_loaded: bool


#: Of modules of apps that were loaded.
_known: dict[str, _Origin] = {}
#: Folders that apps were loaded from, which are on Python's path since.
_folders: set[Path] = set()


def modules_of(folder: Path, names: Iterable[str]) -> dict[str, Path | None]:
    """Return the modules that an app names, each with its file in the folder, or None."""
    files: dict[str, Path | None] = {}
    waiting = list(names)
    while waiting:
        parts = waiting.pop().split(".")
        for name in (".".join(parts[: end + 1]) for end in range(len(parts))):
            if name not in files:
                found = files[name] = _file(folder, name)
                if found is not None:
                    waiting.extend(_imported(name, found))
    return files


def _check_loaded(folder: Path, files: Mapping[str, Path | None]) -> None:
    for name, file in files.items():
        loaded = _loaded(name)
        if file is not None:
            if name in sys.modules and not _is_same(name, loaded, file):
                _refuse(folder, name, "was loaded before, from", loaded)
        elif loaded is not None:
            others = (_file(other, name) for other in _folders - {folder})
            if any(found is not None and found.resolve() == loaded for found in others):
                _refuse(folder, name, "is not in it, and was loaded before, from", loaded)


def _check_known(folder: Path, files: Mapping[str, Path | None]) -> None:
    for name, file in files.items():
        known = _known.get(name)
        if file is None or known is None or (known.is_loaded and name not in sys.modules):
            continue  # or somebody has dropped the module, to have it loaded anew
        if known.code == file.read_bytes():
            continue  # a copy of the same file too: whichever is loaded first is both apps'
        if known.file != file.resolve():
            _refuse(folder, name, "is also in an app that was loaded before, from", known.file)
        if name in sys.modules:
            raise ConfigError(f"{file} was changed after it was loaded: start another process")


def _remember(folder: Path, files: Mapping[str, Path | None]) -> None:
    _folders.add(folder)
    for name, file in files.items():
        if file is not None:
            place = _loaded(name) or file.resolve()  # of a copy, the one that is loaded
            _known[name] = _Origin(place, file.read_bytes(), name in sys.modules)


def _refuse(folder: Path, name: str, why: str, where: Path | None) -> NoReturn:
    place = "Python itself" if where is None else where.parent
    raise ConfigError(
        f"{folder}: a module {name} {why} {place}: run the two apps in two processes, as by "
        "'flower-ldp simulate', or rename the modules of one"
    )


def _file(folder: Path, name: str) -> Path | None:
    """Return the file of a module, or None for a folder without ``__init__.py``."""
    place = folder.joinpath(*name.split("."))
    for file in (place / "__init__.py", place.parent / f"{place.name}.py"):
        if file.is_file():
            return file
    return None


def _loaded(name: str) -> Path | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _is_same(name: str, loaded: Path | None, file: Path) -> bool:
    if loaded == file.resolve():
        return True
    if loaded is None or not loaded.is_file():
        return False
    known = _known.get(name)
    # Of a module that no app was remembered with, what its file is now is all there is to see.
    was = known.code if known is not None and known.file == loaded else loaded.read_bytes()
    return was == file.read_bytes()


def _imported(name: str, file: Path) -> Iterator[str]:
    """Yield the imports of a module's code and possible submodules, but for Python's own."""
    with suppress(SyntaxError, ValueError):  # who loads it is told
        package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                found = [f"{base}.{alias.name}" for alias in node.names] if base else []
            else:
                continue
            yield from (one for one in found if one.split(".")[0] not in sys.stdlib_module_names)


@dataclass(frozen=True)
class FolderApp:
    """An app as ``flwr run`` would start it, with the folder's configuration and overrides."""

    server: ServerApp
    client: ClientApp
    run_config: Mapping[str, bool | float | int | str]


def read_project(
    folder: Path, overrides: Mapping[str, bool | float | int | str] | None = None
) -> tuple[tuple[str, str], Mapping[str, bool | float | int | str]]:
    """Return the names of server app and client app, and the run's configuration, of a folder.

    ConfigError without them. Nothing is imported.
    """
    try:
        with _by_flower(f"{folder}: "):
            components = get_project_config(folder)["tool"]["flwr"]["app"]["components"]
            config = get_fused_config_from_dir(folder, dict(overrides or {}))
        return (components["serverapp"], components["clientapp"]), config
    except KeyError as error:  # Flower also has folders of other kinds of apps
        raise ConfigError(f"{folder}: its pyproject.toml names no {error.args[0]}") from error


def load_folder(
    folder: str | Path, overrides: Mapping[str, bool | float | int | str] | None = None
) -> FolderApp:
    """Load the apps that a folder's pyproject.toml names.

    ``overrides`` are values of existing keys of the run's configuration.

    Raises
    ------
    ConfigError
        If the file is missing, or is not an app's; if its names are not apps, or an override has
        another key; if Python would take a module of the app from another folder or from before a
        change.
    """
    folder = Path(folder)
    names, config = read_project(folder, overrides)
    place = folder.resolve()
    files = modules_of(place, (name.partition(":")[0] for name in names))
    _check_loaded(place, files)
    _check_known(place, files)
    server, client = (load_app(name, ConfigError, folder) for name in names)
    _check_loaded(place, files)
    _remember(place, files)
    if not isinstance(server, ServerApp) or not isinstance(client, ClientApp):
        raise ConfigError(
            f"{folder}: {names[0]} and {names[1]} must be a ServerApp and a ClientApp, got "
            f"{type(server).__name__} and {type(client).__name__}"
        )
    return FolderApp(server, client, config)


@dataclass(frozen=True)
class Federation:
    """The size of a simulated federation, and the source of the number in words.

    ``verbose`` is for details in Flower's log. ``unused`` are settings without effect in one
    process.
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
        Each ``KEY=VALUE``, several of them with spaces between, or one name of a TOML file. A value
        is TOML: a text has quotation marks.

    Raises
    ------
    ConfigError
        If an item is none of these, a number does not fit into a message, or the file cannot be
        read.
    """
    for item in items:
        if "=" not in item and not item.endswith(".toml"):
            raise ConfigError(f"a setting is KEY=VALUE or the name of a .toml file, got {item!r}")
    with _by_flower(f"{' '.join(items)}: "):
        found = dict(parse_config_args(list(items)))
    for name, value in found.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"{name}: {value} does not fit into 64 bits")
    return found


def find_federation(
    folder: Path, connection: str | None = None, overrides: Sequence[str] = ()
) -> Federation:
    """Return the federation that ``flwr run`` would simulate for an app's folder.

    The first that exists: ``overrides``, as ``flwr run --federation-config`` takes them; the
    options of ``connection``, or the default one, in pyproject.toml or Flower's configuration;
    Flower's default.

    Raises
    ------
    ConfigError
        If a file or a setting is not valid, or the connection does not exist.
    """
    settings, source = _of_connection(folder, connection)
    if overrides:
        settings, source = read_settings(overrides), "--federation-config"
    nodes = settings.get("num-supernodes")
    if nodes is None:
        nodes, source = DEFAULT_SIMULATION_CONFIG.num_supernodes, "Flower's default"
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"num-supernodes must be an integer of at least 1, got {quoted(nodes)}")
    if overrides:
        with _by_flower("federation-config: "):
            simulation_config_from_json({k.replace("-", "_"): v for k, v in settings.items()})
    unused = tuple(name for name in settings if name not in ("num-supernodes", "verbose"))
    return Federation(nodes, source, bool(settings.get("verbose")), unused)


@contextmanager
def _by_flower(what: str = "") -> Iterator[None]:
    """Turn exceptions of Flower's parsers into ConfigError, with the source first."""
    try:
        yield
    except (click.ClickException, OSError, TypeError, ValueError) as error:
        told = error.format_message() if isinstance(error, click.ClickException) else str(error)
        # Flower's lists of mistakes have several lines.
        raise ConfigError(what + " ".join(map(str.strip, told.splitlines()))) from error


def _flat(options: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, dict):
            yield from _flat(value, "" if name == "backend" else f"{name}-")
        elif value is not None and (name, value) != ("name", DEFAULT_SIMULATION_CONFIG.backend):
            yield "backend" if name == "name" else f"{group}{name}".replace("_", "-"), value


def _of_connection(folder: Path, name: str | None) -> tuple[dict[str, Any], str]:
    known: dict[str, Any] = {}
    with _by_flower():
        if (get_flwr_home() / "config.toml").is_file():
            known |= read_flower_config()[0].get("superlink", {})
        old = get_project_config(folder)["tool"]["flwr"].get("federations", {})
    for key, one in old.items():
        known[key] = one
        if isinstance(one, dict):  # nothing is connected to, so certificates need not be there
            known[key] = {"address": ":local:", **one}
            known[key].pop("root-certificates", None)
    name = known.get("default") if name is None else name
    if name is None:
        return {}, ""
    if name == "default" or not isinstance(known.get(name), dict):
        names = ", ".join(sorted(key for key, one in known.items() if isinstance(one, dict)))
        raise ConfigError(f"there is no connection {quoted(name)}; there are: {names or 'none'}")
    with _by_flower(f"connection {name!r}: "):
        options = parse_superlink_connection(known[name], name).options
    return dict(_flat(asdict(options))) if options else {}, f"connection {name!r}"

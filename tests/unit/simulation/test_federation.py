"""The federation that ``flwr run`` would simulate, from the same files and by the same parsers."""

from __future__ import annotations

from pathlib import Path

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.simulation import Federation, find_federation, read_settings

PROJECT = """\
[project]
name = "small"
version = "1.0.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "small:server"
clientapp = "small:client"
"""
FLOWER = """\
[superlink]
default = "local"
[superlink.local]
address = ":local:"
[superlink.large]
options.num-supernodes = 70
options.verbose = true
options.backend.client-resources.num-cpus = 1
options.backend.init-args.num-gpus = 2
[superlink.far]
address = "10.0.0.1:9093"
"""
#: As Flower wrote them before it had a file of its own.
OLD = """
[tool.flwr.federations]
default = "old"
[tool.flwr.federations.old]
options.num-supernodes = 30
[tool.flwr.federations.remote]
address = "10.0.0.1:9093"
root-certificates = "certificates/ca.crt"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "flower"
    monkeypatch.setenv("FLWR_HOME", str(home))
    home.mkdir()
    (home / "config.toml").write_text(FLOWER)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    return tmp_path


def test_options_of_a_connection_say_how_many(folder: Path) -> None:
    unused = ("client-resources-num-cpus", "init-args-num-gpus")
    assert find_federation(folder, "large") == Federation(70, "connection 'large'", True, unused)


@pytest.mark.parametrize("connection", [None, "local", "far"])
def test_else_it_is_flowers_default(connection: str | None, folder: Path) -> None:
    assert find_federation(folder, connection) == Federation(2, "Flower's default")


def test_the_command_line_counts_as_a_whole(folder: Path) -> None:
    """As in ``flwr run``: with it, the options of the connection count for nothing."""
    found = find_federation(folder, "large", ["num-supernodes=5", "init-args-num-cpus=3"])
    assert found == Federation(5, "--federation-config", False, ("init-args-num-cpus",))
    assert find_federation(folder, "large", ["verbose=true"]).nodes == 2


def test_an_old_apps_own_federations_come_first_and_stay_where_they_are(folder: Path) -> None:
    project = folder / "pyproject.toml"
    project.write_text(PROJECT + OLD)
    assert find_federation(folder) == Federation(30, "connection 'old'")
    assert find_federation(folder, "remote").nodes == 2
    assert find_federation(folder, "large").nodes == 70
    assert project.read_text() == PROJECT + OLD
    assert (folder / "flower" / "config.toml").read_text() == FLOWER


def test_nothing_is_written_where_flower_has_no_file(folder: Path) -> None:
    (folder / "flower" / "config.toml").unlink()
    assert find_federation(folder).nodes == 2
    assert list((folder / "flower").iterdir()) == []


@pytest.mark.parametrize(
    ("flower", "connection", "complaint"),
    [
        ("[superlink", None, "valid TOML"),
        (FLOWER, "near", "no connection 'near'; there are: far, large, local"),
        (FLOWER, "default", "no connection 'default'"),
        (FLOWER.replace("70", '"many"'), "large", "num-supernodes must be an integer"),
        (FLOWER.replace("70", "0"), "large", "at least 1, got 0"),
    ],
)
def test_a_wrong_file_is_told(
    flower: str, connection: str | None, complaint: str, folder: Path
) -> None:
    (folder / "flower" / "config.toml").write_text(flower)
    with pytest.raises(ConfigError, match=complaint):
        find_federation(folder, connection)


def test_a_wrong_setting_of_the_federation_is_told(folder: Path) -> None:
    for setting in ("num-supernodes=0", "num-supernodes=true", "num-supernodes=1.5", "nodes=3"):
        with pytest.raises(ConfigError, match=setting.partition("=")[0]):
            find_federation(folder, None, [setting])


def test_settings_are_toml(tmp_path: Path) -> None:
    settings = read_settings(["a=1 b=2.5", 'c="x y"', "d=true"])
    assert settings == {"a": 1, "b": 2.5, "c": "x y", "d": True}
    file = tmp_path / "run.toml"
    file.write_text("a = 1\n[b]\nc = 2\n")
    assert read_settings([str(file)]) == {"a": 1, "b.c": 2}
    assert read_settings([]) == {}


@pytest.mark.parametrize("items", [["a=b"], ["a"], ["a=1", "run.toml"], ["/nowhere/run.toml"]])
def test_wrong_settings_are_told(items: list[str]) -> None:
    with pytest.raises(ConfigError, match=items[-1].replace(".", r"\.")):
        read_settings(items)

"""That a folder's app is the one of its files, whatever was loaded before."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flower_ldp.errors import ConfigError
from flower_ldp.simulation import apps, load_folder

PROJECT = """
[project]
name = "app"
version = "1.0.0"

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"
"""
APP = """
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
server, client = ServerApp(), ClientApp()
"""
Made = Callable[..., Path]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Return what makes an app's folder, whose modules are forgotten in the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(apps, "_known", {})
    monkeypatch.setattr(apps, "_folders", set())

    def make(name: str, module: str, **files: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pyproject.toml").write_text(PROJECT.format(module=module))
        for key, text in files.items():
            file = folder / f"{key}.py"
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        return folder

    before = set(sys.modules)
    yield make
    for name in {one for one in sys.modules if one.startswith("of_")} - before:
        del sys.modules[name]


@pytest.mark.parametrize("module", ["of_app", "of_space.app"])
def test_apps_of_one_name_are_told_apart(made: Made, module: str) -> None:
    """Python makes one package of both folders, with the modules of the first."""
    file = module.replace(".", "/")
    first = made("plain", module, **{file: APP})
    second = made("private", module, **{file: f"{APP}# another\n"})
    found = load_folder(first)
    assert load_folder(first).client is found.client
    with pytest.raises(ConfigError, match=rf"{module} was loaded before, from .*plain"):
        load_folder(second)


@pytest.mark.parametrize("lazily", [False, True])
def test_a_helper_that_another_folder_has_too_is_refused(made: Made, lazily: bool) -> None:
    use = "def work():\n    import of_task\n" if lazily else "import of_task\n"
    load_folder(made("plain", "of_one", of_one=use + APP, of_task="clip = None"))
    second = made("private", "of_two", of_two=use + APP, of_task="clip = 1.0")
    with pytest.raises(ConfigError, match=r"a module of_task .* before, from .*plain"):
        load_folder(second)
    assert str(second) not in sys.path


@pytest.mark.parametrize("wanted", ["of_one", "of_two"])
def test_a_module_that_only_another_folder_has_is_refused(made: Made, wanted: str) -> None:
    load_folder(made("plain", "of_one", of_one=APP))
    second = made("private", wanted, of_two=f"import of_one\n{APP}")
    with pytest.raises(ConfigError, match=r"of_one is not in it, .* from .*plain"):
        load_folder(second)


def test_a_relative_import_is_followed(made: Made) -> None:
    files = {"__init__": "", "app": f"from . import task\n{APP}", "task": ""}
    folder = made("one", "of_pack.app", **{f"of_pack/{key}": files[key] for key in files})
    load_folder(folder)
    (folder / "of_pack" / "task.py").write_text("clip = 1.0")
    with pytest.raises(ConfigError, match=r"task.py was changed after it was loaded"):
        load_folder(folder)


def test_an_app_that_was_changed_since_is_refused(made: Made) -> None:
    folder = made("one", "of_app", of_app=APP)
    found = load_folder(folder).client
    assert load_folder(folder).client is found
    (folder / "of_app.py").write_text(f"gate = True\n{APP}")
    with pytest.raises(ConfigError, match=r"of_app.py was changed after it was loaded"):
        load_folder(folder)
    del sys.modules["of_app"]
    assert load_folder(folder).client is not found


def test_a_copy_of_the_same_files_is_the_same_app(made: Made) -> None:
    """As examples copy their folder, to run it with another of its clients."""
    files = {"of_task": "clip = 1.0", "of_plain": f"import of_task\n{APP}"}
    first = load_folder(made("plain", "of_plain", **files, of_app=APP))
    second = load_folder(made("private", "of_app", **files, of_app=APP))
    assert second.client is not first.client
    assert load_folder(made("again", "of_plain", **files)).client is first.client
    changed = made("changed", "of_plain", **{**files, "of_task": "clip = None"})
    with pytest.raises(ConfigError, match=r"of_task was loaded before, from .*plain"):
        load_folder(changed)


def test_another_client_of_a_copied_package_is_loaded_from_the_copy(made: Made) -> None:
    files = {"of_both/__init__": "", "of_both/plain": APP, "of_both/guarded": APP}
    load_folder(made("copied", "of_both.plain", **files))
    load_folder(made("own", "of_both.guarded", **files))
    files["of_both/guarded"] = f"{APP}# another\n"
    with pytest.raises(ConfigError, match=r"of_both.guarded was loaded before, from .*copied"):
        load_folder(made("changed", "of_both.guarded", **files))


def test_a_module_that_was_dropped_may_be_another_folders(made: Made) -> None:
    first, second = (made(name, "of_app", of_app=APP) for name in ("one", "two"))
    found = load_folder(first).client
    del sys.modules["of_app"]
    assert load_folder(second).client is not found


def test_links_and_spellings_of_one_folder_are_one(made: Made, tmp_path: Path) -> None:
    folder = made("one", "of_app")
    (tmp_path / "shared.py").write_text(APP)
    os.symlink(tmp_path / "shared.py", folder / "of_app.py")
    os.symlink(folder, tmp_path / "linked")
    found = load_folder(folder).client
    for spelled in (tmp_path / "linked", folder / ".." / "one"):
        assert load_folder(spelled).client is found

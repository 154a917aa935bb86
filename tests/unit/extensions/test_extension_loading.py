"""What is allowed is loaded, from the bytes that were hashed; of all else nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from flower_ldp.audit import Case, audit_case, of_updates
from flower_ldp.errors import ConfigError
from flower_ldp.extensions import Allowed, Extension, load_extension, loading, never_load
from flower_ldp.mechanisms import RandomSource
from tests.extension_world import DISTRIBUTION, NAME, TEMPLATE, VERSION, Installed

#: Shows that it was run.
LOUD = "import sys\nsys.modules['one_bit_was_run'] = sys\n"


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loading, "_loaded", {})
    monkeypatch.setattr(loading, "_never", [])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield
    sys.modules.pop("one_bit_was_run", None)


def allowed(installed: Installed, **other: str) -> Allowed:
    return replace(Allowed(NAME, DISTRIBUTION, VERSION, installed.digest), **other)


def loud(site: Path, **more: str) -> Installed:
    made = Installed(site)
    own = made.files["one_bit/mechanism.py"]
    head = "from __future__ import annotations\n"
    files = {**made.files, "one_bit/mechanism.py": own.replace(head, head + LOUD)}
    return replace(made, files={**files, **more}).write()


def test_what_is_allowed_is_loaded_once_and_not_under_its_name(tmp_path: Path) -> None:
    installed = loud(tmp_path)
    extension = load_extension(allowed(installed), installed.path)
    assert isinstance(extension, Extension)
    assert extension.name == NAME
    assert "one_bit_was_run" in sys.modules
    assert load_extension(allowed(installed), []) is extension
    assert "one_bit" not in sys.modules


def test_an_extension_is_audited_as_the_mechanisms_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    installed = Installed(tmp_path).write()
    extension = load_extension(allowed(installed), installed.path)
    case = of_updates(extension.chosen(2.0).sized(20), 20)
    seeds = count(1)

    def refuted(tried: Case) -> bool:
        results = audit_case(
            tried, 400, confidence=1 - 1e-6, sources=lambda: RandomSource.seeded(next(seeds))
        )
        assert results[0].check == "opposite directions"
        return any(result.refuted for result in results)

    assert case.mechanism == "one_bit (epsilon 2, delta 0, length 5, d 20)"
    assert not refuted(case)
    assert refuted(replace(case, epsilon=0.5))


NAMES = ("other_bit", "\uff4fne_bit", "ONE_BIT", "signds", "laplace_2")
OTHERS: list[dict[str, str]] = [{"version": "0.1"}, {"version": "0.1.0 "}]
OTHERS += [{"digest": "sha256:" + "0" * 64}, {"distribution": "two-bits"}]
OTHERS += [{"name": name} for name in NAMES]


@pytest.mark.parametrize("other", OTHERS)
def test_of_what_is_not_allowed_nothing_is_run(tmp_path: Path, other: dict[str, str]) -> None:
    installed = loud(tmp_path)
    if other.get("name") == "signds":  # refused though the distribution has it
        replace(installed, entry=installed.entry.replace(NAME + " ", "signds ")).write()
    wanted = allowed(installed, **other)
    with pytest.raises(ConfigError):
        load_extension(wanted, installed.path)
    assert "one_bit_was_run" not in sys.modules


def test_other_bytes_than_those_allowed_are_not_run(tmp_path: Path) -> None:
    installed = loud(tmp_path)
    before, source = allowed(installed), tmp_path / "one_bit" / "mechanism.py"
    text = source.read_text()
    source.write_text(text + "# more\n")
    with pytest.raises(ConfigError, match="is allowed"):
        load_extension(before, installed.path)
    source.write_text(text)
    never_load("not here")  # nor any where none are loaded
    with pytest.raises(ConfigError, match="not here"):
        load_extension(before, installed.path)
    assert "one_bit_was_run" not in sys.modules


def test_an_entry_point_that_is_not_named_is_not_imported(tmp_path: Path) -> None:
    installed = Installed(tmp_path)
    entry = f"{installed.entry}loud_bit = one_bit.loud:extension\n"
    files = {**installed.files, "one_bit/loud.py": LOUD}
    replace(installed, files=files, entry=entry).write()
    load_extension(allowed(installed), installed.path)
    assert "one_bit_was_run" not in sys.modules


def test_later_changes_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Installed(tmp_path)
    lazy = "def later() -> object:\n    from . import late\n    return late.VALUE\n"
    own = installed.files["one_bit/mechanism.py"] + lazy
    files = {"__init__": "", "mechanism": own, "late": "VALUE = 'hashed'\n"}
    files = {f"one_bit/{name}.py": text for name, text in files.items()}
    replace(installed, files=files).write()
    wanted = allowed(installed)
    read = loading.read_distribution

    def read_then_change(name: str, path: object = None) -> object:
        found = read(name, installed.path)
        for source in (tmp_path / "one_bit").glob("*.py"):
            source.write_text(LOUD)
        return found

    monkeypatch.setattr(loading, "read_distribution", read_then_change)
    extension = load_extension(wanted)
    assert "one_bit_was_run" not in sys.modules
    later = extension.make.__globals__["later"]  # type: ignore[attr-defined]
    assert later() == "hashed"
    assert "one_bit_was_run" not in sys.modules


def test_an_imported_namesake_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = Installed(tmp_path).write()
    monkeypatch.setitem(sys.modules, "one_bit", sys)
    monkeypatch.setitem(sys.modules, "one_bit.mechanism", sys)
    assert load_extension(allowed(installed), installed.path).name == NAME


@pytest.mark.parametrize(
    "source",
    [
        "raise SystemExit(3)",
        "raise ValueError('private')",
        "import numpy as extension",
        "class Extension: name = 'one_bit'\nextension = Extension()",
        "from . import gone",
        "",
        TEMPLATE["one_bit/mechanism.py"].replace('Extension("one_bit"', 'Extension("two"'),
    ],
)
def test_what_fails_or_is_no_extension_is_refused(tmp_path: Path, source: str) -> None:
    files = {"one_bit/__init__.py": "", "one_bit/mechanism.py": source}
    installed = Installed(tmp_path, files).write()
    before = [*sys.meta_path], set(sys.modules)
    with pytest.raises(ConfigError) as caught:
        load_extension(allowed(installed), installed.path)
    assert "private" not in str(caught.value)
    assert (sys.meta_path, set(sys.modules)) == before


def test_a_single_module_will_do(tmp_path: Path) -> None:
    own = Installed(tmp_path).files["one_bit/mechanism.py"]
    entry = "[flower_ldp.mechanisms]\none_bit = one_bit:extension\n"
    installed = Installed(tmp_path, {"one_bit.py": own}, entry).write()
    assert load_extension(allowed(installed), installed.path).name == NAME

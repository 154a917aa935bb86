"""docs/configuration.md has every field of every section, with its values and its default.

The page has one table for each section, under a heading that is the section's way from the
outermost field, or its own name where several sections have it. What a row must say is made from
the models that read the files, so a field, an interval or a default that changes in one place only
is found here.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import AfterValidator, AliasChoices, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, PydanticUndefined

import flower_ldp.config
from flower_ldp.config import TrainConfig, VerticalConfig
from flower_ldp.yaml_source import Section
from tests.fixtures import ROOT

PAGE = ROOT / "docs" / "configuration.md"
#: Heading of the table of all outermost fields.
FILES = "The files"
#: Sections that several others have, and the ends of their names there.
SHARED = ("server_optimizer", "subspace")


def models() -> list[type[Section]]:
    """Return the sections that the configuration reads."""
    for module in pkgutil.walk_packages(flower_ldp.config.__path__, "flower_ldp.config."):
        importlib.import_module(module.name)
    found = [kind for kind in leaves(Section) if kind.__module__.startswith("flower_ldp.config")]
    return sorted(found, key=lambda kind: kind.__name__)


def leaves(kind: type[Section]) -> Iterator[type[Section]]:
    """Yield the subclasses that have none themselves."""
    for direct in kind.__subclasses__():
        yield from leaves(direct) if direct.__subclasses__() else [direct]


def parts(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and all that it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from parts(part)


def sections_in(field: FieldInfo) -> list[type[Section]]:
    kinds = [part for part in parts(field.annotation) if isinstance(part, type)]
    return [kind for kind in kinds if issubclass(kind, Section)]


def used(model: type[Section]) -> list[tuple[str, FieldInfo]]:
    """Return the fields that mean something here; the description of others says where."""
    return [item for item in model.model_fields.items() if item[1].description is None]


def placed(model: type[Section], way: str) -> Iterator[tuple[str, type[Section]]]:
    """Yield a section and those within it, each with the heading that its table stands under."""
    yield way, model
    for name, field in used(model):
        inner = sections_in(field)
        key = ".NAME" if any(part is str for part in parts(field.annotation)) else ""
        for kind in inner:
            deeper = f"{way}.{name}{key}".lstrip(".")
            yield from placed(kind, next((one for one in SHARED if name.endswith(one)), deeper))


@cache
def expected() -> dict[str, dict[str, tuple[str, str]]]:
    """Return for each heading its fields, and for each field values and default."""
    found = models()
    fields = [field for model in found for field in model.model_fields.values()]
    held = {kind for field in fields for kind in sections_in(field)}
    tables: dict[str, dict[str, tuple[str, str]]] = {}
    for root in found:
        if root not in held:
            for way, model in placed(root, ""):
                table = tables.setdefault(way or FILES, {})
                for name, field in used(model):
                    if name != "kind":
                        table[kind_of(model) + named(name, field)] = cells(field)
    return {way: merged(table) for way, table in tables.items()}


def merged(table: dict[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Return a table with one row for the kinds of a section that have the same field."""
    kinds: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for name, said in table.items():
        kind, _, field = name.rpartition(": ")
        kinds.setdefault((field, said), []).append(kind)
    return {
        f"{', '.join(all_of)}: {field}" if all_of != [""] else field: said
        for (field, said), all_of in kinds.items()
    }


def kind_of(model: type[Section]) -> str:
    """Return how a row of one of several kinds of a section begins."""
    kind = model.model_fields.get("kind")
    return f"`{get_args(kind.annotation)[0]}`: " if kind else ""


def named(name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    others = alias.choices if isinstance(alias, AliasChoices) else []
    return f"`{name}`" + "".join(f" (also `{other}`)" for other in others if other != name)


def wanted(check: BeforeValidator | AfterValidator) -> str:
    """Return what a check says that it wants: "number in (0, 1]"."""
    with pytest.raises(PydanticCustomError) as refused:
        check.func("" if isinstance(check, AfterValidator) else None)  # type: ignore[call-arg]
    text = refused.value.message().removeprefix("must be ")
    return text.removeprefix("an ").removeprefix("a ")


def cells(field: FieldInfo) -> tuple[str, str]:
    """Return what the page must say of a field's values and of its default."""
    every = [*parts(field.annotation), *field.metadata]
    checks = [part for part in every if isinstance(part, BeforeValidator | AfterValidator)]
    literals = [part for part in every if get_origin(part) is Literal]
    words = [f"`{word}`" for part in literals for word in get_args(part)]
    if sections_in(field):
        values = "names to sections" if str in every else "section"
    elif words:
        values = ", ".join(words)
    elif checks:
        values = wanted(checks[0])
        if any(get_origin(part) is list for part in every):
            values = "list of " + values.replace("integer", "integers")
    else:
        assert (bool in every) != (str in every)
        values = "`true`, `false`" if bool in every else "text"
    if NoneType in every:
        values += " or null"
    return values, default(field)


def default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, Section):
        return "its defaults"
    if value is None or value == {}:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if isinstance(value, str) else f"{value:.15g}"


@cache
def shown() -> dict[str, dict[str, tuple[str, str]]]:
    """Return what the page's tables say, in the form of :func:`expected`."""
    tables: dict[str, dict[str, tuple[str, str]]] = {}
    heading = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").replace("`", "")
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(row) >= 3 and heading in expected():
            tables.setdefault(heading, {})[row[0]] = (row[1], row[2])
    return tables


@pytest.mark.parametrize("heading", expected())
def test_the_page_has_every_field_and_no_other(heading: str) -> None:
    assert shown()[heading] == expected()[heading]


def unused(model: type[Section], way: str = "") -> Iterator[tuple[str, str]]:
    """Yield MindSpore Federated's fields that are not used, with where Flower has them."""
    for name, field in model.model_fields.items():
        if field.description is not None:
            yield f"{way}{name}", field.description
        for inner in sections_in(field) if field.description is None else []:
            yield from unused(inner, f"{way}{name}.")


@pytest.mark.parametrize("model", [TrainConfig, VerticalConfig])
def test_the_page_says_where_flower_has_what_is_not_used(model: type[Section]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (table,) = re.findall(r"(?ms)^### Fields that are not used$(.*?)^#", page)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line[:3] == "| `"]
    said = {name.strip("`"): where for names, where in rows for name in names.split(", ")}
    for name, where in unused(model):
        assert said[name] == where


def test_every_field_is_explained() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("### Fields that are not used")
    rest = page[0] + page[2].partition("\n## ")[2]
    rows = [line for line in rest.splitlines() if line[:3] == "| `"]
    assert [row for row in rows if not row.rstrip("| ").count(" | ") >= 3] == []


def test_the_sections_of_all_files_are_there() -> None:
    assert len(expected()) >= 12
    sections = {"`encrypt`", "`unsupervised`", "`dpsgd`", "`label_dp`", "`embedding_dp`"}
    assert sections <= expected()[FILES].keys()

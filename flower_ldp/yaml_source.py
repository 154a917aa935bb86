"""Strict YAML files: what the configuration and the policy share.

A file is read into one frozen model. Unknown fields, fields given twice, wrong types and
values outside their intervals are errors that name the file, the line and the field, all
of them at once. So is what YAML would read otherwise than a person does
(:mod:`flower_ldp.yaml_strict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from flower_ldp.errors import ConfigError
from flower_ldp.yaml_strict import StrictLoader, hidden_characters, misread

_KEY = "[key]"  # pydantic's last step to the key, not the value, of a mapping


class Section(BaseModel):
    """A mapping of known fields: frozen, without conversions, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


SectionT = TypeVar("SectionT", bound=Section)


def interval(ends: str, kind: type[float] | type[int] = float) -> BeforeValidator:
    """Return the check that a value is a number of ``kind`` in ``ends``, as ``"(0, 1]"``."""
    low, high = (float(end) for end in ends[1:-1].split(","))
    wanted = f"must be {'an integer' if kind is int else 'a number'} in {ends}"

    def check(value: object) -> object:
        # A bool is an int to Python; comparisons with nan are false, so nan is outside.
        if isinstance(value, (int, kind)) and not isinstance(value, bool):
            above = value >= low if ends[0] == "[" else value > low
            below = value <= high if ends[-1] == "]" else value < high
            if above and below:
                return value
        hint = ", not text (no quotes, and a point before an exponent: 1.0e-3)"
        raise PydanticCustomError(
            "interval", "{wanted}", {"wanted": wanted + (hint if isinstance(value, str) else "")}
        )

    return BeforeValidator(check)


@dataclass(frozen=True)
class YamlFormat(Generic[SectionT]):
    """A kind of file.

    Parameters
    ----------
    model : type
        What a file of this kind holds.
    synonyms : mapping of str to str, optional
        Other names of fields: a field given under two of its names is given twice.
    tagged : mapping of str to tuple of str, optional
        Fields whose section is one of several kinds, and what ``kind`` may then be.
    """

    model: type[SectionT]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    tagged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def load(self, path: str | Path, context: Mapping[str, object] | None = None) -> SectionT:
        """Read a file.

        Parameters
        ----------
        path : path-like
            The file.
        context : mapping, optional
            Given to the model's validators.

        Raises
        ------
        ConfigError
            If the file cannot be read, is not YAML, or does not fit the model. The text
            gives file, line and field of every error.
        """
        path = Path(path)
        return self.parse(read_text(path), source=str(path), context=context)

    def parse(
        self, text: str, *, source: str = "<text>", context: Mapping[str, object] | None = None
    ) -> SectionT:
        """Parse the text of a file; see :meth:`load`."""
        data, root = _nodes(text, source)
        found = misread(root, self.synonyms)
        try:
            if not found:
                return self.model.model_validate(data, context=context)
        except ValidationError as error:
            found = [self._explain(item, root, text) for item in error.errors()]
        raise ConfigError(
            "\n".join(f"{source}, line {line}: {what}" for line, what in sorted(found))
        )

    def _explain(self, item: ErrorDetails, root: yaml.Node | None, text: str) -> tuple[int, str]:
        """Return an error's line, and a sentence: the field, what is wanted, what is there."""
        kind, location = item["type"], list(item["loc"])
        # A check across several fields names the one to blame itself, under "at".
        location += item.get("ctx", {}).get("at", ())
        wanted = item["msg"].replace("Input should be", "must be").replace("a valid string", "text")
        for name, tags in self.tagged.items():
            # After the field of a tagged union, pydantic names the tag, which is no field.
            if name in location[:-1]:
                del location[location.index(name) + 1]
            if kind.startswith("union_tag") and location[-1:] == [name]:
                wanted = "must be " + " or ".join(repr(tag) for tag in tags)
        if kind.startswith("union_tag"):
            location.append("kind")
        of_key = location[-1:] == [_KEY]
        location = location[: len(location) - of_key]
        line, node = _find(root, location)
        name = ".".join(map(str, location)) or "the file"
        if of_key:
            return line, f"{name}: this name {wanted}"
        if kind == "missing":
            return line, f"{name} is missing"
        if kind in ("extra_forbidden", "invalid_key"):
            return line, f"{name} is not a known field"
        if kind.startswith(("model", "mapping", "dict")):
            wanted = "must be a section of fields"
        elif kind == "sequence_str":
            wanted = "must be a list"
        got = "" if node is None else text[node.start_mark.index : node.end_mark.index]
        got = " ".join(got[:60].split()) + ("..." if len(got) > 60 else "")
        return line, f"{name} {wanted}, got {got or 'nothing'}"


def section_names(path: str | Path) -> tuple[str, ...]:
    """Return the names of a file's outermost fields, by which its kind is known.

    Raises
    ------
    ConfigError
        If the file cannot be read or is not YAML.
    """
    data, _ = _nodes(read_text(Path(path)), str(path))
    return tuple(map(str, data)) if isinstance(data, dict) else ()


def read_text(path: Path) -> str:
    """Return the text of a file, or raise ConfigError if it cannot be read."""
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error_text(error)}") from error
    return decoded(content, path)


def error_text(error: OSError | ValueError) -> str:
    """Return why a file could not be opened; a name with a NUL is a ValueError."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def decoded(content: bytes, path: Path) -> str:
    """Return the text that a file's bytes are, or raise ConfigError."""
    try:
        return content.decode("utf-8")
    except ValueError as error:
        raise ConfigError(f"{path}: is not a UTF-8 text file: {error}") from error


def in_one_line(value: object) -> str:
    """Return a value as YAML writes it in one line."""
    line: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**30)
    return line.strip()


def _nodes(text: str, source: str) -> tuple[object, yaml.Node | None]:
    """Return what a text says, and where it says it."""
    hidden = hidden_characters(text)
    if hidden:
        raise ConfigError("\n".join(f"{source}, line {line}: {what}" for line, what in hidden))
    try:
        return yaml.load(text, StrictLoader), yaml.compose(text, Loader=StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{source}{line}: not valid YAML: {error.problem}") from error
    except Exception as error:
        # PyYAML lets anything escape: ValueError from 2020-13-45, KeyError from !!bool x.
        raise ConfigError(f"{source}: not valid YAML: {error}") from error


def _find(node: yaml.Node | None, location: list[int | str]) -> tuple[int, yaml.Node | None]:
    """Return the line (from 1) of the last field on the way, and the node at its end."""
    line = 1
    for step in location:
        fields = node.value if isinstance(node, yaml.MappingNode) else []
        node = None
        for key, value in fields:
            if key.value == str(step):
                node, line = value, key.start_mark.line + 1
    return line, node

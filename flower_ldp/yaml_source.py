"""Strict YAML files, for configuration and policy.

A file is read into one frozen model. Unknown fields, fields given twice, wrong types and values
outside their intervals are errors with file, line and field, all of them at once. The same holds
for YAML 1.1's surprises: ``1:30`` is 90, ``010`` is 8, a merge brings fields from elsewhere, and a
line may end at invisible characters.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from flower_ldp.errors import ConfigError, error_text
from flower_ldp.parameter_bounds import Bounded, bounded_fields

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_NUMBERS = (_TAG + "int", _TAG + "float")
_SCALARS = {_TAG + kind for kind in ("bool", "int", "float", "merge", "null", "str", "timestamp")}
_PLAIN = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?([eE][-+]?[0-9]+)?|\.[0-9]+([eE][-+]?[0-9]+)?|\.(?i:inf|nan))"
)
# Line breaks of YAML 1.1 that are none to most editors, and what turns the order of letters.
_HIDDEN = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")

#: How many aliases (``*name``) a file may have.
MOST_ALIASES = 16

Found = tuple[int, str]

_KEY = "[key]"  # pydantic's last step to the key, not the value, of a mapping


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without merges and unlimited aliases."""

    _aliases = 0

    def fetch_alias(self) -> None:
        """Count an alias before it is read."""
        self._aliases += 1
        if self._aliases > MOST_ALIASES:
            problem = f"it has more than {MOST_ALIASES} aliases (*): write the fields out"
            raise yaml.scanner.ScannerError(None, None, problem, self.get_mark())
        super().fetch_alias()

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse merges, before any of them is carried out."""
        for key, _ in node.value:
            if key.tag == _MERGE:
                problem = "merges (<<) are not read: write the fields out"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        super().flatten_mapping(node)


class Section(BaseModel):
    """A mapping of known fields: frozen, without conversions, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


SectionT = TypeVar("SectionT", bound=Section)


def interval(ends: str, kind: type[float] | type[int] = float) -> BeforeValidator:
    """Return the check that a value is a number of ``kind`` in ``ends``, as ``"(0, 1]"``."""
    bounded = Bounded(ends)
    wanted = f"must be {'an integer' if kind is int else 'a number'} in {ends}"

    def check(value: object) -> object:
        if bounded.holds(value, kind):
            return value
        hint = ", not text (no quotes, and a point before an exponent: 1.0e-3)"
        raise misfit(wanted + (hint if isinstance(value, str) else ""))

    return BeforeValidator(check)


def declared(kind: type[Any], field: str) -> BeforeValidator:
    """Return the check of a field by the interval that a dataclass declares."""
    (found,) = [one for one in bounded_fields(kind) if one[0] == field]  # type: ignore[arg-type]
    _, bounded, kinds = found
    return interval(bounded.interval, int if int in kinds else float)


def matching(pattern: str, wanted: str) -> AfterValidator:
    """Return the check of a text's form; ``wanted`` is for the error."""
    form = re.compile(pattern)

    def check(value: str) -> str:
        if not form.fullmatch(value):
            raise misfit(wanted)
        return value

    return AfterValidator(check)


def must_suit(use: str, kind: type[Any], values: Mapping[str, object], *at: str) -> None:
    """Raise the error of values that a dataclass's intervals refuse.

    Parameters
    ----------
    use : str
        The field of the file that makes it necessary.
    kind : type
        The dataclass.
    values : mapping of str to object
        Values by their names in the file, in the order of the dataclass's fields.
    *at : str
        As in :func:`misfit`.
    """
    intervals = [bounded for _, bounded, _ in bounded_fields(kind)]  # type: ignore[arg-type]
    for (name, value), bounded in zip(values.items(), intervals, strict=True):
        if not bounded.holds(value):
            raise misfit(f"must be in {bounded.interval} for {use}", *at, name)


def misfit(text: str, *at: str) -> PydanticCustomError:
    """Return the error of a field, with a text such as "must be text".

    ``at`` is the way to the field from the validated value, where that is a section.
    """
    return PydanticCustomError("misfit", "{told}", {"told": text, "at": at})


@dataclass(frozen=True)
class YamlFormat(Generic[SectionT]):
    """A kind of file.

    Parameters
    ----------
    model : type
        The content of such a file.
    synonyms : mapping of str to str, optional
        Other names of fields: a field with two of its names is given twice.
    tagged : mapping of str to tuple of str, optional
        Fields whose section is one of several kinds, and the values of ``kind``.
    """

    model: type[SectionT]
    synonyms: Mapping[str, str] = field(default_factory=dict)
    tagged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def load(self, path: str | Path) -> SectionT:
        """Read a file.

        Raises
        ------
        ConfigError
            If the file cannot be read, is not YAML, or does not fit the model. The text gives file,
            line and field of every error.
        """
        return self.parse(_text(Path(path)), source=str(Path(path)))

    def parse(
        self, text: str, *, source: str = "<text>", context: Mapping[str, object] | None = None
    ) -> SectionT:
        """Parse the text of a file; see :meth:`load`. ``context`` goes to validators."""
        data, root = _nodes(text, source)
        found = _misread(root, self.synonyms)
        try:
            if not found:
                return self.model.model_validate(data, context=context)
        except ValidationError as error:
            found = [self._explain(item, root, text) for item in error.errors()]
        raise _config_error(source, sorted(found))

    def _explain(self, item: ErrorDetails, root: yaml.Node | None, text: str) -> tuple[int, str]:
        """Return an error's line, and a sentence: the field, the requirement, the value."""
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
        if kind == "missing" or wanted == "is missing":
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
    """Return the names of a file's outermost fields, which decide its kind."""
    data, _ = _nodes(_text(Path(path)), str(Path(path)))
    return tuple(map(str, data)) if isinstance(data, dict) else ()


def _text(path: Path) -> str:
    with reading(path):
        return path.read_bytes().decode("utf-8")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of opening, reading and decoding a file into ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not a UTF-8 text file: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error_text(error)}") from error


def in_one_line(value: object) -> str:
    """Return a value as YAML in one line."""
    line: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**30)
    return line.strip()


def _config_error(source: str, found: Iterable[Found]) -> ConfigError:
    return ConfigError("\n".join(f"{source}, line {line}: {what}" for line, what in found))


def _nodes(text: str, source: str) -> tuple[object, yaml.Node | None]:
    """Return a text's values and nodes."""
    hidden = [
        (
            text.count("\n", 0, found.start()) + 1,
            f"holds the character U+{ord(found.group()):04X}, which an editor may not show: "
            "delete it",
        )
        for found in _HIDDEN.finditer(text)
    ]
    if hidden:
        raise _config_error(source, hidden)
    try:
        loader = StrictLoader(text)
        root = loader.get_single_node()
        return None if root is None else loader.construct_document(root), root
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


def _misread(root: yaml.Node | None, synonyms: Mapping[str, str]) -> list[Found]:
    """Return line and sentence of each field that YAML would not read as written."""
    found: list[Found] = []
    waiting: list[tuple[str, yaml.Node]] = [] if root is None else [("the file", root)]
    visited: set[int] = set()
    while waiting:
        name, node = waiting.pop()
        if id(node) in visited:  # an alias may lead back to where it stands
            continue
        visited.add(id(node))
        line = node.start_mark.line + 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag in _NUMBERS and not _PLAIN.fullmatch(node.value):
                wanted = "must be written in plain decimals, as 8, 0.5 or 1.0e-6"
                found.append((line, f"{name} {wanted}, got {node.value[:60]}"))
        elif node.tag in _SCALARS:  # {=: 1:30}, say, as a number
            wanted = "is a section or a list, tagged as a plain value: write the value"
            found.append((line, f"{name} {wanted}"))
        if isinstance(node, yaml.SequenceNode):
            waiting += ((name, one) for one in node.value)
        elif isinstance(node, yaml.MappingNode):
            found += _given_twice(node, synonyms)
            within = "" if node is root else f"{name}."
            waiting += ((name, key) for key, _ in node.value)
            waiting += ((f"{within}{key.value}", value) for key, value in node.value)
    return found


def _given_twice(node: yaml.MappingNode, synonyms: Mapping[str, str]) -> Iterator[Found]:
    """Yield the keys given twice, of which YAML would keep the last."""
    names: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = synonyms.get(key.value, key.value)
            if name in names:
                yield key.start_mark.line + 1, f"{key.value} is given twice"
            names.add(name)

"""What YAML 1.1 reads otherwise than a person does: found in a text, to be refused.

``1:30`` is 90, ``010`` is 8, a merge brings fields that stand elsewhere, and a line ends at
characters that editors show as nothing. Each is an error here instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import yaml

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"
_NUMBERS = (_TAG + "int", _TAG + "float")
_SCALARS = {_TAG + kind for kind in ("bool", "int", "float", "merge", "null", "str", "timestamp")}
_PLAIN = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_UNBOUNDED = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)
# Line breaks of YAML 1.1 that are none to most editors, and what turns the order of letters.
_HIDDEN = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")

#: How many aliases (``*name``) a file may have.
MOST_ALIASES = 16

Found = tuple[int, str]


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without what lets a short file grow: merges, and aliases without end."""

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


def hidden_characters(text: str) -> list[Found]:
    """Return line and sentence of each character that makes a text other than it looks."""
    return [
        (
            text.count("\n", 0, found.start()) + 1,
            f"holds the character U+{ord(found.group()):04X}, which an editor may not show: "
            "delete it",
        )
        for found in _HIDDEN.finditer(text)
    ]


def misread(root: yaml.Node | None, synonyms: Mapping[str, str]) -> list[Found]:
    """Return line and sentence of each field that YAML would not read as it is written.

    Parameters
    ----------
    root : yaml.Node or None
        The text, composed.
    synonyms : mapping of str to str
        Other names of fields: a field given under two of its names is given twice.
    """
    found: list[Found] = []
    waiting: list[tuple[str, yaml.Node]] = [] if root is None else [("the file", root)]
    visited: set[int] = set()
    while waiting:
        name, node = waiting.pop()
        if id(node) in visited:  # an alias may lead back to where it stands
            continue
        visited.add(id(node))
        found += ((node.start_mark.line + 1, f"{name} {what}") for what in _faults(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += ((name, one) for one in node.value)
        elif isinstance(node, yaml.MappingNode):
            found += _given_twice(node, synonyms)
            within = "" if node is root else f"{name}."
            waiting += ((name, key) for key, _ in node.value)
            waiting += ((f"{within}{key.value}", value) for key, value in node.value)
    return found


def _faults(node: yaml.Node) -> Iterator[str]:
    """Yield what is wrong with a node by itself."""
    if not isinstance(node, yaml.ScalarNode):
        if node.tag in _SCALARS:  # {=: 1:30}, say, as a number
            yield "is a section or a list, tagged as a plain value: write the value"
    elif node.tag in _NUMBERS and not (_PLAIN.fullmatch(node.value) or _unbounded(node.value)):
        yield f"must be written in plain decimals, as 8, 0.5 or 1.0e-6, got {node.value[:60]}"


def _unbounded(text: str) -> bool:
    return _UNBOUNDED.fullmatch(text) is not None


def _given_twice(node: yaml.MappingNode, synonyms: Mapping[str, str]) -> Iterator[Found]:
    """Yield the keys given twice, of which YAML would keep the last."""
    names: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            name = synonyms.get(key.value, key.value)
            if name in names:
                yield key.start_mark.line + 1, f"{key.value} is given twice"
            names.add(name)

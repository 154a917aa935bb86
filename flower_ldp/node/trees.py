"""The trees of objects that an app says its reply has: never longer at Flower's than as they came.

Flower keeps what is below each object once, as it was first said, and writes a tree out whole. A
short tree that names an object with much below it, twice below the next, and so on, would be longer
there than any memory. So each object has the same below it wherever it stands.

Flower takes a tree in object by object. If it drops what is below an object between two of them, as
an app can have it do, the tree is left without its lower part: it is never freed, and to drop it
ends the node. So a tree is taken in as one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

_NAME = re.compile(r"[0-9a-f]{64}")

#: The names right below each object, by its own.
Below = Mapping[str, tuple[str, ...]]


def below(tree: Any) -> Below:
    """Return what is right below each object of a tree."""
    return {one.object_id: _names(one) for one in iterate_object_tree(tree)}


def sound(tree: Any, known: Below) -> Below | None:
    """Return what is below each object; None if one has no name, or something else elsewhere.

    Parameters
    ----------
    tree : ObjectTree
        As the app says.
    known : mapping of str to tuple of str
        What is below the objects that Flower has already.
    """
    found = dict(known)
    for one in iterate_object_tree(tree):
        names = _names(one)
        if not _NAME.fullmatch(one.object_id) or found.setdefault(one.object_id, names) != names:
            return None
    return found


def register_as_one(store: Any) -> None:
    """Have a store drop nothing while it takes a tree in.

    Parameters
    ----------
    store : InMemoryObjectStore
        Flower's.
    """
    plain, lock = store.preregister, store.lock_store

    def preregister(run_id: int, object_tree: Any) -> list[str]:
        with lock:
            missing: list[str] = plain(run_id, object_tree)
            return missing

    vars(store)["preregister"] = preregister


def _names(tree: Any) -> tuple[str, ...]:
    return tuple(one.object_id for one in tree.children)

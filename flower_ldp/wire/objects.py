"""How many bytes a message takes once it is inflated, counted from the objects that arrived.

Flower sends a message as objects that name others: an Array its chunks by indices that may repeat,
a record its arrays. One chunk of 1 MiB can so become any number of bytes. Only objects whose JSON
lists others are read here; none is joined.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from flower_ldp.errors import WireError

_DATA = (b"ArrayChunk ", b"ConfigRecord ")
_RECORDS = (b"RecordDict ", b"ArrayRecord ")
#: What a byte of JSON, of metrics or of a head takes in memory, as in a list of small numbers.
_OF_LISTS = 8


def check_size(name: str, contents: Mapping[str, bytes], sent: int) -> int:
    """Return how many bytes a message takes.

    Parameters
    ----------
    name : str
        Of the message's own object.
    contents : mapping of str to bytes
        All its objects, by name.
    sent : int
        Bytes that a message may take in any case: those of the message that it answers.

    Raises
    ------
    WireError
        If it takes more than twice that, and more than twice the bytes that arrived.
    Exception
        Of any kind, if the objects are no message.
    """
    most = 2 * max(sent, sum(map(len, contents.values())))
    sizes: dict[str, int] = {}

    def size(one: str) -> int:
        if one not in sizes:
            content = contents[one]
            is_data = content.startswith(_DATA)
            sizes[one] = len(content) * (1 if is_data else _OF_LISTS)
            _check(sizes[one], most)  # before its lists are read
            if not is_data:
                sizes[one] += sum(map(size, named(content)))
        return sizes[one]

    _check(size(name), most)
    return sizes[name]


def _check(size: int, most: int) -> None:
    if size > most:
        raise WireError("size", f"the message takes {size} bytes, at most {most} are taken")


def named(content: bytes) -> list[str]:
    """Return the objects that one is built of, each as often as it names it."""
    head, _, body = content.partition(b"\0")
    below = head.split(b" ")[1].decode().split(",")
    if content.startswith(b"Array "):
        return [below[place] for place in json.loads(body)["arraychunk_ids"]]
    if content.startswith(_RECORDS):
        return list(json.loads(body).values())
    return below if below != [""] else []

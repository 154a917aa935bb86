"""The bytes of a message once it is inflated, counted from the objects that arrived.

Flower sends a message as objects that name others, by indices that may repeat: one chunk of 1 MiB
can become any number of bytes. Only objects whose JSON lists others are read here; none is joined.
"""

import json
from collections.abc import Mapping

from flower_ldp.errors import WireError

_LISTING = (b"Message ", b"RecordDict ", b"ArrayRecord ", b"Array ")
_CHUNK, _CONFIG, _METRICS = b"ArrayChunk ", b"ConfigRecord ", b"MetricRecord "
#: What a byte of JSON or of a head takes in memory, and one of a record's small fields.
_OF_LISTS, _OF_FIELDS = 8, 64


def check_size(name: str, contents: Mapping[str, bytes], least: int) -> int:
    """Return how many bytes a message takes, by all its objects and its own object's name.

    Raises
    ------
    WireError
        If it takes more than ``least`` and more than twice the arrived bytes, the object is no
        message, or one lists others than it is built of.
    Exception
        Of any kind, if the objects are no message.
    """
    most = max(least, 2 * sum(map(len, contents.values())))
    sizes: dict[str, int] = {}
    if not contents[name].startswith(b"Message "):
        raise WireError("object", "the object is no message")

    def size(one: str) -> int:
        if one not in sizes:
            content = contents[one]
            sizes[one] = len(content) * _factor(content)
            _check(sizes[one], most)  # before its lists are read
            below = named(content)
            if set(below) != set(_listed(content)):
                raise WireError("object", "an object lists others than it is built of")
            sizes[one] += sum(map(size, below))
        return sizes[one]

    _check(size(name), most)
    return sizes[name]


def _check(size: int, most: int) -> None:
    if size > most:
        raise WireError("size", f"the message takes {size} bytes, at most {most} are taken")


def _factor(content: bytes) -> int:
    if content.startswith(_CHUNK) or (content.startswith(_CONFIG) and _is_bytes(content)):
        return 1
    return _OF_FIELDS if content.startswith((_CONFIG, _METRICS)) else _OF_LISTS


def _is_bytes(content: bytes) -> bool:
    """Return whether a ConfigRecord has one field, of bytes, by the lengths that it states."""
    at = content.find(b"\0") + 1
    try:
        # items { key, value { bytes } }: the last part of each is as long as all that is left.
        for tag in (0x0A, 0x12, 0x32):
            if tag == 0x12:
                at += 2 + content[at + 1]  # behind the key
            if content[at] != tag:
                return False
            length, shift = 0, 0
            while True:
                at += 1
                length |= (content[at] & 127) << shift
                shift += 7
                if content[at] < 128:
                    break
            at += 1
            if at + length != len(content):
                return False
    except IndexError:
        return False
    return True


def _listed(content: bytes) -> list[str]:
    head = content.partition(b"\0")[0]
    below = head.split(b" ")[1].decode().split(",")
    return below if below != [""] else []


def named(content: bytes) -> list[str]:
    """Return the objects that one is built of, each as often as it names it."""
    if not content.startswith(_LISTING):
        return []
    below, body = _listed(content), content.partition(b"\0")[2]
    if content.startswith(b"Array "):
        return [below[place] for place in json.loads(body)["arraychunk_ids"]]
    return below if content.startswith(b"Message ") else list(json.loads(body).values())

"""The extensions that an owner allows: by distribution, version and digest, and at what price."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from flower_ldp.mechanisms import name_complaint
from flower_ldp.policy.apps import Digest
from flower_ldp.policy.names import mechanism_name
from flower_ldp.policy.sections import Allowance, Delta, Epsilon
from flower_ldp.yaml_source import Section

_DISTRIBUTION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}", re.ASCII)


def _name(value: str) -> str:
    complaint = name_complaint(value)
    if complaint is not None:
        raise PydanticCustomError("extension_name", "{told}", {"told": complaint})
    return mechanism_name(value)  # a near miss would be read as the package's own


def _distribution(value: str) -> str:
    if not _DISTRIBUTION.fullmatch(value):
        raise PydanticCustomError(
            "distribution", "must be a distribution's normal name, as one-bit-ldp"
        )
    return value


def _version(value: str) -> str:
    if not _VERSION.fullmatch(value):
        raise PydanticCustomError("version", "must be one version, as '0.1.0'")
    return value


ExtensionName = Annotated[str, AfterValidator(_name)]


class ExtensionEntry(Section):
    """One extension that the owner has read.

    Parameters
    ----------
    distribution, version : str
        What is installed, exactly.
    digest : str
        As ``flower-ldp extension digest`` prints it.
    epsilon, delta : float
        The least that a report is charged. A server that proposes more is charged for that.
    """

    distribution: Annotated[str, AfterValidator(_distribution)]
    version: Annotated[str, AfterValidator(_version)]
    digest: Digest
    epsilon: Epsilon
    delta: Delta = 0.0


def check_extensions(
    extensions: Mapping[str, ExtensionEntry],
    messages: Mapping[str, Mapping[str, Allowance]],
) -> None:
    """Raise where a message allows an extension less than its least price, or for another unit.

    Raises
    ------
    PydanticCustomError
        With the place: no release could ever be admitted.
    """
    for message_type, allowances in messages.items():
        for name, allowance in allowances.items():
            entry = extensions.get(name)
            if entry is None:
                continue
            place = ("messages", message_type, name)
            if allowance.unit != "client":
                raise PydanticCustomError(
                    "extension_unit",
                    "must be client: an extension's claim is about the client",
                    {"at": (*place, "unit")},
                )
            for field in ("epsilon", "delta"):
                if getattr(allowance, field) < getattr(entry, field):
                    raise PydanticCustomError(
                        "extension_price",
                        "must be at least what extensions charges for a report",
                        {"at": (*place, field)},
                    )

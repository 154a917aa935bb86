"""A list of components in CycloneDX 1.6 (JSON), by the format's own library."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable
from datetime import datetime
from email.message import Message
from typing import Any, cast
from uuid import NAMESPACE_URL, UUID, uuid5

from flower_ldp.installed.closure import Component, Installed
from flower_ldp.installed.files import came_from, contents

try:
    from cyclonedx.contrib.license.factories import LicenseFactory
    from cyclonedx.contrib.this.builders import this_component
    from cyclonedx.model import HashAlgorithm, HashType, Property
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component as Part
    from cyclonedx.model.component import ComponentScope, ComponentType
    from cyclonedx.model.license import License, LicenseAcknowledgement
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion
    from packageurl import PackageURL
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "a list of components needs cyclonedx-python-lib: pip install 'flower-ldp[sbom]'",
        name=error.name,
    ) from error

#: Names of properties; the format asks for a namespace of one's own.
CONTENTS, EDITABLE = "flower-ldp:contents:sha256", "flower-ldp:editable"
#: A license's field that is longer is a text, and no name.
_LONGEST_NAME = 80
_NOBODY = UUID(int=0)


def sbom(found: Installed, at: datetime | None = None) -> str:
    """Return the list of an installation, as JSON text.

    The same installation gives the same text: it has no time but one that is given, and its serial
    number is derived from the rest.

    Parameters
    ----------
    found : Installed
        As :func:`closure` returns it.
    at : datetime, optional
        When it was made, with a time zone.
    """
    root, parts = _part(found.root, None), {one.name: _part(one) for one in found.others}
    parts[found.root.name] = root
    bom = Bom(
        serial_number=_NOBODY,
        components=[part for part in parts.values() if part is not root],
        metadata=BomMetaData(
            component=root,
            timestamp=at,
            tools=ToolRepository(components=[this_component()]),
            properties=[
                Property(name="flower-ldp:extras", value=" ".join(found.extras)),
                Property(name="flower-ldp:python", value=_python()),
            ],
        ),
    )
    for one in (found.root, *found.others):
        bom.register_dependency(parts[one.name], [parts[name] for name in one.needs])
    made = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    return _derived(json.loads(made), at)


def _derived(document: dict[str, Any], at: datetime | None) -> str:
    """Take the time out, if none was given, and derive the serial number from what is left."""
    if at is None:  # the library writes the present one
        del document["metadata"]["timestamp"]
    del document["serialNumber"]
    text = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid5(NAMESPACE_URL, text).urn
    return json.dumps(document, sort_keys=True, indent=2) + "\n"


def _python() -> str:
    return f"{sys.implementation.name} {platform.python_version()}"


def _part(one: Component, scope: ComponentScope | None = ComponentScope.REQUIRED) -> Part:
    """Return a component as the format has it; the root has no scope."""
    metadata = cast(Message, one.distribution.metadata)
    version = str(metadata["Version"])
    url = PackageURL(type="pypi", name=one.name, version=version)
    archive, editable = came_from(one.distribution)
    digest = contents(one.distribution)
    properties = [Property(name=CONTENTS, value=digest)] if digest and not editable else []
    properties += [Property(name=EDITABLE, value="true")] if editable else []
    return Part(
        name=str(metadata["Name"]),
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=url.to_string(),
        purl=url,
        description=metadata["Summary"] or None,
        scope=ComponentScope.OPTIONAL if scope and one.is_optional else scope,
        licenses=list(_licenses(metadata)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=archive)] if archive else [],
        properties=properties,
    )


def _licenses(metadata: Message) -> Iterable[License]:
    """Return what a distribution says of its license: an expression, a name, or its classifiers."""
    said, declared = metadata["License-Expression"], LicenseAcknowledgement.DECLARED
    make = LicenseFactory()
    name = metadata["License"] or ""
    if said is None and name and "\n" not in name and len(name) <= _LONGEST_NAME:
        said = name
    if said is not None and said.upper() != "UNKNOWN":
        return [make.make_from_string(said, license_acknowledgement=declared)]
    rows = (str(row).split(" :: ") for row in metadata.get_all("Classifier") or ())
    names = sorted({row[-1] for row in rows if row[0] == "License" and len(row) > 1})
    return [make.make_with_name(one, acknowledgement=declared) for one in names]

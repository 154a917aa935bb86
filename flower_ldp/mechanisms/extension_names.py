"""Names that a mechanism from elsewhere may have: none that is like one of the package's.

A name stands in policies and ledgers, where a reader must not take one thing for another. So it is
plain ASCII, without a second form in Unicode.
"""

from __future__ import annotations

import re

from flower_ldp.errors import quoted
from flower_ldp.mechanisms import MECHANISMS

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


def name_complaint(name: object) -> str | None:
    """Return why an extension may not have a name; None if it may.

    Parameters
    ----------
    name : object
        Whatever stands in the place of one.
    """
    if type(name) is not str or not _NAME.fullmatch(name):
        return (
            f"{quoted(name)} is no name of an extension: a letter, then letters, digits and '_', "
            "lower case, 64 at most"
        )
    plain = name.replace("_", "")
    for known, others in MECHANISMS.items():
        rest = name.removeprefix(known)
        # A variant, as laplace_2, would be read as the package's own.
        is_variant = rest != name and not rest[:1].isalpha()
        if is_variant or plain in (known.replace("_", ""), *others):
            return f"{quoted(name)} is a built-in mechanism's name: an extension overrides none"
    return None

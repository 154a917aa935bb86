"""Where a policy comes from: a file that the operator names, outside of any run."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from flower_ldp.errors import ConfigError
from flower_ldp.policy.judgement import Policy
from flower_ldp.yaml_source import YamlFormat, read_text

#: Where the operator names the policy: a key of ``--node-config``, and a variable.
NODE_CONFIG_KEY = "ldp-policy"
ENVIRONMENT_VARIABLE = "FLOWER_LDP_POLICY"

_FORMAT = YamlFormat(Policy)


def load_policy(path: str | Path) -> Policy:
    """Read a policy file.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not YAML, or is no policy. The text gives file, line
        and field of every error.
    """
    path = Path(path)
    return _parsed(read_text(path), str(path), path.absolute().parent)


# The file is read for each release, so that a change holds from the next one on. Parsing the
# same text again takes longer than a charge to the ledger.
@lru_cache(maxsize=4)
def _parsed(text: str, source: str, folder: Path) -> Policy:
    return _FORMAT.parse(text, source=source, context={"folder": folder})


def parse_policy(text: str, *, source: str = "<text>") -> Policy:
    """Parse a policy; the ledger's path stays as it is written. See :func:`load_policy`."""
    return _FORMAT.parse(text, source=source)


def find_policy(
    node_config: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> Policy | None:
    """Load the policy that the operator names, or return None if none is named.

    Parameters
    ----------
    node_config : mapping
        The node's configuration (``context.node_config``), never the run's.
    environ : mapping, optional
        Environment variables; those of the process if left out.

    Raises
    ------
    ConfigError
        If two different files are named, a name is empty or no text, the file is no
        policy (:func:`load_policy`), or the policy of a deployment can be changed by others
        (:func:`check_rights`).
    """
    environ = os.environ if environ is None else environ
    named: dict[str, Path] = {}
    for origin, mapping in ((NODE_CONFIG_KEY, node_config), (ENVIRONMENT_VARIABLE, environ)):
        if origin in mapping:
            value = mapping[origin]
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{origin} must name a policy file, got {value!r}")
            named[origin] = Path(value)
    if len({path.resolve() for path in named.values()}) > 1:
        both = " and ".join(f"{origin} names {path}" for origin, path in named.items())
        raise ConfigError(f"two policies, and no telling which holds: {both}")
    if not named:
        return None
    path = next(iter(named.values()))
    policy = load_policy(path)
    if not policy.is_simulation:
        check_rights(path)
    return policy


def check_rights(path: Path) -> None:
    """Refuse a policy that anyone but its owner and root could change.

    Raises
    ------
    ConfigError
        If group or others may write the file, or it belongs to neither root nor this user.
    """
    if os.name != "posix":
        return
    status = path.stat()
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise ConfigError(
            f"policy {path} can be written by others (mode {mode:04o}): read it through, then "
            "chmod go-w"
        )
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"policy {path} belongs to user {status.st_uid}, this process runs as user "
            f"{os.geteuid()}: it must be root's or this user's (chown)"
        )

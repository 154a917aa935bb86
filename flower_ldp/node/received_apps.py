"""The bundles that the node receives, under digests of their bytes.

Flower believes the hash, name and version that the SuperLink states, and continues the state of any
run said to be of the same series. So each run and its bundle are fetched here once, before the
run's first message is judged. Flower gets these bytes under their own digest, and the run under the
identity asked for. A listed app goes by the name in its bundle, and its run gets a series of its
own. The settings are read here first: in Flower's loop an error would end the node.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from typing import Any

from flwr.app import Message

from flower_ldp.app_digests import BundleError, digest_of, read_bundle
from flower_ldp.errors import quoted
from flower_ldp.node.flower_api import Channel, check_config

_log = logging.getLogger("flower_ldp")

#: Bundles that are kept, each of at most ten million bytes; what they were is never forgotten.
_KEPT = 64
#: Bytes of Flower's identities of series, of which the first bit is none.
_SERIES = 8


@dataclass(frozen=True)
class ReceivedApp:
    """The app of a run.

    ``fault`` says why its bytes and configuration make no app, or why a listed app's are no sound
    bundle. ``overrides`` are the run's values in place of the bundle's. If the owner ``listed`` the
    digest when the run came, it has no state from elsewhere.
    """

    digest: str
    fault: str
    overrides: Mapping[str, object]
    listed: bool


class ReceivedApps:
    """The apps of a node's runs."""

    def __init__(self, is_listed: Callable[[str], bool]) -> None:
        self._is_listed = is_listed
        self._lock = threading.Lock()
        self._apps: dict[int, ReceivedApp] = {}

    def around(self, inner: Channel) -> Channel:
        """Return a connection that fetches each run before its message is handed on."""
        fetched = lru_cache(_KEPT)(partial(self._fetch, inner))

        def receive() -> tuple[Message, Any] | None:
            received = inner.receive()
            if received is not None:
                run_id = received[0].metadata.run_id
                try:
                    fetched(run_id)
                except Exception:
                    # It is refused if it rests on the app, and else Flower asks by itself.
                    _log.exception("the app of run %d could not be fetched", run_id)
            return received

        return inner._replace(
            receive=receive,
            get_run=lambda run_id: fetched(run_id)[0],
            get_fab=lambda fab_hash, run_id: fetched(run_id)[1],
        )

    def of(self, run_id: int) -> ReceivedApp | None:
        """Return a run's app; None if it could not be fetched."""
        with self._lock:
            return self._apps.get(run_id)

    def _fetch(self, inner: Channel, run_id: int) -> tuple[Any, Any]:
        # Flower keeps a run under the identity that stands in it, in another run's place too.
        run = replace(inner.get_run(run_id), run_id=run_id)
        app, run, fab = self._judged(run, inner.get_fab(run.fab_hash, run_id))
        with self._lock:
            first = self._apps.setdefault(run_id, app)
            # Flower has what came first, and asks no more.
            if (first.digest, first.overrides) != (app.digest, app.overrides):
                fault = "the run came again with another bundle or configuration"
                self._apps[run_id] = replace(first, fault=fault)
        return run, fab

    def _judged(self, run: Any, fab: Any) -> tuple[ReceivedApp, Any, Any]:
        """Replace all that is only said of a bundle by what its bytes show."""
        digest = digest_of(fab.content)
        plain = digest.rpartition(":")[2]
        if plain != run.fab_hash:
            said = quoted(str(run.fab_hash))
            _log.warning("the app of run %d is %s, announced as %s", run.run_id, digest, said)
        changes: dict[str, Any] = {"fab_hash": plain}
        fault = ""
        try:
            check_config(fab.content, run)
        except Exception as error:
            told = quoted(f"{type(error).__name__}: {error}")
            fault = f"its settings cannot be read: {told}"
        listed = self._is_listed(digest)
        if listed:
            try:
                bundle = read_bundle(fab.content)
            except BundleError as error:
                fault = fault or str(error)
            else:
                changes |= {"fab_id": bundle.app, "fab_version": bundle.version}
            if any(one.name == "series_id" for one in fields(run)):
                changes["series_id"] = int.from_bytes(os.urandom(_SERIES), "big") >> 1 | 1
        app = ReceivedApp(digest, fault, dict(run.override_config), listed)
        return app, replace(run, **changes), replace(fab, hash_str=plain)

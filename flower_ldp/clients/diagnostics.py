"""Error texts and hints for the client's own log."""

import logging
import traceback
from collections.abc import Iterator
from functools import lru_cache
from itertools import count

from flower_ldp.errors import LdpError, RefusalError, say
from flower_ldp.wire.layout import FEWER_ROWS

_log = logging.getLogger("flower_ldp")

#: Modules that an error passed through, the first that fits, and what to do.
_PASSED = {
    "flwr.client.mod.secure_aggregation": "secaggplus_mod cannot stand behind LdpMod: take it out. "
    "A report is private by itself, and a masked sum of models has no epsilon",
    "flower_ldp.clients.legacy": "",  # it is there, and the error is another one
    "flwr.compat.common.recorddict_compat": "an old-style app (client_fn, NumPyClient) needs "
    "legacy_client_mod of flower_ldp.clients behind LdpMod: "
    "mods=[LdpMod(train=...), legacy_client_mod]. It translates train messages alone",
}
_CLIPPING = (
    "Flower's clipping mods cannot stand behind LdpMod: take them out. They serve a central "
    "wrapper at the server; a release clips by itself"
)
_CLASSES = (
    "if this client's data lack a class: scikit-learn's fit knows the classes that it sees. "
    "Train by SGDClassifier(loss='log_loss').partial_fit(rows, labels, classes=np.arange(n)), "
    "with all n classes on every client (docs/combines.md)"
)
#: What an error that a mod answered with names, and what to do.
_NAMED = {
    "fixedclipping_mod": _CLIPPING,
    "adaptiveclipping_mod": _CLIPPING,
    # scikit-learn's words, and those of a layout for a model that came back with fewer classes
    "Initialization coef is of shape": _CLASSES,
    "needs samples of at least 2 classes": _CLASSES,
    "does not match dataset": _CLASSES,
    "same classes as in the previous call to fit": _CLASSES,
    "is not the same as on last call to partial_fit": _CLASSES,
    FEWER_ROWS: _CLASSES,
}


def hint_of(error: BaseException) -> str:
    """Return a line of advice, or nothing; never raises."""
    try:
        frames = traceback.walk_tb(error.__traceback__)
        modules = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
        text = str(error)
    except BaseException:  # the error's own text is the app's code too
        return ""
    passed = [hint for name, hint in _PASSED.items() if any(m.startswith(name) for m in modules)]
    named = [hint for words, hint in _NAMED.items() if words in text]
    hint = next(iter(passed + named), "")
    return f"\n{hint}" if hint else ""


#: Longest text of a cause in the log, in characters.
MOST_CAUSE = 8_000


def cause_of(error: BaseException) -> str:
    """Return an error's text, hint and, mostly, traceback."""
    try:
        said = cut_middle("".join(traceback.format_exception_only(error)).strip()) + hint_of(error)
        if isinstance(error, LdpError) and not _log.isEnabledFor(logging.DEBUG):
            return said
        return f"{said}\n{cut_middle(''.join(traceback.format_exception(error)))}"
    except BaseException:  # the error's own text is the app's code too
        return cut_middle(f"{type(error).__name__}, which cannot be shown")


def cut_middle(text: str) -> str:
    """Shorten a text for the log."""
    if len(text) <= MOST_CAUSE:
        return text
    half = MOST_CAUSE // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters are left out ...\n{text[-half:]}"


@lru_cache(maxsize=1_000)
def _times(run_id: int, code: str) -> Iterator[int]:
    return count()


def log_refusal(run_id: int, refusal: RefusalError) -> None:
    """Log a refusal as WARNING once per run, process and code."""
    text = cut_middle(str(refusal))
    if next(_times(run_id, refusal.code)):
        say(_log, logging.INFO, "refused: %s", text)
    else:
        again = "refused: %s (refusals like it in this run are logged as INFO)"
        say(_log, logging.WARNING, again, text)

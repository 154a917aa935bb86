"""Every code that a gate or a party answers with instead of a report.

A code is all that the server learns, so it must not depend on private data. The explanation of one
refusal stays in the client's log (:class:`~flower_ldp.errors.RefusalError`). ``docs/wire.md`` has
the same rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

_PREFIX = "ldp:"

REFUSED_APP = "ldp:refused:app"
REFUSED_MESSAGE = "ldp:refused:message"
REFUSED_PROPOSAL = "ldp:refused:proposal"
#: The reason where a message has no proposal at all: the code, and a sentence for the log of a
#: strategy that knows no codes. It is one constant.
NO_PROPOSAL = (
    f"{REFUSED_PROPOSAL}: the server's strategy asks for models and not for private reports: run "
    "SignDSStrategy, CodewordStrategy or GaussianStrategy of flower_ldp.strategies there, for an "
    "evaluation ProtectedEvalStrategy around it"
)
#: The error's reason goes on after a colon, with the text of what was raised.
REFUSED_REHEARSAL = "ldp:refused:rehearsal"
REFUSED_POLICY = "ldp:refused:policy"
REFUSED_BUDGET = "ldp:refused:budget"
REFUSED_REPEAT = "ldp:refused:repeat"
REFUSED_LEDGER = "ldp:refused:ledger"
REFUSED_RECORDS = "ldp:refused:records"
REFUSED_STEP = "ldp:refused:step"
FAILED = "ldp:failed"

Stage = Literal["before", "after", "either"]
"""Where a code leaves: before the message is charged, after that, or in both places."""


@dataclass(frozen=True)
class Refusal:
    """The meaning of one code.

    Parameters
    ----------
    code : str
        Constant that goes to the server.
    stage : {"before", "after", "either"}
        Whether it leaves before the charge. Only those before it may be omitted from the server's
        account of the clients' spending.
    meaning : str
        Why there is no report.
    remedy : str
        What the server's operator may do.
    party : bool
        Whether it is for feature parties of split learning alone, before their gate.
    """

    code: str
    stage: Stage
    meaning: str
    remedy: str
    party: bool = False


_ROWS = (
    Refusal(
        REFUSED_APP,
        "before",
        "the node's owner does not list this app for the claim, or lists it otherwise than it runs",
        "have the owner read the app and list what 'flower-ldp app digest' prints",
    ),
    Refusal(
        REFUSED_MESSAGE,
        "before",
        "the clients' LdpMod has no release for this type of message",
        "stop asking for it, or have the clients set a release",
    ),
    Refusal(
        REFUSED_PROPOSAL,
        "before",
        "the server's proposal or the model is missing, malformed or out of its intervals, the "
        "clients' release is not the strategy's, or their flower-ldp is older than this one",
        "correct the proposal, or use a release and a strategy of one name (SignDSRelease, ...)",
    ),
    Refusal(
        REFUSED_REHEARSAL,
        "before",
        "the app failed its rehearsal on its own public sample data, and nothing was charged",
        "correct the app by what it says, and begin again",
    ),
    Refusal(
        REFUSED_POLICY,
        "before",
        "no policy is named or it is wrong, it does not allow the release, or the message is of "
        "run 0, in which what belongs to no run is charged",
        "propose what the owners allow, or ask them to name a policy: a client's log says which. "
        "It is named to 'flower-ldp simulate' by --policy FILE, to a node by --node-config "
        "'ldp-policy=\"FILE\"', to 'flwr run' by FLOWER_LDP_POLICY (docs/policy.md)",
    ),
    Refusal(
        REFUSED_BUDGET,
        "before",
        "a budget would be exceeded",
        "propose a smaller cost, or go on without this client ('flower-ldp ledger show' there says "
        "what is left; 'flower-ldp ledger forget' clears a simulation's)",
    ),
    Refusal(
        REFUSED_REPEAT,
        "after",
        "the message came before, as another request or without a report to give again",
        "send a new message, which costs anew",
    ),
    Refusal(
        REFUSED_LEDGER,
        "either",
        "the ledger cannot be used, or holds what is not this node's report",
        "go on without this client until its operator has put the ledger right by what its log "
        "says",
    ),
    Refusal(
        REFUSED_RECORDS,
        "before",
        "the server's records are not the party's: other ids, another table, or other blocks",
        "bring the ids and the size of blocks to agree, and begin again",
        party=True,
    ),
    Refusal(
        REFUSED_STEP,
        "before",
        "the bottom is at another step than the server's top",
        "begin again from the checkpoints",
        party=True,
    ),
    Refusal(
        FAILED,
        "either",
        "the message could not be judged, a party could not be loaded, or the ledger could not "
        "keep the report; in a simulation, the app failed or its reply cannot be read",
        "ask the client's operator what its log says: the logs hold the error",
    ),
)

MEANINGS: Mapping[str, Refusal] = MappingProxyType({one.code: one for one in _ROWS})
"""What each code means."""
HINTS: Mapping[str, str] = MappingProxyType(
    {one.code: f"{one.meaning}: {one.remedy}" for one in _ROWS if not one.party}
)
"""What a gate's code means and what to do, for who runs the server."""


def is_code(reason: str) -> bool:
    """Return whether an error's reason is this package's, also of a later version."""
    return reason.startswith(_PREFIX)

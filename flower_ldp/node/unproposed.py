"""Messages that propose nothing: a round of private training, and a count of right predictions.

Flower's own strategies send a model and a configuration. What may answer them is about single
examples, and no reply shows how it was made. So it is the owner's list that says which app may:

============  ================  ==================================================================
message       listed release    answer
============  ================  ==================================================================
``train``     ``dpsgd``         one ArrayRecord with the arrays that were sent, and one
                                MetricRecord with how many examples there are
``evaluate``  ``example_mean``  one MetricRecord: a share, and how many examples there are
============  ================  ==================================================================

The names are those that Flower's strategies look for. An evaluation costs what the policy allows
for it: the server proposes no price, and what an app asks for is not known before it runs.
"""

from __future__ import annotations

from flwr.app import Message, MessageType

from flower_ldp.clients import AccuracyRelease, DPSGDRelease, Release
from flower_ldp.errors import RefusalError
from flower_ldp.policy import Policy
from flower_ldp.refusals import REFUSED_POLICY
from flower_ldp.wire.proposal import PROPOSAL_KEY

#: By type of message, the mechanism that a claim about its answer has.
_MECHANISMS = {MessageType.TRAIN: "dpsgd", MessageType.EVALUATE: "example_mean"}


def unproposed(message: Message) -> str | None:
    """Return the mechanism by which a message without a proposal may be answered.

    Returns
    -------
    str or None
        None if there is a proposal, no model, or another type of message.
    """
    content = message.content
    if PROPOSAL_KEY in content or len(content.array_records) != 1:
        return None
    return _MECHANISMS.get(message.metadata.message_type)


def unproposed_releases(policy: Policy, message: Message) -> dict[str, Release]:
    """Return the release of such a message, by its type.

    Parameters
    ----------
    policy : Policy
        The owner's; it says what an evaluation costs.
    message : Message
        One that :func:`unproposed` knows.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if the policy states no price of an evaluation.
    """
    kind = message.metadata.message_type
    if kind == MessageType.TRAIN:
        return {kind: DPSGDRelease()}
    name = _MECHANISMS[kind]
    allowance = policy.messages.get(kind, {}).get(name)
    if allowance is None:
        raise RefusalError(REFUSED_POLICY, f"{name} may not answer a {kind!r} message")
    try:
        return {kind: AccuracyRelease(allowance.epsilon)}
    except ValueError as error:
        raise RefusalError(REFUSED_POLICY, f"the policy's price of {name}: {error}") from error

"""What the operator of a node names for its data: the policy, its ledger and the account."""

from __future__ import annotations

from flwr.app import Context

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import anchor_of
from flower_ldp.clients.node_config import FirstNames
from flower_ldp.errors import ConfigError, RefusalError
from flower_ldp.policy import Policy, find_policy
from flower_ldp.refusals import REFUSED_POLICY


def ledger_of(policy: Policy) -> Ledger:
    """Open the policy's ledger: on disk at every step, unless nothing of it is real.

    Raises
    ------
    LedgerError
        If it cannot be used, or the policy's anchor says that it was set back.
    """
    simulation, place = policy.is_simulation, policy.anchor
    anchor = None if place is None else anchor_of(place.file, place.command)
    return Ledger.open(policy.ledger, create=simulation, durable=not simulation, anchor=anchor)


def policy_of(context: Context, names: FirstNames | None = None) -> Policy:
    """Return the policy that the node's operator names.

    Parameters
    ----------
    context : Context
        Flower's; its node configuration may name it.
    names : FirstNames, optional
        What was named before.

    Raises
    ------
    RefusalError
        With ``REFUSED_POLICY`` if none is named, it is wrong, or it was another before.
    """
    try:
        if names is not None:
            names.check(context)
        policy = find_policy(context.node_config)
    except ConfigError as error:
        raise RefusalError(REFUSED_POLICY, str(error)) from error
    if policy is None:
        raise RefusalError(
            REFUSED_POLICY,
            "no policy is named: by --policy FILE of 'flower-ldp simulate', by a node's "
            "--node-config 'ldp-policy=\"FILE\"', or by FLOWER_LDP_POLICY=FILE before the process "
            "starts ('flwr run': docs/policy.md says which process)",
        )
    return policy


def account_of(policy: Policy, context: Context) -> str:
    """Return the name under which this client's spending is recorded."""
    if not policy.is_simulation:
        return policy.data_id
    # What has no partition, as a server with labels of its own, must not meet one's number.
    return f"{policy.data_id}/{context.node_config.get('partition-id', f'node-{context.node_id}')}"

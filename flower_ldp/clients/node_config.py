"""What the operator of a node names for its data: the policy, its ledger and the account.

The node's configuration is the operator's: what an app writes there is not kept. Flower gives an
app the very context that it stores afterwards, and stores what the app made of it: its node's
configuration too, which may name the policy by which the next message is judged. So the app gets a
context of its own, with the same state and copies of the configurations (:func:`kept_node_config`),
and a gate that has seen an operator's name takes no other (:class:`FirstNames`).

The run's configuration is not kept either. It is public, and a rehearsal sees it
(:mod:`~flower_ldp.clients.rehearsal`): an app that wrote there what it made of its data would find
it again where texts leave. What an app wants to keep goes into its state.

An app's code that runs outside of the gate, as a lifespan or a module's body, shares the process
and can change anything in it. Only a node of the site's own is out of its reach.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context, RecordDict

from flower_ldp.accounting.ledger import Ledger
from flower_ldp.accounting.ledger.anchor import anchor_of
from flower_ldp.errors import ConfigError, RefusalError
from flower_ldp.own_log import say
from flower_ldp.policy import Policy, find_policy, policy_path
from flower_ldp.refusals import REFUSED_POLICY

_log = logging.getLogger("flower_ldp")


@contextmanager
def kept_node_config(context: Context) -> Iterator[Context]:
    """Yield the context for the app, of which only the state is kept.

    Parameters
    ----------
    context : Context
        Flower's, which it stores when the message is answered. Its node, run and both
        configurations stay what they are, and nothing that the app holds leads to them.
    """
    own = copy.copy(context)
    own.node_config, own.run_config = dict(context.node_config), dict(context.run_config)
    try:
        yield own
    finally:
        keep_state(context, own)


def keep_state(context: Context, own: Context) -> None:
    """Give Flower's context the state of the app's, and nothing else of it.

    What Flower could not store, since the app took it away or put something else there, stays as
    it was. That must be no error: after the charge an answer has one form.
    """
    try:
        state = own.state
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # an attribute can be the app's code
        say(_log, logging.ERROR, "the app left no state to be kept: %s", type(error).__name__)
        return
    if isinstance(state, RecordDict):
        context.state = state


class FirstNames:
    """Where the policy of each node was when it was first asked for; it may not change."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}

    def check(self, context: Context) -> None:
        """Raise ConfigError if another policy is named than before; the first name is taken."""
        path = policy_path(context.node_config)
        if path is None:
            return
        name = os.path.abspath(path)
        first = self._paths.setdefault(context.node_id, name)
        if first != name:
            raise ConfigError(
                f"the node was started with the policy {first}, and now {name} is named: nothing "
                "may change that but the operator, by starting it anew"
            )


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

"""The node's configuration is the operator's: what an app writes there is not kept.

Flower gives an app the very context that it stores afterwards, and stores what the app made of
it: its node's configuration too, which may name the policy by which the next message is
judged. So the app gets a context of its own, with the same state and copies of the configurations
(:func:`kept_node_config`), and a gate that has seen an operator's name takes no other
(:class:`FirstNames`).

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

from flower_ldp.errors import ConfigError
from flower_ldp.own_log import say
from flower_ldp.policy import policy_path

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

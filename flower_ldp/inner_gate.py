"""Whether a gate in this process steps aside, because the node that started it privatizes.

Only :mod:`flower_ldp.node.app` sets this, in the process of an app and before the app is loaded. A
server reaches it by no message and no configuration, and no variable of a shell is read.
"""

#: Whether every ``LdpMod`` of this process passes messages on as they are.
node_privatizes = False

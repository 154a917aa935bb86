"""Whether a gate in this process steps aside, because the node that started it privatizes.

Only :mod:`flower_ldp.node.app_process` sets this, in an app's process before the app is loaded.
No message, configuration or environment variable changes it.
"""

#: Whether this process is a guarded node, which sends no raw reply whatever its policy says.
guarded_node = False
#: Whether every ``LdpMod`` of this process passes messages on as they are.
node_privatizes = False

"""Local differential privacy for Flower.

Clients put :class:`flower_ldp.clients.LdpMod` first among their mods; the server runs a
strategy of :mod:`flower_ldp.strategies`. What leaves a client is already private, whoever
runs the server.
"""

__version__ = "0.2.0"

"""The sandbox of ``flower-ldp-supernode --sandbox``: apps under bubblewrap, one socket to the node.

Nothing is imported here: ``sandbox_init`` and ``escape_test`` start in milliseconds inside.
"""

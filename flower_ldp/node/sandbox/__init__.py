"""The sandbox of ``flower-ldp-supernode --sandbox``: apps under bubblewrap, one socket to the node.

Nothing is imported here: programs inside start in milliseconds.
"""

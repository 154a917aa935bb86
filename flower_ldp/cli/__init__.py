"""The command line ``flower-ldp``."""

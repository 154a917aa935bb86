"""``python -m flower_ldp.node``: the same as the command ``flower-ldp-supernode``."""

from flower_ldp.node.command import main

if __name__ == "__main__":
    main()

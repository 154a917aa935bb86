"""The command ``flower-ldp-supernode``, as ``python -m flower_ldp.node``."""

from flower_ldp.node.command import main

if __name__ == "__main__":
    main()

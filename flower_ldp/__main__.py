"""``python -m flower_ldp`` is ``flower-ldp``."""

from flower_ldp.cli.main import run

if __name__ == "__main__":
    run()

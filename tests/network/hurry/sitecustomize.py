"""Python reads this when it starts, in the processes of a federation of tests.

Flower's nodes ask for messages, and its servers for replies, every three seconds. Tests that run
tens of rounds would mostly wait for that; here both ask more often. Nothing else is changed.
"""

import time

FLOWERS_SECONDS, SECONDS = 3, 0.5
_sleep = time.sleep


def sleep(seconds: float) -> None:
    """Sleep, but not for Flower's three seconds."""
    _sleep(SECONDS if seconds == FLOWERS_SECONDS else seconds)


time.sleep = sleep

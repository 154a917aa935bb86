"""A Flower app in one process, without an engine: for developing it, and for tests."""

from flower_ldp.simulation.apps import (
    Federation,
    FolderApp,
    find_federation,
    load_folder,
    read_settings,
)
from flower_ldp.simulation.faults import Fate, Faults
from flower_ldp.simulation.progress import Watcher
from flower_ldp.simulation.run import run_in_process

__all__ = [
    "Fate",
    "Faults",
    "Federation",
    "FolderApp",
    "Watcher",
    "find_federation",
    "load_folder",
    "read_settings",
    "run_in_process",
]

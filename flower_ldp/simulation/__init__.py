"""A Flower app in one process, without an engine: for developing it, and for tests."""

from flower_ldp.simulation.apps import FolderApp, load_folder
from flower_ldp.simulation.faults import Fate, Faults
from flower_ldp.simulation.grid import InProcessGrid
from flower_ldp.simulation.progress import Watcher
from flower_ldp.simulation.run import run_in_process

__all__ = [
    "Fate",
    "Faults",
    "FolderApp",
    "InProcessGrid",
    "Watcher",
    "load_folder",
    "run_in_process",
]

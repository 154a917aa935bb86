"""Five apps of Flower's repository, in Flower's engine and in one process: what differs, as JSON.

    python -m tests.simulation.flower_apps quickstart-numpy fl-dp-sa

With no name, all five. Ray is started once, and each app has a run of its own in it. Their own
code is what it is there: only the packages that load data are others (``standins``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flower_ldp.simulation import load_folder, run_in_process
from tests.network.sites import KNOWN
from tests.simulation.comparable import Config, Notes, seeded_client, seeded_server
from tests.simulation.ray_once import in_ray, one_ray

HERE = Path(__file__).parent
#: Ways to run without Flower's engine, and what they ask for.
OURS: dict[str, dict[str, Any]] = {
    "strict": {},
    "not strict": {"strict": False},
    "two workers": {"workers": 2},
}


@dataclass(frozen=True, eq=False)
class Compared:
    """An app's folder, how many nodes it has, and what its configuration is told."""

    folder: str
    nodes: int
    config: Config = field(default_factory=dict)


APPS = (
    Compared("quickstart-numpy", 5),
    Compared("quickstart-sklearn", 5, {"num-server-rounds": 3}),
    Compared("quickstart-pytorch", 5, {"num-server-rounds": 2, "fraction-evaluate": 1.0}),
    # Flower's server for such an app keeps replies in a set, so only two have one sum.
    Compared("my-awesome-app", 2, {"num-server-rounds": 2, "fraction-fit": 1.0}),
    Compared("fl-dp-sa", 4, {"num-shares": 3, "reconstruction-threshold": 2}),
)


def run(app: Compared, engine: str, seed: int = 0) -> Notes:
    """Run an app once; return what crossed the grid."""
    loaded, notes = load_folder(HERE / "apps" / app.folder, app.config), Notes()
    server = seeded_server(loaded.server, loaded.run_config, seed, app.nodes, notes)
    client = seeded_client(loaded.client, loaded.run_config, seed)
    if engine == "ray":
        in_ray(server, client, app.nodes)
    else:
        config = loaded.run_config
        run_in_process(server, client, app.nodes, run_config=config, **OURS[engine])
    return notes


def differing(first: Notes, second: Notes) -> list[str]:
    """Return the names of what is not the same in two runs, to the bit."""
    keys = sorted(first.keys() | second.keys())
    return [key for key in keys if first.get(key) != second.get(key)]


def models(notes: Notes) -> int:
    """Return how many different global models the first node was sent, or the server left."""
    found = [notes[key] for key in notes if key.startswith(("to 0:", "left:"))]
    return len({"".join(model) for sent in found for model in sent})


def main(laws: Path | None, names: list[str]) -> None:
    """Print a line for each app: the ways' differences from Flower's engine, and what was compared.

    With ``laws``, the folder of an app for the network tests, run that as well, in each way, and
    leave what its server received beside it.
    """
    chosen = [app for app in APPS if not names or app.folder in names]
    sys.path[:0] = [str(HERE / "standins"), *(str(HERE / "apps" / app.folder) for app in chosen)]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the apps leave their models where they run
        # Before Ray, whose threads a worker should not be a copy of.
        ours = {app: {way: run(app, way) for way in OURS} for app in chosen}
        for way in OURS if laws else ():
            run(_known(laws, way), way)
        with one_ray():
            theirs = {app: run(app, "ray") for app in chosen}
            if laws:
                run(_known(laws, "ray"), "ray")
    for app in chosen:
        found = {
            "app": app.folder,
            "models": models(theirs[app]),
            "compared": sorted(theirs[app]),
            "different": {way: differing(theirs[app], one) for way, one in ours[app].items()},
        }
        print(json.dumps(found), flush=True)


def _known(folder: Path, way: str) -> Compared:
    """Return the app of which only noise is random; it draws it from the system, without a seed."""
    return Compared(str(folder), 3, {**KNOWN, "received": str(folder.parent / f"{way}.json")})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--laws", type=Path)
    main(**vars(parser.parse_args()))

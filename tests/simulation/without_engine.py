"""An example's command without a SuperLink and without Ray: its runs are in this one process.

    python tests/simulation/without_engine.py examples/label_dp/run.py --clients 4

The command itself, the apps, their messages as bytes, policies, ledgers, histories and plots are
what they are with the engine. Only where the apps run is not: ``test_engine.py`` and
``test_eval_engine.py`` run Flower's own engine.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import tomllib

from flower_ldp.simulation import load_folder, run_in_process


def run(command: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example's ``run.py`` in a process of its own."""
    words = [sys.executable, __file__, str(command), *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@contextlib.contextmanager
def _no_superlink(_: Path, policy: Path) -> Iterator[dict[str, str]]:
    """Name the policy for the clients, as the SuperLink's environment would."""
    os.environ["FLOWER_LDP_POLICY"] = str(policy.resolve(strict=True))
    try:
        yield {**os.environ}
    finally:
        del os.environ["FLOWER_LDP_POLICY"]


def _submit(
    app: Path,
    environment: Mapping[str, str],
    clients: int,
    config: Mapping[str, str],
    *,
    verbose: bool = False,
    last_line: str = "wrote ",
) -> None:
    """Run an app to its end; what it raises ends the command."""
    del environment, verbose, last_line
    given = tomllib.loads("\n".join(f"{name} = {value}" for name, value in config.items()))
    loaded = load_folder(app, given)
    run_in_process(loaded.server, loaded.client, clients, run_config=loaded.run_config)


def _main() -> None:
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parents[1]))
    import _runner  # the examples' own: their commands take both functions from it

    _runner.local_superlink = _no_superlink
    _runner.submit = _submit
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()

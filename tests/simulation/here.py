"""Scripts and commands of examples, run in this process: it has imported torch and flwr already.

What a process of its own would show besides is shown once, by the examples' runs in Flower's
engine and with SuperNodes, which start from the command. Give examples ``--workers 1``: workers
are copies of their process, and this one has threads.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import runpy
import signal
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flower_ldp.cli.main import app as command_line

ROOT = Path(__file__).resolve().parents[2]
#: Where modules lie that are of no app.
LASTING = (*map(Path, sysconfig.get_paths().values()), ROOT / "flower_ldp", ROOT / "tests")


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    code: int | str | None
    output: str

    @property
    def text(self) -> str:
        """What it printed, out of its boxes and in one line."""
        return " ".join(self.output.replace("│", " ").split())


def script(path: Path, *arguments: object) -> Done:
    """Run a script from its first line to its last."""
    with _ending(str(path), *arguments) as (output, codes):
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name="__main__")
    return Done(codes[0] if codes else 0, output.getvalue())


def defined(path: Path) -> dict[str, Any]:
    """Return what a script defines, by name; what it does as a command is not done."""
    with _ending(str(path)) as (output, _):
        sys.path.insert(0, str(path.parent))
        found = runpy.run_path(str(path))
    assert found, output.getvalue()
    return found


def flower_ldp(*arguments: object) -> Done:
    """Run the command ``flower-ldp``."""
    with _ending("flower-ldp", *arguments) as (output, codes):
        command_line()
    return Done(codes[0] if codes else 0, output.getvalue())


@contextlib.contextmanager
def _ending(*words: object) -> Iterator[tuple[io.StringIO, list[int | str | None]]]:
    """Leave everything as it was, as the end of a process would; note the code of the exit."""
    output, codes = io.StringIO(), list[int | str | None]()
    log, ending, hook = logging.getLogger("flwr"), signal.getsignal(signal.SIGTERM), sys.excepthook
    level, modules, here = log.level, {*sys.modules}, Path.cwd()
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.object(sys, "argv", [str(word) for word in words]))
        stack.enter_context(patch.object(sys, "path", [*sys.path]))
        stack.enter_context(patch.dict(os.environ))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("default")  # as in a process of its own: no errors
        try:
            yield output, codes
        except SystemExit as ended:
            codes.append(ended.code)
            print(ended.code if isinstance(ended.code, str) else "")
        except Exception:  # of which a process says this, and ends
            traceback.print_exc()
            codes.append(1)
        finally:
            log.setLevel(level)
            signal.signal(signal.SIGTERM, ending)
            sys.excepthook = hook
            os.chdir(here)
            for name in {*sys.modules} - modules:
                if _is_an_apps(name):
                    del sys.modules[name]


def _is_an_apps(name: str) -> bool:
    """Tell whether a module is one of an app's, which the next run has to load anew."""
    file = getattr(sys.modules[name], "__file__", None)
    return file is not None and not any(map(Path(file).is_relative_to, LASTING))

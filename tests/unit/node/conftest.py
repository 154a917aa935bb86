"""Where no guarded node can run, its tests skip and say why."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import pytest

from flower_ldp.node import FlowerChanged, NoLinux, check_here

try:
    check_here()
    REASON = ""
except (FlowerChanged, NoLinux) as error:
    REASON = str(error)


class _Unfit(pytest.Module):
    def collect(self) -> NoReturn:
        pytest.skip(REASON, allow_module_level=True)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Skip a file without importing it: it asks Flower for what it has not."""
    if not REASON or module_path.name == "test_platform_check.py":
        return None
    found: pytest.Module = _Unfit.from_parent(parent, path=module_path)
    return found

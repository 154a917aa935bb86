"""The plugin: ``pytest -p flower_ldp.conformance.plugin --ldp-mechanism MODULE:OBJECT``.

It is no entry point, so pytest loads it only where it is named. It adds one test for each of the
checks to those that pytest finds itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest

from flower_ldp.conformance.checks import CHECKS, Case, ConformanceError
from flower_ldp.extensions.contract import Extension


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("flower-ldp", "an extension of flower-ldp")
    told = "The Extension under test, as MODULE:OBJECT."
    group.addoption("--ldp-mechanism", metavar="NAME", help=told)
    parser.addini("ldp_mechanism", told)
    group.addoption(
        "--ldp-epsilons", default="0.25,1,4", help="Epsilons to try (default: 0.25,1,4)."
    )
    group.addoption(
        "--ldp-dimensions", default="1,2,3", help="Numbers of entries to try (default: 1,2,3)."
    )
    group.addoption("--ldp-delta", default=0.0, type=float, help="The delta to state (default: 0).")
    group.addoption(
        "--ldp-option",
        action="append",
        default=[],
        metavar="NAME=NUMBER",
        help="An option of the extension that is not left at its default.",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add the checks, before others choose among the tests."""
    case = _case(config)
    for name, check in CHECKS.items():
        nodeid = f"{case.extension.name}::{name}"
        item: CheckItem = CheckItem.from_parent(session, name=name, nodeid=nodeid)
        item.check, item.case = check, case
        items.append(item)


class CheckItem(pytest.Item):
    """One check of the extension."""

    check: Callable[[Case], None]
    case: Case

    def runtest(self) -> None:
        """Run the check."""
        self.check(self.case)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what is wrong: of a failed check its sentence alone."""
        if isinstance(excinfo.value, ConformanceError):
            return f"{(self.check.__doc__ or '').strip()}\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the check is, for pytest."""
        return self.path, None, self.nodeid


def _case(config: pytest.Config) -> Case:
    name = config.getoption("--ldp-mechanism") or config.getini("ldp_mechanism")
    if not name:
        raise pytest.UsageError("flower_ldp.conformance: name it by --ldp-mechanism MODULE:OBJECT")
    try:
        extension = resolve_name(name)
        if not isinstance(extension, Extension):
            raise ValueError("it is no Extension")
        given = (one.partition("=") for one in config.getoption("--ldp-option"))
        return Case(
            extension,
            tuple(map(float, config.getoption("--ldp-epsilons").split(","))),
            tuple(map(int, config.getoption("--ldp-dimensions").split(","))),
            config.getoption("--ldp-delta"),
            {option: float(value) for option, _, value in given},
        )
    except (ImportError, AttributeError, ValueError) as error:
        raise pytest.UsageError(f"flower_ldp.conformance: {name}: {error}") from error

"""The plugin: loaded where it is named alone, and each check a test of pytest's."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any, cast

import pytest

from flower_ldp.cli.apps import texts
from flower_ldp.conformance import plugin
from flower_ldp.conformance.plugin import CHECKS
from tests.extension_world import TEMPLATE
from tests.unit.conformance import test_conformance_checks

pytest_plugins = ["pytester"]


class Given:
    """pytest's configuration, with the default of each option but some."""

    def __init__(self, **given: Any) -> None:
        self.given = given

    def getoption(self, name: str) -> Any:
        defaults = {"ldp_epsilons": "1", "ldp_dimensions": "1,2", "ldp_delta": 0.0}
        found: dict[str, Any] = {**defaults, "ldp_option": [], "ldp_mechanism": None}
        found |= {"ldp_release": None, **self.given}
        return found[name.removeprefix("--").replace("-", "_")]

    def getini(self, name: str) -> str:
        return ""


def case_of(**given: Any) -> Any:
    return plugin._case(cast(pytest.Config, Given(**given)))


def test_a_mechanism_gets_each_check_and_a_wrong_one_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take their time
    monkeypatch.syspath_prepend(pytester.path)
    right = TEMPLATE["one_bit/mechanism.py"]
    (pytester.path / "wrong_bit.py").write_text(
        right.replace("BinaryResponse(self.epsilon", "BinaryResponse(1.01")
    )
    found = pytester.runpytest_inprocess(
        *("-p", "flower_ldp.conformance.plugin", "-p", "no:cacheprovider"),
        *("--ldp-mechanism", "wrong_bit:extension", "--ldp-epsilons", "1"),
        *("--ldp-dimensions", "1", "-k", "epsilon_is_kept or one_length"),
    )
    found.assert_outcomes(passed=1, failed=1, deselected=len(CHECKS) - 2)
    found.stdout.fnmatch_lines(["*has a log-ratio of 1.01 between*"])


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "name it by --ldp-mechanism"),
        ({"ldp_mechanism": "gone:extension"}, "No module named"),
        ({"ldp_mechanism": "math:pi"}, "it is no Extension"),
        ({"ldp_release": "math:pi"}, "it is no ReleaseCase"),
        ({"ldp_release": "math:pi", "ldp_mechanism": "math:pi"}, "name it by --ldp-mechanism"),
    ],
)
def test_without_a_mechanism_there_is_no_silent_success(
    given: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(pytest.UsageError, match=complaint):
        case_of(**given)


def test_the_options_say_what_is_tried() -> None:
    name = f"{test_conformance_checks.__name__}:RIGHT"
    case = case_of(ldp_mechanism=name, ldp_option=["step=0.5"], ldp_delta=1e-6)
    assert (case.epsilons, case.dimensions, case.delta) == ((1.0,), (1, 2), 1e-6)
    assert case.options == {"step": 0.5}


def test_a_release_gets_its_checks_and_a_wrong_one_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name, text in texts("wrong-counts", "release", "ward-7").items():
        if name.endswith(".py") or name == "pyproject.toml":
            path = pytester.path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text.replace("per_example=True", "memo=''"))
    for folder in (pytester.path, pytester.path / "tests"):
        monkeypatch.syspath_prepend(folder)
    found = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-k", "ends or charged")
    found.assert_outcomes(passed=2, failed=1, deselected=1)
    found.stdout.fnmatch_lines(["after the app raises, the run must end (per_example=True)"])


def test_it_is_not_loaded_by_itself() -> None:
    named = [one.value for one in entry_points(group="pytest11")]
    assert not [one for one in named if one.startswith("flower_ldp")]

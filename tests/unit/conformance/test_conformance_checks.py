"""The conformance tests pass a right mechanism, and each refutes a wrong one."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from flower_ldp.conformance import ConformanceError
from flower_ldp.conformance.plugin import CHECKS, Case
from flower_ldp.extensions import Extension, Setting
from flower_ldp.mechanisms import RandomSource
from tests.extension_world import TEMPLATE


def _template() -> Extension:
    module = ModuleType("tests.of_the_template")
    sys.modules[module.__name__] = module  # a dataclass looks for its module by name
    exec(TEMPLATE["one_bit/mechanism.py"], module.__dict__)  # noqa: S102
    return module.extension  # type: ignore[no-any-return]


RIGHT = _template()
CASE = Case(RIGHT, (1.0,), (1, 2), draws=600)


@dataclass(frozen=True)
class Spoiled:
    """The template's mechanism, with one thing done wrong."""

    inner: Any
    wrong: str

    @property
    def epsilon(self) -> float:
        return float(self.inner.epsilon)

    @property
    def delta(self) -> float:
        return 0.0

    @property
    def report_bytes(self) -> int:
        return int(self.inner.report_bytes)

    def randomize(self, update: Any, rng: RandomSource) -> bytes:
        own = self.inner.randomize
        if self.wrong == "sampler":
            own = replace(self.inner, epsilon=2 * self.epsilon).randomize
        if self.wrong == "nan" and not np.isfinite(np.asarray(update, dtype=float)).all():
            raise ValueError("no number")
        if self.wrong == "short" and update is None:
            return b""
        if self.wrong == "subclass":
            return type("Bytes", (bytes,), {})(own(update, rng))
        if self.wrong == "own generator":
            return bytes(own(update, RandomSource.from_os()))
        if self.wrong == "fixed":
            return bytes(own(update, RandomSource.seeded(1)))
        if self.wrong == "numpy":
            np.random.rand()  # noqa: NPY002
        if self.wrong == "python":
            random.random()
        if self.wrong == "writes" and isinstance(update, np.ndarray) and update.flags.writeable:
            update[:] = 0
        return bytes(own(update, rng))

    def log_prob(self, report: bytes, update: Any) -> float:
        if self.wrong == "epsilon":
            return float(replace(self.inner, epsilon=2 * self.epsilon).log_prob(report, update))
        if self.wrong == "negative zero" and isinstance(update, np.ndarray):
            is_float = update.dtype.kind == "f" and update.shape == (self.inner.dimension,)
            if is_float and (update == 0).all() and np.signbit(update).all():
                return -math.log(self.inner.dimension) if report[-1] else -math.inf
        if self.wrong == "no law" and update is None:
            raise TypeError("no law")
        found = float(self.inner.log_prob(report, update))
        return found - 0.1 if self.wrong == "sum" else found

    def reports(self) -> Iterator[bytes]:
        every = list(self.inner.reports())
        return iter([*every, b"?"] if self.wrong == "length" else every)

    def estimate(self, report: bytes) -> Any:
        if self.wrong == "lenient":
            return np.zeros(self.inner.dimension)
        return self.inner.estimate(report) * (np.nan if self.wrong == "infinite" else 1.0)


def spoiled(wrong: str) -> Case:
    def make(setting: Setting, dimension: int) -> Spoiled:
        return Spoiled(RIGHT.make(setting, dimension), wrong)

    return replace(CASE, extension=Extension("wrong_bit", make, RIGHT.options))


def checked(check: str, case: Case) -> None:
    for tried in case.settings():
        CHECKS[check](tried)


REFUTED = [
    ("law_sums_to_one", "sum"),
    ("law_sums_to_one", "no law"),
    ("epsilon_is_kept", "epsilon"),
    ("epsilon_is_kept", "negative zero"),
    ("sampler_follows_the_law", "sampler"),
    ("everything_is_answered", "nan"),
    ("everything_is_answered", "short"),
    ("everything_is_answered", "subclass"),
    ("reports_have_one_length", "length"),
    ("randomness_is_the_gates", "own generator"),
    ("randomness_is_the_gates", "fixed"),
    ("nothing_else_is_touched", "numpy"),
    ("nothing_else_is_touched", "python"),
    ("nothing_else_is_touched", "writes"),
    ("every_report_is_understood", "infinite"),
    ("every_report_is_understood", "lenient"),
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_templates_mechanism_passes_and_another_is_refuted(check: str) -> None:
    checked(check, CASE)
    assert check in dict(REFUTED)


@pytest.mark.parametrize(("check", "wrong"), REFUTED)
def test_each_check_refutes_what_is_wrong(check: str, wrong: str) -> None:
    with pytest.raises(ConformanceError, match="epsilon 1, "):
        checked(check, spoiled(wrong))


def test_a_delta_that_is_stated_is_kept_and_no_more() -> None:
    loose = spoiled("epsilon")  # twice epsilon at 1: delta is what exceeds it
    keep = 1 / (1 + math.exp(-2))
    delta = keep - math.e * (1 - keep)
    checked("epsilon_is_kept", replace(loose, delta=delta + 1e-6))
    with pytest.raises(ConformanceError, match="delta is"):
        checked("epsilon_is_kept", replace(loose, delta=delta - 1e-6))

"""The name of a codeword, which is all that a client sends."""

from __future__ import annotations

from dataclasses import dataclass

from flower_ldp.mechanisms.codeword_plan import CodewordPlan


@dataclass(frozen=True)
class NamedCodeword:
    """A report: which code, which row of it, and its sign.

    Parameters
    ----------
    order : int
        n, the code's rows, of all blocks; public.
    rotation : int
        r, in [0, G).
    row : int
        In [0, n), the blocks' rows one after another.
    sign : int
        1 or -1.
    """

    order: int
    rotation: int
    row: int
    sign: int


def check_report(report: NamedCodeword, plan: CodewordPlan) -> None:
    """Raise ValueError unless a report names a codeword of the plan's codes."""
    right = 0 <= report.rotation < plan.rotations and 0 <= report.row < plan.order
    if not (right and report.sign in (-1, 1) and report.order == plan.order):
        raise ValueError(
            f"report must name one of {plan.rotations} codes, one of {plan.order} rows and a sign"
        )

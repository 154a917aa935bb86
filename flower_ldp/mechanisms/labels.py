"""How labels may be randomized: what a mechanism of labels offers, and the methods by name.

:data:`LABEL_METHODS` is the one table. A configuration's ``response`` is one of its keys, a
policy knows the names of its mechanisms, and the audit of the labels' store draws from all of
its methods that need no prior. To add a method, write its mechanism and give it a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from flower_ldp.mechanisms.randomized_response import KaryResponse, LabelMechanism, RRWithPrior
from flower_ldp.mechanisms.subset_selection import SubsetSelection
from flower_ldp.privacy import Unit

#: What makes a mechanism of epsilon, the number of categories and a unit.
Builder = Callable[..., LabelMechanism]
#: Every method by its name in a configuration: the mechanism of each of its stages. A method of
#: one stage has the name of its mechanism.
LABEL_METHODS: Mapping[str, tuple[Builder, ...]] = MappingProxyType(
    {
        "kary_response": (KaryResponse,),
        "rr_with_prior": (RRWithPrior,),
        "subset_selection": (SubsetSelection,),
        "lp_2st": (KaryResponse, RRWithPrior),
        "lp_2st_subset": (SubsetSelection, RRWithPrior),
    }
)


def label_mechanisms(method: str, epsilon: float, categories: int) -> tuple[LabelMechanism, ...]:
    """Return the mechanism of each stage of a method.

    Raises
    ------
    KeyError
        If there is no such method.
    ValueError
        If a parameter is outside its interval.
    """
    return tuple(build(epsilon, categories, unit=Unit.LABEL) for build in LABEL_METHODS[method])


def reports_are_labels(mechanism: LabelMechanism) -> bool:
    """Return whether a report is a label that may stand in the place of the true one."""
    return mechanism.report_end == mechanism.categories

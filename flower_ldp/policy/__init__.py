"""The data owner's policy: what may be released about the data, and how much in all.

A YAML file on the client's machine (``configs/client_policy.yaml`` is a commented sample).
The operator names it, in the node's configuration or in the environment; the run's
configuration cannot, because it belongs to whoever submits the run. The server proposes,
and the policy accepts exactly or refuses. Nothing is clamped, and only the proposal and the
file are looked at, so a refusal tells nothing about the data.

A policy judges one release by itself. The budgets that it states are kept by the ledger,
which alone knows what was spent.
"""

from flower_ldp.policy.files import (
    ENVIRONMENT_VARIABLE,
    NODE_CONFIG_KEY,
    find_policy,
    load_own_policy,
    load_policy,
    policy_path,
)
from flower_ldp.policy.policy import Policy
from flower_ldp.policy.sections import Allowance, App, Budget, Override, Total, Window
from flower_ldp.refusals import REFUSED_POLICY

__all__ = [
    "ENVIRONMENT_VARIABLE",
    "NODE_CONFIG_KEY",
    "REFUSED_POLICY",
    "Allowance",
    "App",
    "Budget",
    "Override",
    "Policy",
    "Total",
    "Window",
    "find_policy",
    "load_own_policy",
    "load_policy",
    "policy_path",
]

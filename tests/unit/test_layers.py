"""Who may import whom: the layers of the package, read from its source.

refusals <- errors <- bounds <- privacy, and files, inner_gate, <- mechanisms
<- accounting <- policy, and wire, <- clients | strategies <- config <- cli; yaml_source is beneath
policy and config; labels is beneath clients and strategies, and advice beneath strategies;
extensions (mechanisms from elsewhere) is above mechanisms, beneath clients and strategies, and the
tests that they have to pass (conformance, with pytest) above it, clients and audit, beneath
nothing; apps (Flower's bundles) is beneath node and cli; isolation (torch) is beneath training and
split, and generators beneath it and clients; training (torch) is above clients; audit_paths is
above that, audit and simulation, beneath cli alone.
A new module at the top of the package fails these tests until it is given a layer.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

import flower_ldp

PACKAGE = "flower_ldp"
ROOT = Path(flower_ldp.__file__).parent

BASE = frozenset(
    {"refusals", "safe_files", "privacy", "errors", "parameter_bounds", "facts", "inner_gate"}
)
MATH = BASE | {"mechanisms"}
YAML = frozenset({"yaml_source"})
OWNER = MATH | YAML | {"accounting", "policy"}
CLIENT = OWNER | {"wire", "labels", "extensions", "shuffle", "generators"}
SERVER = MATH | YAML | {"accounting", "wire", "labels", "advice", "extensions", "shuffle"}
BOTH = CLIENT | SERVER | {"clients", "strategies"}
PATHS = frozenset({"audit", "training", "isolation"})
#: Each module or folder of the package, and those below it that it may import.
LAYERS: dict[str, frozenset[str]] = {
    "refusals": frozenset(),
    "safe_files": frozenset(),
    "privacy": frozenset({"refusals", "errors", "parameter_bounds"}),
    "facts": frozenset(),
    "errors": frozenset({"refusals"}),
    "parameter_bounds": frozenset({"refusals", "errors"}),
    "inner_gate": frozenset(),
    "generators": frozenset(),
    "isolation": frozenset({"generators"}),
    "yaml_source": frozenset({"refusals", "errors", "parameter_bounds"}),
    "mechanisms": BASE,
    "extensions": MATH,
    "conformance": CLIENT | {"clients", "audit"},
    "audit": MATH,
    "accounting": MATH,
    "wire": MATH,
    "labels": MATH,
    "advice": MATH | {"accounting", "wire"},
    "shuffle": MATH | {"accounting", "wire"},
    "app_digests": frozenset({"refusals", "errors"}),
    "policy": MATH | YAML | {"accounting"},
    "clients": CLIENT,
    "audit_paths": BOTH | PATHS | {"simulation"},
    "node": CLIENT | {"clients", "app_digests"},
    "training": CLIENT | {"clients", "isolation"},
    "strategies": SERVER,
    "simulation": frozenset({"refusals", "errors", "parameter_bounds"}),
    "split": BOTH | {"isolation"},
    "config": BOTH,
    "cli": BOTH | PATHS | {"app_digests", "audit_paths", "config", "node", "simulation"},
}
LAYERS["__main__"] = LAYERS["cli"] | {"cli"}
#: Foreign packages that each layer may import, apart from the standard library.
FOREIGN: dict[str, frozenset[str]] = {
    "refusals": frozenset(),
    "safe_files": frozenset(),
    "privacy": frozenset(),
    "errors": frozenset(),
    "parameter_bounds": frozenset(),
    "facts": frozenset(),
    "inner_gate": frozenset(),
    "generators": frozenset({"numpy"}),
    "isolation": frozenset({"numpy", "torch"}),
    "yaml_source": frozenset({"yaml", "pydantic", "pydantic_core"}),
    "mechanisms": frozenset({"numpy"}),
    "extensions": frozenset({"numpy"}),
    "conformance": frozenset({"numpy", "pytest", "flwr"}),
    "accounting": frozenset({"numpy", "scipy"}),
    "app_digests": frozenset({"flwr"}),
    "policy": frozenset({"pydantic", "pydantic_core"}),
    "wire": frozenset({"numpy"}),
    "labels": frozenset({"numpy"}),
    "advice": frozenset(),
    "shuffle": frozenset({"numpy", "cryptography"}),
    "clients": frozenset({"numpy", "flwr"}),
    "split": frozenset({"numpy", "torch"}),
    "strategies": frozenset({"numpy", "flwr", "sklearn"}),
    "training": frozenset({"numpy", "flwr", "torch"}),
    "audit": frozenset({"numpy", "scipy"}),
    "audit_paths": frozenset({"numpy", "flwr"}),
    "node": frozenset({"flwr"}),
    "simulation": frozenset({"flwr"}),
    "config": frozenset({"pydantic", "pydantic_core"}),
    "cli": frozenset({"typer", "click", "rich", "packaging"}),
    "__main__": frozenset(),
}
#: What single modules may import beyond that.
EXCEPTIONS = {
    f"{PACKAGE}.mechanisms.random": frozenset({"cryptography"}),
    f"{PACKAGE}.clients.keys": frozenset({"filelock"}),
    f"{PACKAGE}.config.encrypt": frozenset({"flwr"}),
    f"{PACKAGE}.shuffle.service": frozenset({"starlette"}),
    f"{PACKAGE}.cli.analyzer": frozenset({"uvicorn"}),
    f"{PACKAGE}.strategies.sampling": frozenset({"filelock"}),
    f"{PACKAGE}.labels.losses": frozenset({"torch"}),
    f"{PACKAGE}.audit_paths.dpsgd_release": frozenset({"torch"}),
    f"{PACKAGE}.node": frozenset({"packaging"}),
    f"{PACKAGE}.node.sandbox.command": frozenset({"rich"}),
    f"{PACKAGE}.node.sandbox.seccomp": frozenset({"pyseccomp"}),
    f"{PACKAGE}.simulation.progress": frozenset({"rich"}),
    f"{PACKAGE}.simulation.apps": frozenset({"click"}),  # errors of Flower's parsers
}
#: Generators that can be predicted or repeated, or that bypass RandomSource.
OTHER_RANDOMNESS = ("random", "secrets", "numpy.random")
NUMPY_NAMES = ("np", "numpy")
#: It seeds the generators that apps use, and draws nothing from them.
SEEDS_GENERATORS = f"{PACKAGE}.generators"
#: It imports the command line's groups, modules beside it, by their names.
LOADS_ITS_FOLDER = f"{PACKAGE}.cli.main"


def layer_of(module: str) -> str:
    """Return the layer of a module of the package; "" is the package itself."""
    return [*module.split("."), ""][1]


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return all that a module's source says, once for all that look at it."""
    return list(ast.walk(ast.parse(source)))


def imports(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Yield the absolute name of everything that a module imports, wherever it does so."""
    package = module if is_package else module.rpartition(".")[0]
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def complaints(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return what a module of the package does that its layer may not do."""
    layer = layer_of(module)
    if layer not in LAYERS and layer:
        return [f"{layer} has no layer: give it one in LAYERS"]
    found = []
    foreign = FOREIGN.get(layer, frozenset()) | EXCEPTIONS.get(module, frozenset())
    for name in imports(source, module, is_package=is_package):
        top = name.split(".")[0]
        if within(name, OTHER_RANDOMNESS) and module != SEEDS_GENERATORS:
            found.append(f"imports {name}")
        elif name == f"{PACKAGE}.__version__":
            continue  # text of the package itself, which imports nothing
        elif top == PACKAGE:
            target = layer_of(name)
            if target != layer and target not in LAYERS.get(layer, frozenset()):
                found.append(f"imports {name}")
        elif top not in sys.stdlib_module_names and top not in foreign:
            found.append(f"imports {name}")
    for node in nodes(source):
        if isinstance(node, ast.Assert):
            found.append(f"asserts in line {node.lineno}")
        elif isinstance(node, ast.Attribute) and node.attr == "random":
            of_numpy = isinstance(node.value, ast.Name) and node.value.id in NUMPY_NAMES
            if of_numpy and module != SEEDS_GENERATORS:
                found.append(f"uses np.random in line {node.lineno}")
        elif (
            getattr(node, "id", getattr(node, "attr", "")) in ("__import__", "import_module")
            and module != LOADS_ITS_FOLDER
        ):
            found.append("imports by a computed name")
    return found


MODULES = {
    ".".join([PACKAGE, *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path
    for path in sorted(ROOT.rglob("*.py"))
}


def test_modules_keep_to_their_layer() -> None:
    assert len(MODULES) > 100
    found = {
        module: complaints(path.read_text("utf-8"), module, is_package=path.stem == "__init__")
        for module, path in MODULES.items()
    }
    assert {module: said for module, said in found.items() if said} == {}


def test_every_layer_exists() -> None:
    assert {layer_of(module) for module in MODULES} - {""} == set(LAYERS) == set(FOREIGN)


def test_layers_have_no_cycle() -> None:
    for layer, below in LAYERS.items():
        assert layer not in below
        assert all(LAYERS[lower] <= below for lower in below)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("privacy", "import flower_ldp.mechanisms"),
        ("errors", "import numpy"),
        ("refusals", "from flower_ldp import errors"),
        ("safe_files", "from flower_ldp.errors import LdpError"),
        ("mechanisms.signds", "from flower_ldp.wire import layout"),
        ("mechanisms.signds", "from flower_ldp import wire"),
        ("mechanisms.signds", "from ..wire.layout import ModelLayout"),
        ("mechanisms.signds", "from .. import config"),
        ("mechanisms.signds", "import flower_ldp"),
        ("mechanisms.signds", "import flwr"),
        ("mechanisms.signds", "import yaml"),
        ("mechanisms.signds", "from cryptography.hazmat.primitives import ciphers"),
        ("mechanisms.signds", "from pydantic import BaseModel"),
        ("mechanisms.signds", "import scipy.special"),
        ("mechanisms.signds", "def f():\n    import torch"),
        ("mechanisms.signds", "import typing\nif typing.TYPE_CHECKING:\n    import flwr.app"),
        ("mechanisms.random", "import random"),
        ("mechanisms.random", "import secrets"),
        ("mechanisms.random", "from random import SystemRandom"),
        ("mechanisms.random", "import numpy.random"),
        ("mechanisms.random", "from numpy import random"),
        ("mechanisms.random", "from numpy.random import default_rng"),
        ("mechanisms.random", "import numpy as np\nx = np.random.default_rng()"),
        ("mechanisms.random", "import numpy\nx = numpy.random.rand(1)"),
        ("mechanisms.random", "def f(n):\n    assert n > 0"),
        ("mechanisms.random", "import importlib\nt = importlib.import_module('torch')"),
        ("mechanisms.random", "from importlib import import_module\nt = import_module('torch')"),
        ("mechanisms.random", "t = __import__('torch')"),
        ("wire.layout", "from flwr.app import ArrayRecord"),
        ("wire.layout", "from flower_ldp.clients import LdpMod"),
        ("clients.ldp_mod", "from flower_ldp.strategies.replies import ReplyValidator"),
        ("clients.ldp_mod", "import flower_ldp.config"),
        ("clients.ldp_mod", "import torch"),
        ("strategies.signds", "from flower_ldp.clients import LdpMod"),
        ("clients.signds", "from sklearn.metrics import silhouette_score"),
        ("training.dpsgd", "from flower_ldp.strategies import Momentum"),
        ("training.dpsgd", "import numpy as np\nx = np.random.default_rng()"),
        ("config", "from flower_ldp.training import private_training"),
        ("clients.ldp_mod", "from flower_ldp.training import private_training"),
        ("strategies.signds", "import matplotlib.pyplot as plt"),
        ("labels.priors", "import torch"),
        ("labels.losses", "import flwr"),
        ("config", "import torch"),
        ("config", "from flower_ldp.split import EmbeddingDP"),
        ("clients.embedding", "from flower_ldp.split import EmbeddingDP"),
        ("strategies.split", "import torch"),
        ("audit.auditing", "from flower_ldp.clients import LdpMod"),
        ("audit_paths.cases", "import torch"),
        ("clients.ldp_mod", "from flower_ldp.audit_paths import gate"),
        ("config", "import yaml"),
        ("accounting.ledger", "from flower_ldp.policy import Policy"),
        ("accounting.ledger", "import flwr"),
        ("policy.files", "from flower_ldp.wire import layout"),
        ("policy.files", "import yaml"),
        ("yaml_source", "from flower_ldp.policy import Policy"),
        ("strategies.signds", "from flower_ldp.policy import Policy"),
        ("config", "from flower_ldp.cli import output"),
        ("cli.plan", "import numpy"),
        ("ledger", ""),
        ("ledger.file", "x = 1"),
        ("", "import flwr"),
        ("", "from flower_ldp.clients import LdpMod"),
    ],
)
def test_what_a_layer_may_not_do_is_noticed(module: str, source: str) -> None:
    name = f"{PACKAGE}.{module}".rstrip(".")
    assert complaints(source, name, is_package=not module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("mechanisms.signds", "from flower_ldp.mechanisms.random import RandomSource"),
        ("mechanisms.signds", "from .random import RandomSource\nfrom . import exact"),
        ("mechanisms.signds", "import numpy as np\nfrom flower_ldp.privacy import Unit"),
        ("wire.layout", "from flower_ldp.mechanisms import random\nrandom.RandomSource()"),
        ("config", "import pydantic\nfrom flower_ldp.strategies import Momentum"),
        ("yaml_source", "import yaml\nfrom flower_ldp.errors import ConfigError"),
        ("accounting.ledger", "import sqlite3\nfrom flower_ldp.privacy import Unit"),
        ("policy.files", "import os\nfrom flower_ldp.yaml_source import YamlFormat"),
        ("clients.signds", "from flwr.app import RecordDict\nimport logging"),
        ("labels.losses", "from torch.nn import functional"),
    ],
)
def test_what_a_layer_may_do_is_not(module: str, source: str) -> None:
    assert complaints(source, f"{PACKAGE}.{module}") == []


HEAVY = ("torch", "sklearn", "matplotlib", "ray", "tensorflow", "jax")
LOADED = """
import importlib, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
print([name for name in sys.argv[1].split(",") if name in sys.modules])
"""


def loaded(heavy: tuple[str, ...], *modules: str) -> str:
    """Return which of ``heavy`` a fresh interpreter has after it imported ``modules``."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, ",".join(heavy), *modules],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return done.stdout.strip()


def test_importing_clients_and_strategies_does_not_import_torch() -> None:
    layers = ("clients", "strategies", "config", "labels", "audit_paths", "simulation")
    names = [f"{PACKAGE}.{name}" for name in layers]
    assert loaded(HEAVY, *names) == "[]"


def test_importing_mechanisms_imports_no_flower() -> None:
    heavy = (*HEAVY, "flwr", "yaml", "pydantic")
    assert loaded(heavy, f"{PACKAGE}.mechanisms", f"{PACKAGE}.wire.layout") == "[]"

"""Draws mutants of the package and runs their room's tests: which changes does no test notice?

    pip install cosmic-ray
    python tests/mutants.py draw tests/mutants.jsonl
    python tests/mutants.py run tests/mutants.jsonl --results mutants.jsonl --workers 2
    python tests/mutants.py compare before.jsonl after.jsonl

Cosmic Ray's operators change one line each (a comparison, a number, an operator, a boolean). `draw`
takes 400 by a fixed seed, in proportion to the rooms' lines. `run` writes a result a line as it
goes, and leaves out what the file of results has already. `compare` lists the mutants that the
first run killed and the second did not.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SEED = 20261126
DRAWN = 400
#: The tests of each room, quick ones first: a mutant dies at its first failure.
ROOMS = {
    "flower_ldp/mechanisms": ("tests/unit/mechanisms", "tests/statistical", "tests/vectors"),
    "flower_ldp/accounting": ("tests/unit/accounting", "tests/unit/test_privacy.py"),
    "flower_ldp/clients": ("tests/unit/clients", "tests/unit/training", "tests/vectors"),
    "flower_ldp/node": ("tests/unit/node",),
    "flower_ldp/wire": ("tests/unit/wire", "tests/vectors"),
}
#: Operators that leave code which any test would notice.
LEFT_OUT = ("RemoveDecorator", "Exception", "NoOp", "Shift", "BitOr", "BitAnd", "BitXor")
TIMEOUT_S = 900

Mutant = dict[str, Any]


def draw(path: Path) -> None:
    """Write the mutants of a fixed seed, a JSON object a line."""
    rng = random.Random(SEED)
    lines = {room: sum(len(f.read_text().splitlines()) for f in _files(room)) for room in ROOMS}
    drawn: list[Mutant] = []
    for room in ROOMS:
        count = round(DRAWN * lines[room] / sum(lines.values()))
        drawn += itertools.islice(_mutants(room, rng), count)
        print(f"{room}: {count}")
    path.write_text("".join(json.dumps(mutant) + "\n" for mutant in drawn))


def _files(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _mutants(room: str, rng: random.Random) -> Iterator[Mutant]:
    """Yield mutants in a drawn order, one for each place and kind of change."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    places = [(file, variants) for file in _files(room) for variants in _variants(file)]
    rng.shuffle(places)
    for file, variants in places:
        source = file.read_text()
        name, occurrence = rng.choice(variants)
        mutated = mutate_code(source, get_operator(name)(), occurrence)
        if mutated is not None and _meaning(mutated) != _meaning(source):
            yield from _change(file, source, mutated)


def _variants(file: Path) -> Iterable[list[tuple[str, int]]]:
    """Return the changes that are possible, as (operator, occurrence), place by place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(file.read_text())))
    places: dict[tuple[str, int, int], list[tuple[str, int]]] = {}
    for name in operator_names():
        if any(word in name for word in LEFT_OUT) or get_operator(name).arguments():
            continue
        kind = name.split("_")[0]
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for occurrence, start in enumerate(starts):
            places.setdefault((kind, *start), []).append((name, occurrence))
    return places.values()


def _change(file: Path, source: str, mutated: str) -> Iterator[Mutant]:
    before, after = source.splitlines(), mutated.splitlines()
    changed = [i for i, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
    if len(before) == len(after) and len(changed) == 1:
        line = changed[0]
        yield {
            "file": str(file.relative_to(ROOT)),
            "line": line + 1,
            "before": before[line],
            "after": after[line],
        }


def _meaning(source: str) -> str:
    """Return the code without annotations, which are strings at run time; "" for no Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def run(mutants: Path, results: Path, workers: int) -> None:
    """Run each mutant's tests in a copy of the tree; a result is written when it is there."""
    done = {_key(result) for result in _read(results)} if results.exists() else set()
    open_ones = [mutant for mutant in _read(mutants) if _key(mutant) not in done]
    with tempfile.TemporaryDirectory() as folder, results.open("a") as out:
        copies: SimpleQueue[Path] = SimpleQueue()
        for worker in range(workers):
            copies.put(_copy(Path(folder) / str(worker)))
        with ThreadPoolExecutor(workers) as pool:
            for number, result in enumerate(pool.map(lambda m: _run(m, copies), open_ones), 1):
                out.write(json.dumps(result) + "\n")
                out.flush()
                print(f"{number}/{len(open_ones)} {result['outcome']}: {_key(result)}", flush=True)
    print(Counter(result["outcome"] for result in _read(results)))


def _copy(folder: Path) -> Path:
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache")
    return Path(shutil.copytree(ROOT, folder, ignore=ignored))


def _run(mutant: Mutant, copies: SimpleQueue[Path]) -> Mutant:
    copy = copies.get()
    file = copy / mutant["file"]
    source = file.read_text()
    try:
        file.write_text(_mutated(source, mutant))
        return {**mutant, "outcome": _outcome(copy, mutant["file"])}
    finally:
        file.write_text(source)
        copies.put(copy)


def _mutated(source: str, mutant: Mutant) -> str:
    """Return the file with the mutant's line, which may have moved but not changed."""
    lines = source.splitlines()
    places = [i for i, line in enumerate(lines) if line == mutant["before"]]
    if not places:
        raise SystemExit(f"{mutant['file']} has no line {mutant['before'].strip()!r} any more")
    lines[min(places, key=lambda i: abs(i + 1 - mutant["line"]))] = mutant["after"]
    return "\n".join(lines) + "\n"


def _outcome(copy: Path, file: str) -> str:
    tests = next(tests for room, tests in ROOMS.items() if file.startswith(room + "/"))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    quiet = subprocess.DEVNULL
    try:
        code = subprocess.run(
            command, cwd=copy, env=environment, stdout=quiet, stderr=quiet, timeout=TIMEOUT_S
        ).returncode
    except subprocess.TimeoutExpired:
        return "killed"
    return "survived" if code == 0 else "killed"


def compare(before: Path, after: Path) -> int:
    """Print the mutants that only the first run killed; return 1 if there are any."""
    alive = {_key(result) for result in _read(after) if result["outcome"] == "survived"}
    lost = [m for m in _read(before) if m["outcome"] == "killed" and _key(m) in alive]
    for mutant in lost:
        print(f"{_key(mutant)}\n  - {mutant['before'].strip()}\n  + {mutant['after'].strip()}")
    return int(bool(lost))


def _key(mutant: Mutant) -> str:
    return f"{mutant['file']}:{mutant['line']}: {mutant['after'].strip()}"


def _read(path: Path) -> list[Mutant]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> int:
    """Run one of the three commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("draw").add_argument("mutants", type=Path)
    runs = commands.add_parser("run")
    runs.add_argument("mutants", type=Path)
    runs.add_argument("--results", type=Path, required=True)
    runs.add_argument("--workers", type=int, default=1)
    compared = commands.add_parser("compare")
    compared.add_argument("before", type=Path)
    compared.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "draw":
        draw(options.mutants)
    elif options.command == "run":
        run(options.mutants, options.results, options.workers)
    else:
        return compare(options.before, options.after)
    return 0


if __name__ == "__main__":
    sys.exit(main())

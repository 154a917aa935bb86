"""How large the package is: files, folders, protocols, statements and nodes of its syntax.

    python benchmarks/package_size.py

Docstrings are statements of no effect, and are not counted; nor are the nodes below them.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import flower_ldp

PACKAGE = Path(flower_ldp.__file__).parent


def main() -> None:
    """Print one line for each number."""
    found: Counter[str] = Counter()
    files = [path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts]
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if _is_docstring(node):
                found["AST nodes"] -= 1  # its text is walked too
                continue
            found["AST nodes"] += 1
            found["statements"] += isinstance(node, ast.stmt)
            found["classes"] += isinstance(node, ast.ClassDef)
            found["functions"] += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            found["protocols"] += isinstance(node, ast.ClassDef) and any(
                "Protocol" in ast.dump(base) for base in node.bases
            )
    found["files"] = len(files)
    found["folders with Python"] = len({path.parent for path in files})
    for name, number in found.items():
        print(f"{name}: {number:,}")


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


if __name__ == "__main__":
    main()

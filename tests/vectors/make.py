"""Make the test vectors: ``python -m tests.vectors.make`` writes the JSON files beside this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.vectors import draws, noise, proposals, public, reports, selections

FOLDER = Path(__file__).parent


def made() -> Mapping[str, dict[str, Any]]:
    """Return the content of each file, by its name."""
    return {
        "proposals": proposals.made(),
        "refusals": public.refusals(),
        "signds": reports.signds(),
        "codeword": reports.codeword(),
        "codeword_draws": draws.made(),
        "signds_draws": selections.made(),
        "laplace_draws": noise.made(),
        "gaussian": reports.gaussian(),
        "extension": reports.extension(),
        "evaluation": reports.evaluation(),
        "embedding": reports.embedding(),
        "health": reports.health(),
        "model": reports.model(),
        "subspace": public.subspace(),
        "signs": public.rotations(),
    }


def text(content: Mapping[str, Any]) -> str:
    """Return JSON with a line for each vector."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list):
            rows = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in value)
            parts.append(f' "{name}": [\n{rows}\n ]')
        else:
            parts.append(f' "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    for name, content in made().items():
        (FOLDER / f"{name}.json").write_text(text(content), encoding="utf-8")

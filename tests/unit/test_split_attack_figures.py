"""Tables of attacks on split learning, and what the pages say of them, are what was measured.

``python -m tests.unit.test_split_attack_figures`` writes the measured rows into the tables.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "benchmarks" / "README.md"
PAGE = ROOT / "docs" / "embedding.md"
RESULTS = json.loads((ROOT / "benchmarks/results/split_attacks.json").read_text(encoding="utf-8"))

RELEASED = "released-accuracy"

Row = dict[str, Any]


def percent(found: Row) -> str:
    return f"{100 * found['mean']:.1f} ± {100 * found['deviation']:.1f}"


def share(found: Row, digits: int = 2) -> str:
    return f"{found['mean']:.{digits}f} ± {found['deviation']:.{digits}f}"


def epsilon(row: Row, of: str, without: str) -> str:
    found = row.get(f"epsilon-{of}")
    return without if found is None else f"{found:,g}"


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def inverted(row: Row) -> str:
    near = [share(row["ssim"]), share(row["mse"], 3)]
    if row["attack"] == "mean image":
        return line(["—", "nothing: the mean image", "0", "—", *near, "—", "—"])
    about = [row["bottom"], row["crosses"], epsilon(row, "record", "no bound"), row["attack"]]
    stolen = [percent(row[f"{of}-accuracy"]) for of in ("true-bottom", "surrogate")]
    return line([*about, *near, *stolen])


def known(row: Row) -> str:
    who, labels = row["who"], epsilon(row, "label", "true labels")
    if who == "pixels":
        about = ["who has the images", "pixels", "—", "—"]
    elif who == "party":
        about = ["the party", "its embeddings before the cut", "—", labels]
    else:
        record = epsilon(row, "record", "no bound")
        about = ["an observer", row["crosses"], record, labels]
    ways = ("logistic", "nearest", "components", "uniform")
    return line([*about, *(percent(row[way]) for way in ways)])


def returned(row: Row) -> str:
    about = [row["crosses"], epsilon(row, "label", "true labels")]
    ways = ("used", "cosine", "sign", "best", "uniform")
    return line([*about, *(percent(row[way]) for way in ways), f"{100 * row['limit']:.1f}"])


def table(name: str) -> str:
    heads, of, part = {
        "inversion": (
            "bottom | what crosses | ε of a release | attack | SSIM | MSE | true bottom"
            " | stolen bottom",
            inverted,
            "inversion",
        ),
        "known labels": (
            "who | what it has | ε of a release | ε of a label | logistic regression"
            " | 3 nearest | 10 components | uniform labels",
            known,
            "known-labels",
        ),
        "gradients": (
            "what crosses | ε of a label | label used | cosine | sign | named best"
            " | uniform labels, named best | limit",
            returned,
            "gradients",
        ),
    }[name]
    rule = "|".join("---" for _ in heads.split(" | "))
    return "\n".join([f"| {heads} |", f"|{rule}|", *map(of, RESULTS[part])])


NAMES = ("inversion", "known labels", "gradients")


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_that_of_the_results(name: str) -> None:
    text = TABLES.read_text(encoding="utf-8")
    (shown,) = re.findall(rf"<!-- {name} -->\n\n(.*?)\n\n<!-- end -->", text, flags=re.DOTALL)
    assert shown == table(name), "run python -m tests.unit.test_split_attack_figures"


def inversion(crosses: str, bottom: str = "cnn", attack: str = "adapted") -> Row:
    (row,) = [
        row
        for row in RESULTS["inversion"]
        if (row.get("bottom"), row.get("crosses"), row["attack"]) == (bottom, crosses, attack)
    ]
    return row


def observed(crosses: str) -> Row:
    (row,) = [row for row in RESULTS["known-labels"] if row.get("crosses") == crosses]
    return row


def best(row: Row) -> float:
    return max(row[way]["mean"] for way in ("logistic", "nearest", "components"))


def said(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


def test_each_figure_is_of_three_seeds_and_at_least_ten_images() -> None:
    rows = [row for part in ("inversion", "known-labels", "gradients") for row in RESULTS[part]]
    measured = [cell for row in rows for cell in row.values() if isinstance(cell, dict)]
    assert {len(cell["seeds"]) for cell in measured} == {3}
    assert RESULTS["images-attacked"] >= 10
    assert f"It guesses {RESULTS['images-attacked']} test images" in said(TABLES)


def test_what_is_said_of_unsplit() -> None:
    bare, bits = inversion("1,152 numbers"), inversion("1,152 bits, label 5")
    published = inversion("1,152 bits, label 5", attack="published")
    noisy, code = inversion("1,152 bits, label 1"), inversion("one code of 10")
    (mean,) = [row for row in RESULTS["inversion"] if row["attack"] == "mean image"]
    text = said(TABLES)
    near = [f"{row['ssim']['mean']:.2f}" for row in (bits, bare)]
    assert f"SSIM is {near[0]} instead of {near[1]} without protection" in text
    assert bits["true-bottom-accuracy"]["mean"] - bits["surrogate-accuracy"]["mean"] < 0.01
    assert published["ssim"]["mean"] < 0.05
    near = [f"{row['ssim']['mean']:.2f}" for row in (noisy, mean)]
    assert f"SSIM is {near[0]}, and the mean image has {near[1]}." in text
    reached = [f"{100 * noisy[of]['mean']:.1f} %" for of in ("surrogate-accuracy", RELEASED)]
    assert f"reaches {reached[0]}, and the party's own noisy releases {reached[1]}." in text
    assert f"Its top names {100 * code[RELEASED]['mean']:.1f} %" in text
    for row in (code, inversion("128 numbers", "mlp"), inversion("128 bits, label 5", "mlp")):
        assert row["ssim"]["mean"] < mean["ssim"]["mean"]
        assert row["surrogate-accuracy"]["mean"] < 0.15


def test_what_is_said_of_known_labels() -> None:
    pixels, true, randomized = RESULTS["known-labels"][:3]
    assert (true["epsilon-label"], randomized["epsilon-label"]) == (None, 1.0)
    bits, noisy, code = (
        100 * best(observed(crosses))
        for crosses in ("128 bits, label 5", "128 bits, label 1", "one code of 10")
    )
    text = said(TABLES)
    party = f"{100 * best(true):.1f} % of the rest"
    assert f"the party names {party}.** An observer of bits at label 5 names {bits:.1f} %." in text
    assert f"Without a bottom 40 labels name {100 * best(pixels):.1f} %." in text
    assert f"Labels randomized at ε = 1 change little: {100 * best(randomized):.1f} %." in text
    assert f"Label 1 leaves {noisy:.1f} %. One code leaves {code:.1f} %" in text
    assert max(row["uniform"]["mean"] for row in RESULTS["known-labels"]) < 0.12


def test_what_is_said_of_gradients() -> None:
    for row in RESULTS["gradients"]:
        if row["epsilon-label"] is None:
            assert row["cosine"]["mean"] > 0.999
            assert row["sign"]["mean"] > 0.999
        else:
            assert row["used"]["mean"] > 0.9
            assert row["best"]["mean"] == pytest.approx(row["limit"], abs=0.005)
            assert row["uniform"]["mean"] == pytest.approx(row["limit"], abs=0.02)
            assert row["cosine"]["mean"] < 0.15


def test_the_page_of_split_learning_says_the_same() -> None:
    bare, bits = inversion("1,152 numbers"), inversion("1,152 bits, label 5")
    noisy = inversion("1,152 bits, label 1")
    text = said(PAGE)
    near = [f"{row['ssim']['mean']:.2f}" for row in (bare, bits, noisy)]
    assert f"SSIM {near[0]} from numbers, {near[1]} from bits at label 5" in text
    assert f"{near[2]} at label 1" in text
    stolen = [
        f"{100 * row[f'{of}-accuracy']['mean']:.1f}"
        for row in (bits, noisy)
        for of in ("surrogate", "true-bottom")
    ]
    assert (
        f"{stolen[0]} of {stolen[1]} % at label 5, {stolen[2]} of {stolen[3]} % at label 1" in text
    )
    party = RESULTS["known-labels"][2]
    assert f"name {100 * best(party):.1f} % of the rest" in text
    assert "name all true labels" in text
    assert "23 % of labels at ε = 1" in text


def main() -> None:
    text = TABLES.read_text(encoding="utf-8")
    for name in NAMES:
        written = f"<!-- {name} -->\n\n{table(name)}\n\n<!-- end -->"
        found = rf"<!-- {name} -->.*?<!-- end -->"
        text = re.sub(found, lambda _, new=written: new, text, flags=re.DOTALL)  # type: ignore[misc]
    TABLES.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

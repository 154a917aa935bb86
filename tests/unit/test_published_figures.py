"""docs/published.md and examples/label-dp have the figures of their result files."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")


def results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def spread(found: dict[str, Any], name: str) -> str:
    return f"{found[name]:.2f} ± {found[f'{name}_deviation']:.2f}" if name in found else ""


def test_the_trend_of_protected_scores() -> None:
    found = results("published-evaluation")
    assert len(found["runs"]) == 5
    for line in found["summary"]:
        names = [
            f"{noise}_{of}"
            for noise in ("laplace", "gaussian")
            for of in ("spearman", "mean_error")
        ]
        cells = [f"{line['epsilon']:,g}", *(spread(line, name) for name in names)]
        assert "| " + " | ".join(cells) + " |" in PAGE


def test_what_of_the_scores_suffers_from_the_noise() -> None:
    runs = results("published-evaluation")["runs"]
    places = [one["epsilon"] for one in runs[0]["by_epsilon"]]
    parts = [run["by_epsilon"][places.index(32.0)]["parts"] for run in runs]
    for score, form in (("silhouette", ".2f"), ("calinski_harabasz", ",.0f")):
        for name in ("true", "noisy_labels", "noisy_distances"):
            assert format(mean(one[score][name] for one in parts), form) in PAGE


WAYS = ("two", "one")


def hundreds(sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes in hundreds: numbers in messages have lengths that chance decides."""
    return {name: round(size, -2) for name, size in sizes.items()}


def test_bytes_of_rows_in_a_message_of_their_own() -> None:
    found = results("published-messages")
    text = " ".join(PAGE.split())
    two, one = ({name: f"{n:,}" for name, n in hundreds(found[way]).items()} for way in WAYS)
    assert f"take about {two['down']} bytes down and {two['up']} up" in text
    assert f"One takes about {one['down']} and {one['up']}," in text


def test_the_notebooks_methods() -> None:
    for line in results("published-labels")["summary"]:
        accuracy = (
            f"{100 * line['accuracy_mean']:.1f} ± {100 * line['accuracy_standard_deviation']:.1f} %"
        )
        (row,) = [one for one in PAGE.splitlines() if one.startswith(f"| `{line['row']}`")]
        assert f"| {100 * line['flipped']:.2f} % | {accuracy} |" in row


def test_signds_beside_no_protection() -> None:
    for run in results("published-signds")["runs"]:
        last = run["last"]
        assert f"{last['auc']:.3f}, accuracy {100 * last['accuracy']:.1f} %" in PAGE
        assert f"{last['round']} rounds" in PAGE
        assert last["round"] == run["settings"]["rounds"] == 600
    signs = next(run["curve"] for run in results("published-signds")["runs"] if run["h"])
    best = max(signs, key=lambda row: row["auc"])
    assert f"at best {best['auc']:.3f} on test images, in round {best['round']} |" in PAGE


def test_signds_at_the_settings_of_the_code() -> None:
    runs = results("published-signds-code")["runs"]
    for kind in ("SIGNDS", "NOT_ENCRYPT"):
        last = [run["last"] for run in runs if run["kind"] == kind]
        assert len(last) == 3
        found = {
            name: (mean(one[name] for one in last), stdev(one[name] for one in last))
            for name in ("auc", "accuracy")
        }
        auc = "{:.3f} ± {:.3f}".format(*found["auc"])
        accuracy = "{:.1f} ± {:.1f} %".format(*(100 * value for value in found["accuracy"]))
        assert f"| AUC {auc}, accuracy {accuracy} |" in PAGE
    signs = [100 * run["last"]["accuracy"] for run in runs if run["kind"] == "SIGNDS"]
    told = ", ".join(f"{one:.1f}" for one in signs[:2]) + f" and {signs[2]:.1f} %"
    plain = [100 * run["last"]["accuracy"] for run in runs if run["kind"] == "NOT_ENCRYPT"]
    below = mean(plain) - mean(signs)
    assert f"end at {told}. It is {below:.1f} points below no protection" in PAGE


def test_losses_of_the_language_model() -> None:
    for name in ("float", "quantized", "label 5", "random bits"):
        run = next(one for one in results("split-lm")["runs"] if one["run"] == name)
        assert ", ".join(f"{value:.2f}" for value in run["losses"][:10]) in PAGE


def test_private_labels_of_the_example() -> None:
    page = (ROOT / "examples" / "label-dp" / "README.md").read_text(encoding="utf-8")
    for line in results("label_example")["summary"]:
        accuracy = (
            f"{100 * line['accuracy_mean']:.1f} ± {100 * line['accuracy_standard_deviation']:.1f} %"
        )
        assert f"| `{line['method']}` | {accuracy} |" in page
        assert line["seeds"] == 5

r"""Error of protected cluster scores against epsilon, clients and models.

Each of N clients releases one softmax row of a classifier (``evaluation_models.py``) and the
server scores the clusters by class. The error is relative to the score of the same N clients'
unprotected rows. Methods:

* ``laplace``, ``laplace projected``: noise on each entry, epsilon per row as it is proved
  (sensitivity 2); as it is, and projected onto the simplex;
* ``k-means 400``: 400 codes by k-means on proxy rows, k-ary response, 20 steps of
  expectation-maximization from the proxy's shares; the codes are scored;
* ``confidence``: two levels of confidence for each class, k-ary response, maximum likelihood; the
  proxy rows are scored with their codes' shares;
* ``proxy alone``: the proxy's score, no client asked. What is not better than this says nothing
  about clients.

    python benchmarks/evaluation.py mnist.npz --output benchmarks/results/evaluation.json
    python benchmarks/evaluation.py mnist.npz --tune \
        --output benchmarks/results/evaluation-tuning.json

``--tune`` chooses the number of levels: other models (seeds 100 to 102) and held-out training
images as clients; it reads no test image.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _environment import write_report
from evaluation_models import PROXIES, ModelRows, Rows, load_images, models

from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.codebook import CodebookResponse, em_estimate
from flower_ldp.mechanisms.laplace import Laplace, project_to_simplex
from flower_ldp.mechanisms.random import RandomSource
from flower_ldp.strategies.evaluation_scores import (
    CALINSKI_HARABASZ_SCORE,
    DEFAULT_LEVELS,
    SILHOUETTE_SCORE,
    ClusterScore,
    ProxySupport,
    confidence_codebook,
    kmeans_codebook,
    score_trust,
)

SCORES = {
    "silhouette": ClusterScore(SILHOUETTE_SCORE),
    "calinski_harabasz": ClusterScore(CALINSKI_HARABASZ_SCORE),
}
ITERATIONS = (10, 25, 100, 480)
LAPLACE_EPSILONS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
# Scoring 10,000 noisy rows takes a second.
LAPLACE_EPSILONS_OF_MANY = (8.0, 64.0, 128.0)
CODE_EPSILONS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0)
TUNED_EPSILONS = (4.0, 8.0)
TRUST_EPSILONS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
REPEATS = {100: 4, 1000: 3, 10_000: 1}
TRUST_ITERATIONS = (480,)
TUNED_LEVELS = (1, 2, 3, 4, 6)
PROXY_ROWS = 1500
Found = tuple[str, str, float, dict[str, float]]


def of_rows(rows: Rows) -> dict[str, float]:
    return {name: score.of_rows(rows) for name, score in SCORES.items()}


def of_law(rows: Rows, shares: Rows, total: int) -> dict[str, float]:
    return {name: score.of_law(rows, shares, total) for name, score in SCORES.items()}


def by_laplace(clients: Rows, rng: RandomSource) -> Iterator[Found]:
    """Yield method, proxy, epsilon and scores."""
    total = len(clients)
    for epsilon in LAPLACE_EPSILONS if total < 10_000 else LAPLACE_EPSILONS_OF_MANY:
        # One release of N rows has the law of N releases of one row each.
        mechanism = Laplace(epsilon, clients.shape[1], rows=total)
        noisy = mechanism.estimate(mechanism.randomize(clients, rng))
        yield "laplace", "-", epsilon, of_rows(noisy)
        yield "laplace projected", "-", epsilon, of_rows(project_to_simplex(noisy))


def by_codes(
    clients: Rows, proxy: str, books: dict[str, Rows], proxy_rows: Rows, rng: RandomSource
) -> Iterator[Found]:
    """Yield method, proxy, epsilon and scores, for each codebook."""
    total = len(clients)
    for method, codes in books.items():
        own = None
        for epsilon in TUNED_EPSILONS if method.endswith(" levels") else CODE_EPSILONS:
            mechanism = CodebookResponse(codes, epsilon)
            own = mechanism.encode(clients) if own is None else own
            reports = mechanism.response.randomize_array(own, rng)
            support = ProxySupport.of(mechanism, proxy_rows)
            if method == "k-means 400":
                start = np.bincount(support.cells, minlength=mechanism.codes).astype(np.float64)
                shares = em_estimate(mechanism.count(reports), epsilon, start, iterations=20)
                yield method, proxy, epsilon, of_law(codes, shares, total)
            else:
                shares = support.spread(mechanism.estimate(reports))
                yield method, proxy, epsilon, of_law(support.rows, shares, total)


def codebooks(rows: Rows, *, tuning: bool, levels: int | None) -> dict[str, Rows]:
    if levels is not None:
        return {f"confidence, levels {levels}": confidence_codebook(rows, levels)}
    if tuning:
        return {f"{levels} levels": confidence_codebook(rows, levels) for levels in TUNED_LEVELS}
    return {
        "confidence": confidence_codebook(rows, DEFAULT_LEVELS),
        "k-means 400": kmeans_codebook(rows, 400),
    }


def measure(
    model: ModelRows, sizes: list[int], *, tuning: bool, levels: int | None
) -> Iterator[dict[str, object]]:
    """Yield one record for each method, epsilon, number of clients and repeat."""
    books = {
        name: codebooks(rows, tuning=tuning, levels=levels) for name, rows in model.proxies.items()
    }
    codes_only = tuning or levels is not None
    for total in sizes:
        for repeat in range(2 if tuning else REPEATS.get(total, 1)):
            seed = (model.seed * 1000 + model.iterations) * 100 + repeat
            drawn = np.random.default_rng(seed).choice(len(model.clients), total, replace=False)
            clients, rng = model.clients[drawn], RandomSource.seeded(seed)
            true = of_rows(clients)
            found: list[Found] = [] if codes_only else list(by_laplace(clients, rng))
            for proxy, rows in model.proxies.items():
                even = np.full(len(rows), 1.0 / len(rows))
                found.append(("proxy alone", proxy, 0.0, of_law(rows, even, total)))
                found.extend(by_codes(clients, proxy, books[proxy], rows, rng))
            for method, proxy, epsilon, scores in found:
                yield {
                    "method": method,
                    "proxy": proxy,
                    "epsilon": epsilon,
                    "clients": total,
                    "iterations": model.iterations,
                    "errors": {name: scores[name] / true[name] - 1.0 for name in SCORES},
                }


def trusted(model: ModelRows, sizes: list[int]) -> Iterator[dict[str, object]]:
    """Yield what ``score_trust`` says of the silhouette by confidence codes."""
    rows = model.proxies["matched"]
    for total in sizes:
        for epsilon in TRUST_EPSILONS:
            mechanism = CodebookResponse(confidence_codebook(rows), epsilon)
            support = ProxySupport.of(mechanism, rows)
            rng = RandomSource.seeded(model.seed)
            verdict = score_trust(mechanism, support, SCORES["silhouette"], total, rng, repeats=10)
            yield {
                "seed": model.seed,
                "iterations": model.iterations,
                "clients": total,
                "epsilon": epsilon,
                "recovery": round(verdict.recovery, 3),
                "error": round(verdict.error, 4),
                "flagged": verdict.echoes_proxy or verdict.is_noise,
            }


def summarize(records: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return mean and standard deviation of absolute relative errors over seeds and repeats."""
    groups: dict[tuple[object, ...], list[dict[str, float]]] = defaultdict(list)
    keys = ("method", "proxy", "clients", "iterations", "epsilon")
    for record in records:
        groups[tuple(record[key] for key in keys)].append(record["errors"])  # type: ignore[arg-type]
    cells = []
    for group, errors in groups.items():
        cell: dict[str, object] = dict(zip(keys, group, strict=True))
        for name in SCORES:
            absolute = np.abs([error[name] for error in errors])
            cell[name] = {
                "mean": round(float(absolute.mean()), 4),
                "std": round(float(absolute.std()), 4),
                "bias": round(float(np.mean([error[name] for error in errors])), 4),
            }
        cells.append({**cell, "runs": len(errors)})
    return cells


def print_tables(cells: list[dict[str, object]]) -> None:
    """Print mean absolute errors in percent; a column is an epsilon."""
    lines: dict[tuple[object, ...], dict[float, str]] = defaultdict(dict)
    for cell in cells:
        key = tuple(cell[name] for name in ("clients", "iterations", "method", "proxy"))
        both = [100 * float(cell[name]["mean"]) for name in SCORES]  # type: ignore[index]
        lines[key][float(cell["epsilon"])] = f"{both[0]:.1f}/{both[1]:.1f}"  # type: ignore[arg-type]
    before: object = None
    print("mean absolute error in percent, silhouette/Calinski-Harabasz")
    for key in sorted(lines, key=str):
        if key[:2] != before:
            print(f"\nN = {key[0]:,}, model of {key[1]} iterations")
            before = key[:2]
        shown = "  ".join(f"{epsilon:g}: {text}" for epsilon, text in sorted(lines[key].items()))
        print(f"  {key[2]!s:<18}{key[3]!s:<9}{shown}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, help="npz in MNIST's layout")
    parser.add_argument("--tune", action="store_true", help="choose levels on held-out data")
    parser.add_argument("--levels", type=int, help="only confidence codes, with so many levels")
    parser.add_argument("--seeds", nargs="+", type=int, help="of the models")
    parser.add_argument("--clients", nargs="+", type=int, help="N")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    seeds = options.seeds or ([100, 101, 102] if options.tune else [0, 1, 2])
    sizes = options.clients or ([1000] if options.tune else list(REPEATS))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NoProtectionWarning)
    images = load_images(options.data, PROXY_ROWS, tuning=options.tune)
    records: list[dict[str, object]] = []
    trust: list[dict[str, object]] = []
    confidences = []
    start = time.monotonic()
    for seed in seeds:
        for model in models(images, seed, ITERATIONS):
            top = float(model.clients.max(axis=1).mean())
            confidences.append({"seed": seed, "iterations": model.iterations, "top": round(top, 3)})
            records.extend(measure(model, sizes, tuning=options.tune, levels=options.levels))
            if not options.tune and options.levels is None and model.iterations in TRUST_ITERATIONS:
                trust.extend(trusted(model, sizes))
            elapsed = time.monotonic() - start
            print(f"seed {seed}, {model.iterations} iterations: {elapsed:.0f} s", file=sys.stderr)
    cells = summarize(records)
    print_tables(cells)
    if options.output is not None:
        body = {
            "seeds": seeds,
            "proxies": list(PROXIES),
            "proxy_rows": PROXY_ROWS,
            "torch": torch.__version__,
            "mean_top_probability": confidences,
            "cells": cells,
            "trust": trust,
        }
        write_report(options.output, "benchmarks/evaluation.py", arguments, body)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

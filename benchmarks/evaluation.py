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

import warnings
from collections.abc import Iterator
from typing import Annotated

import _options as options
import numpy as np
import torch
import typer
from _environment import report
from _runs import Run, groups, say, table
from evaluation_models import PROXIES, ModelRows, Rows, load_images, models
from numpy.typing import NDArray

from flower_ldp.mechanisms.base import NoProtectionWarning
from flower_ldp.mechanisms.codebook import CodebookResponse
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


def em_estimate(counts: NDArray[np.int64], epsilon: float, prior: Rows) -> Rows:
    """Return shares by 20 steps of expectation-maximization from a prior, which stay near it."""
    shares, noise = prior / prior.sum(), 1.0 / np.expm1(epsilon)
    for _ in range(20):
        ratio = counts / (noise + shares)
        shares = shares * (ratio + noise * ratio.sum()) / counts.sum()
        shares /= shares.sum()
    return np.asarray(shares)


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
                shares = em_estimate(mechanism.count(reports), epsilon, start)
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
) -> Iterator[Run]:
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


def trusted(model: ModelRows, sizes: list[int]) -> Iterator[Run]:
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


def keys_of(record: Run) -> Run:
    """Return what records have in common that differ in model and draw alone."""
    keys = ("method", "proxy", "clients", "iterations", "epsilon")
    return {key: record[key] for key in keys}


def summarized(group: list[Run]) -> Run:
    """Return mean and standard deviation of absolute relative errors over seeds and repeats."""
    cell = keys_of(group[0])
    for name in SCORES:
        errors = np.array([record["errors"][name] for record in group])
        figures = {"mean": abs(errors).mean(), "std": abs(errors).std(), "bias": errors.mean()}
        cell[name] = {figure: round(float(one), 4) for figure, one in figures.items()}
    return {**cell, "runs": len(group)}


def main(
    data: options.Mnist,
    tune: Annotated[bool, typer.Option("--tune", help="Choose levels on held-out data.")] = False,
    levels: Annotated[int | None, typer.Option(help="Only confidence codes, with these.")] = None,
    seeds: Annotated[list[int] | None, typer.Option(help="Of the models; repeatable.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="N; repeatable.")] = None,
    output: options.Report = None,
) -> None:
    """Score the clusters of all models by all methods."""
    seeds = seeds or ([100, 101, 102] if tune else [0, 1, 2])
    sizes = clients or ([1000] if tune else list(REPEATS))
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", NoProtectionWarning)
    images = load_images(data, PROXY_ROWS, tuning=tune)
    records: list[Run] = []
    trust: list[Run] = []
    confidences: list[Run] = []
    for model in (one for seed in seeds for one in models(images, seed, ITERATIONS)):
        top = float(model.clients.max(axis=1).mean())
        confidences.append(
            {"seed": model.seed, "iterations": model.iterations, "top": round(top, 3)}
        )
        say(confidences[-1])
        records.extend(measure(model, sizes, tuning=tune, levels=levels))
        if not tune and levels is None and model.iterations in TRUST_ITERATIONS:
            trust.extend(trusted(model, sizes))
    cells = [summarized(group) for group in groups(records, keys_of)]
    table(cells)
    body = {
        "seeds": seeds,
        "proxies": list(PROXIES),
        "proxy_rows": PROXY_ROWS,
        "torch": torch.__version__,
        "mean_top_probability": confidences,
        "cells": cells,
        "trust": trust,
    }
    report(output, body)


if __name__ == "__main__":
    typer.run(main)

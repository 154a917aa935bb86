"""Local priors in a federation: k-means in rounds, counts of randomized labels, priors."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flower_ldp.labels import priors_from_counts
from flower_ldp.labels.clusters import moved
from flower_ldp.mechanisms import KaryResponse
from label_dp_example.data import CATEGORIES

_REPLY_SECONDS = 3_600.0
_WAIT_SECONDS = 60
#: Deviation of the first centers in each (standardized) pixel; the steps do the rest.
_SPREAD = 0.5


def find_priors(grid: Grid, config: Mapping[str, Any], dimensions: int) -> dict[str, int]:
    """Cluster the clients' images, find each cluster's prior, and tell the clients.

    Parameters
    ----------
    grid : Grid
        The clients. All of them take part.
    config : mapping
        The run's configuration.
    dimensions : int
        Pixels of an image.

    Returns
    -------
    dict
        How many rounds and clients that took, and the bytes up per client.
    """
    nodes = connected(grid)
    shape = (int(config["clusterings"]), int(config["clusters"]), dimensions)
    rng = np.random.default_rng(int(config["seed"]))
    centers = (_SPREAD * rng.standard_normal(shape)).astype(np.float32)
    size = 0
    for _ in range(int(config["cluster-steps"])):
        replies = ask(grid, nodes, "query.clusters", centers=centers)
        size += _bytes(replies[0])
        sums = np.sum([reply["sums"] for reply in replies], axis=0)
        numbers = np.sum([reply["numbers"] for reply in replies], axis=0)
        centers = np.stack([moved(*parts) for parts in zip(centers, sums, numbers, strict=True)])
    replies = ask(grid, nodes, "query.counts", centers=centers)
    size += _bytes(replies[0])
    counts = np.sum([reply["counts"] for reply in replies], axis=0)
    law = KaryResponse(float(config["epsilon"]), CATEGORIES).transition()
    priors = np.stack([priors_from_counts(some, law, steps=50) for some in counts])
    ask(grid, nodes, "query.priors", centers=centers, priors=priors)
    print(f"priors of {shape[0]} x {shape[1]} clusters from {len(nodes)} clients", flush=True)
    return {"clients": len(nodes), "rounds": int(config["cluster-steps"]) + 2, "bytes-up": size}


def connected(grid: Grid) -> list[int]:
    """Return all clients, waiting for the first."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while not (nodes := list(grid.get_node_ids())):
        if time.monotonic() > deadline:
            raise TimeoutError("no client came")
        time.sleep(0.5)
    return nodes


def ask(
    grid: Grid, nodes: list[int], message_type: str, **arrays: NDArray[np.generic]
) -> list[dict[str, NDArray[np.generic]]]:
    """Send arrays to all clients and return the arrays of each reply."""
    record = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return ask_record(grid, nodes, message_type, record)


def ask_record(
    grid: Grid, nodes: list[int], message_type: str, record: ArrayRecord
) -> list[dict[str, NDArray[np.generic]]]:
    """Send a record to all clients and return the arrays of each reply.

    Raises
    ------
    RuntimeError
        If not all of them replied.
    """
    content = RecordDict({"arrays": record})
    messages = [grid.create_message(content, message_type, node, "") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=_REPLY_SECONDS))
    failed = [reply.error.reason for reply in replies if reply.has_error()]
    if failed or len(replies) < len(nodes):
        raise RuntimeError(f"{message_type}: {len(replies)} of {len(nodes)} replied, {failed}")
    return [
        {
            name: array.numpy()
            for arrays_of in reply.content.array_records.values()
            for name, array in arrays_of.items()
        }
        for reply in replies
    ]


def _bytes(reply: dict[str, NDArray[np.generic]]) -> int:
    return sum(array.nbytes for array in reply.values())

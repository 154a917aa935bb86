"""Flower's engine, started once for several runs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest.mock import patch

import ray
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from flwr.simulation.ray_transport.ray_actor import BasicActorPool


class _KeptActors(BasicActorPool):
    """Flower's pool, whose processes serve the next run too."""

    _kept: ClassVar[list[Any]] = []

    def add_actors_to_pool(self, num_actors: int) -> None:
        if not self._kept:
            super().add_actors_to_pool(num_actors)
            self._kept.extend(self.pool)
        self.pool, self.num_actors = list(self._kept), len(self._kept)

    def terminate_all_actors(self) -> None:
        """Leave them to the end of Ray."""


@contextlib.contextmanager
def one_ray() -> Iterator[None]:
    """Keep Ray and its processes, which Flower's engine ends after each run."""
    path = os.pathsep.join(sys.path)
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    with patch.object(raybackend, "BasicActorPool", _KeptActors), patch.object(ray, "shutdown"):
        yield
    ray.shutdown()


def in_ray(server: ServerApp, client: ClientApp, nodes: int) -> None:
    """Run apps in Flower's engine, on both of its processors."""
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, nodes, backend_config=resources)

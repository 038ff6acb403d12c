"""The decisions of the family ``model_replicas``, and the block that says them."""

from dataclasses import dataclass
from typing import Any

from planner.models.replica_configuration import ReplicaConfiguration

__all__ = ["NAME", "ReplicaChoice"]


NAME = "model_replicas"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChoice:
    """All decisions of the family, and how often a replica reads."""

    configuration: ReplicaConfiguration
    samples_per_read: int

    @property
    def headline(self) -> str:
        """Replicas, workers and servers."""
        chosen = self.configuration
        replicas, workers, servers = (
            f"{number} {noun}{'s' * (number != 1)}"
            for number, noun in (
                (chosen.num_replicas, "replica"),
                (chosen.num_workers, "worker"),
                (chosen.num_servers, "server"),
            )
        )
        return f"{replicas} x {workers}, {servers}"

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        chosen = self.configuration
        layers = [
            {
                "partitions": layer.num_partitions,
                "threads": layer.num_threads,
                "replicas": layer.num_replicas,
                "workers": [list(row) for row in layer.workers],
            }
            for layer in chosen.layers
        ]
        return {
            "num_parameter_servers": chosen.num_servers,
            "num_replicas": chosen.num_replicas,
            "num_workers_per_replica": chosen.num_workers,
            "samples_per_read": self.samples_per_read,
            "layers": layers,
        }

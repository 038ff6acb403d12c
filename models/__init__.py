"""Physics: the seconds and bytes of a choice. One file per phenomenon; none asks who is searching."""

from importlib import import_module
from types import ModuleType

__all__ = [
    "bottleneck",
    "bsp_server",
    "collectives",
    "compression",
    "compute",
    "data_parallel",
    "fusion_wait",
    "group_costs",
    "input",
    "linearisation",
    "list_schedule",
    "memory",
    "model_replicas",
    "overlap",
    "pipeline_schedule",
    "pipeline_stages",
    "replica_configuration",
    "roofline",
    "segments",
    "server_links",
    "server_network",
    "server_pipeline",
    "ssgd_dag",
    "ssgd_equations",
    "stragglers",
    "tiers",
    "training_flop",
    "transformer_compute",
    "transformer_events",
    "transformer_exchange",
    "transformer_memory",
    "transformer_offload",
    "transformer_overlap",
    "transformer_replicas",
    "transformer_schedule",
    "transformer_time",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this room when it is first asked for."""
    if name in __all__:
        return import_module(f"planner.models.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

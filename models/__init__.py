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
    "failures",
    "fusion_wait",
    "group_costs",
    "input",
    "linearisation",
    "list_schedule",
    "memory",
    "model_replicas",
    "money",
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
    "transformer_interval",
    "transformer_memory",
    "transformer_mixed",
    "transformer_mixed_batches",
    "transformer_mixed_layers",
    "transformer_mixed_memory",
    "transformer_mixed_schedule",
    "transformer_offload",
    "transformer_profile",
    "transformer_replicas",
    "transformer_schedule",
    "transformer_time",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this room when it is first asked for."""
    if name in __all__:
        return import_module(f"planner.models.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Physics: the seconds and bytes of a choice. One file per phenomenon; none asks who is searching.

``__all__`` are the modules that are meant for scripts, as docs/scripting.md lists them; others are parts of these.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "asynchronous",
    "bottleneck",
    "bsp_server",
    "collectives",
    "compression",
    "compute",
    "data_parallel",
    "ddp_curve",
    "ddp_iteration",
    "ddp_ring",
    "failures",
    "fusion_wait",
    "group_costs",
    "input",
    "layouts",
    "linearisation",
    "list_schedule",
    "memory",
    "model_replicas",
    "money",
    "months",
    "overlap",
    "pipeline_schedule",
    "pipeline_stages",
    "replica_configuration",
    "replica_memory",
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
    "transformer_exchange",
    "transformer_memory",
    "transformer_mixed",
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

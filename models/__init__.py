"""Physics: the seconds and bytes of a choice. A chapter per phenomenon; none asks who is searching.

``__all__`` are its chapters.
"""

from importlib import import_module
from types import ModuleType

__all__ = [
    "activations",
    "asynchronous",
    "balance",
    "communication",
    "compression",
    "compute",
    "data_parallel",
    "ddp",
    "exchange",
    "exchange_run",
    "failures",
    "input",
    "layer_memory",
    "layouts",
    "memory",
    "money",
    "operators",
    "parameters",
    "programs",
    "replica_memory",
    "replica_segments",
    "replicas",
    "schedule",
    "servers",
    "stages",
    "tiers",
    "transformer_communication",
    "transformer_interval",
    "transformer_schedule",
    "transformer_step",
    "transformer_time",
]


def __getattr__(name: str) -> ModuleType:
    """Import a module of this room when it is first asked for."""
    if name in __all__:
        return import_module(f"planner.models.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Physics: the seconds and bytes of a choice. One file per phenomenon; none asks who is searching."""

__all__ = ["collectives", "compute", "data_parallel", "fusion_wait", "input", "memory", "overlap"]

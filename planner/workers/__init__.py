"""Worker processes: of this machine, or those of a Dask scheduler."""

from planner.workers.pool import worker_pool

__all__ = ["worker_pool"]

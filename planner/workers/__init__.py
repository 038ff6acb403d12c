"""Processes that work for one: on this machine, or those of a Dask scheduler."""

from planner.workers.crew import crew_of

__all__ = ["crew_of"]

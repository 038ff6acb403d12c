"""Sweeps: many variants of one question, answered into a store that survives whatever stops them.

``load_sweep`` reads the block ``sweep`` of a question, ``Store`` is the file, ``run`` answers what is not answered yet
with any :class:`~planner.sweep.workers.Workers`, ``summary_of`` and ``export`` read the store.
"""

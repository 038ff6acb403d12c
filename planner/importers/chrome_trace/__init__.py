"""Traces of torch.profiler: seconds of every module, from what ``export_chrome_trace`` writes."""

from planner.importers.chrome_trace.reader import read_chrome_trace

__all__ = ["read_chrome_trace"]

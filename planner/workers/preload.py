"""What a worker process of this machine does before its first task; Dask calls it by its name."""

import signal
import threading
from importlib import import_module
from typing import Any

__all__ = ["dask_setup"]


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C to the process that asks, which ends the workers; import what everything needs."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_module("planner.api")

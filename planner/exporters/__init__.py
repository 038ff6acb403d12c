"""Plans out, as launch files of the programs that run them: each names the version it is for."""

from planner.exporters.export import (
    TARGETS,
    Export,
    Job,
    Settings,
    Trained,
    advised,
    degrees_of,
    export,
    network_of,
    target_of,
    trained_of,
)

__all__ = ["TARGETS", "Export", "Job", "Settings", "Trained", "advised", "degrees_of", "export", "network_of"]
__all__ += ["target_of", "trained_of"]

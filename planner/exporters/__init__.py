"""Plans out, as launch files of the programs that run them: each names the version it is for."""

from planner.exporters.export import (
    TARGETS,
    Export,
    Job,
    Settings,
    TrainingBlocks,
    advised,
    degrees_of,
    export,
    network_of,
    target_of,
    training_of,
)

__all__ = ["TARGETS", "Export", "Job", "Settings", "TrainingBlocks", "advised", "degrees_of", "export", "network_of"]
__all__ += ["target_of", "training_of"]

"""Plans out, as launch files of the programs that run them: each names the version it is for."""

from planner.exporters.export import (
    TARGETS,
    Export,
    Exporter,
    Job,
    Settings,
    TrainingBlocks,
    advised,
    degrees_of,
    export,
    network_of,
    reader_of,
    target_of,
)

__all__ = ["TARGETS", "Export", "Exporter", "Job", "Settings", "TrainingBlocks", "advised", "degrees_of", "export"]
__all__ += ["network_of", "reader_of", "target_of"]

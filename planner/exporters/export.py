"""What every exporter takes and gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import InfeasibleError
from planner.exporters.torchrun import safe_name
from planner.plan import Plan
from planner.problem import Problem

__all__ = ["Export", "Job", "Settings", "job_name", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a plan does not know of a launch.

    Attributes
    ----------
    script
        The user's training program, and its arguments; None where the target brings its own.
    image
        Of a container, where the target starts containers.
    program
        What trains, where the target only starts machines (Slurm, SkyPilot, Kubernetes): the name of another target.
    name
        Of the job.
    """

    script: str | None = None
    image: str | None = None
    program: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A plan with the question it answers: the network that was chosen is ``problem.dnn``.

    ``offers``: where the plan came with the answer to a question of a purchase, the rows of its fleet, as
    ``planner.procurement/1`` has them: provider, instance, region, term, device, count.
    ``is_probe``: it is only asked whether the target can run the plan, so that sizes of buffers are not searched for.
    """

    problem: Problem
    plan: Plan
    settings: Settings = field(default_factory=Settings)
    offers: tuple[Mapping[str, Any], ...] = ()
    is_probe: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Launch files.

    Attributes
    ----------
    target
        As it is named on the command line.
    version
        Of the program that reads the files; it stands in each of them, too, where the format has comments.
    files
        Text by file name; the first one is the one to begin with.
    notes
        What the program cannot express, what that loses, and what is left to the user; nothing is dropped in silence.
    how_to_run
        The command, or the few, that start it.
    """

    target: str
    version: str
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()
    how_to_run: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return ``planner.export/1``."""
        return {
            "schema": "planner.export/1",
            "target": self.target,
            "version": self.version,
            "files": dict(self.files),
            "notes": list(self.notes),
            "how_to_run": list(self.how_to_run),
        }


def refused(target: str, why: str, mend: str) -> InfeasibleError:
    """Return the error of a plan that a target cannot run at all; exit code 1."""
    return InfeasibleError(f"{target} cannot run this plan: {why}. {mend}")


def job_name(job: Job) -> str:
    """Return the name of the job, as Kubernetes allows it."""
    return safe_name(job.settings.name, safe_name(job.problem.dnn.name))

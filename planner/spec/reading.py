"""What every part of building a problem reads and writes."""

from dataclasses import dataclass
from typing import Any

from planner.spec.question import Spec
from planner.spec.source import Notes, Source

__all__ = ["Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One question as it is read.

    Attributes
    ----------
    spec, source
        What is asked, checked, and its text.
    notes
        Faults, assumptions and warnings on the way.
    resolved
        The spec with nothing left to look up or to assume; filled on the way.
    """

    spec: Spec
    source: Source
    notes: Notes
    resolved: dict[str, Any]

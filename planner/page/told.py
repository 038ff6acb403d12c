"""What the sections of a plan's page and of a prediction's read."""

from dataclasses import dataclass
from typing import Any

from planner.plan import Configuration, Prediction
from planner.problem import Problem

__all__ = ["Told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A configuration with its prediction; ``problem``: with the network that the configuration trains."""

    problem: Problem
    family: str
    configuration: Configuration
    prediction: Prediction

    @property
    def block(self) -> dict[str, Any]:
        """The configuration's decisions, as its document has them."""
        return self.configuration.to_document()

    @property
    def details(self) -> dict[str, Any]:
        """The family's own figures."""
        return dict(self.prediction.details)

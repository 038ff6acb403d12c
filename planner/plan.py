"""What comes out: a prediction of one configuration, and a plan, which is the best one with its proof."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

from planner.frozen import frozen
from planner.shown import Recorded, Shown, document_of, row_of
from planner.solution import Status, gap_of


class Configuration(Protocol):
    """A family's own frozen dataclass of decisions."""

    @property
    def headline(self) -> str:
        """The decisions in a few words: ``32 devices (4 machines x 8)``."""
        ...

    def to_document(self) -> dict[str, Any]:
        """Return the block that ``predict`` reads back."""
        ...


@frozen
class Goal:
    """What is minimised, and its unit."""

    name: str = "epoch_time"
    unit: str = "s"

    @property
    def field(self) -> str:
        """The name with its unit, as JSON has it: ``epoch_time_s``."""
        return f"{self.name}_{self.unit.lower()}"


def may_be_stale(details: Mapping[str, object]) -> bool:
    """Whether gradients may be stale, by the details of a prediction; ``most`` None means that nothing bounds it."""
    staleness = details.get("staleness", 0)
    most = staleness.get("most") if isinstance(staleness, Mapping) else staleness
    return not isinstance(most, int | float) or most > 0


@frozen
class Prediction(Shown, Recorded):
    """What one configuration costs.

    Attributes
    ----------
    iteration_time_s, epoch_time_s, training_time_s
        Of one step, of one pass over the data, and of all of the training; None where the question does not say how
        long these are.
    breakdown_s
        Where an iteration's time goes; sums to ``iteration_time_s``.
    communication_s
        All communication, hidden or not: all_reduce, wait, negotiate, misc.
    scaling_factor
        One device's iteration of the same share over this iteration.
    communication_to_computation
        Ratio if all gradients went as one transfer (eq. 2 of the OSF model).
    memory_bytes
        On the fullest device; sums to its ``total``.
    cost_usd, breakdown_usd
        None and empty: what machines cost is told by :func:`planner.procure`, of whole fleets.
    relative_error
        Known error of such predictions, or None where none has been measured.
    details
        The family's own figures: schedule, counts, bound of the input.
    """

    iteration_time_s: float
    epoch_time_s: float | None
    training_time_s: float | None
    breakdown_s: Mapping[str, float]
    communication_s: Mapping[str, float]
    scaling_factor: float
    communication_to_computation: float
    memory_bytes: Mapping[str, float]
    cost_usd: float | None = None
    breakdown_usd: Mapping[str, float] = field(default_factory=dict)
    relative_error: Mapping[str, Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return what a prompt shows: the times; :meth:`to_dict` has all of it."""
        return f"<Prediction: {', '.join(f'{name} {seconds:.6g} s' for name, seconds in self.times_s.items())}>"

    @property
    def times_s(self) -> dict[str, float]:
        """The times that are known, by what takes them."""
        times = {"iteration": self.iteration_time_s, "epoch": self.epoch_time_s, "training": self.training_time_s}
        return {name: seconds for name, seconds in times.items() if seconds is not None}

    @property
    def is_asynchronous(self) -> bool:
        """Whether gradients may be stale."""
        return may_be_stale(self.details)

    def value_of(self, goal: Goal) -> float:
        """Return the quantity that a goal minimises."""
        value = getattr(self, goal.field)
        assert value is not None, f"{goal.field} is not known"  # the spec refuses such goals
        return float(value)

    def to_dict(self) -> dict[str, object]:
        """Return its fields, as plans have them."""
        return document_of(self)


@frozen
class Predicted:
    """A given configuration with its prediction, and what to know about it; the fields are those of a plan."""

    family: str
    configuration: Configuration
    prediction: Prediction
    explanation: Sequence[str] = ()
    assumptions: Sequence[str] = ()
    warnings: Sequence[str] = ()
    not_modelled: Sequence[str] = ()
    key_assumptions: Sequence[str] = ()
    cautions: Sequence[str] = ()


@frozen
class Alternative:
    """A configuration that lost: what it is, what it would cost, how much more that is, and on which network."""

    name: str
    family: str
    objective: float
    relative_loss: float
    reason: str = ""
    configuration: Configuration | None = None
    substitutions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return it as plans and explanations have it."""
        return document_of(self)


@frozen
class Unmeasured:
    """A feature of configurations of which no step was measured, on some devices or with the program that trains.

    ``is_taken``: whether a given configuration has it. ``pins`` and ``excluded``: decisions that leave it out.
    """

    words: str
    is_taken: bool
    pins: Mapping[str, Any] = field(default_factory=dict)
    excluded: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@frozen
class Recommended:
    """The configuration of least risk among those within the known error of the best one that was found.

    ``relative_loss``: how much more it costs than that one; ``known_error``: how much more it might have cost.
    ``reasons``: why it is safer.
    """

    family: str
    configuration: Configuration
    prediction: Prediction
    objective: float
    relative_loss: float
    known_error: float
    reasons: tuple[str, ...]
    substitutions: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """Return it as plans have it."""
        return {
            **document_of(
                self, "family", "configuration", "substitutions", "objective", "relative_loss", "known_error"
            ),
            **document_of(self.prediction, "memory_bytes"),
            **document_of(self, "reasons"),
        }


@frozen
class Provenance:
    """How an answer came about, so that it can be repeated; wall times go to the log.

    ``plugins``: the distribution, with its version, of every plug-in that it rests on, by group and name.
    """

    solver: str
    versions: Mapping[str, str]
    input_digest: str
    seed: int = 0
    num_candidates: int = 0
    num_solved: int = 0
    plugins: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def digest_of(question: Mapping[str, object]) -> str:
        """Return the digest of a resolved question."""
        text = json.dumps(question, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@frozen
class Plan(Shown, Recorded):
    """The best configuration found, and how sure that is.

    Attributes
    ----------
    goal
        What is minimised, and its unit.
    status
        OPTIMAL where it is proven that nothing does better, else FEASIBLE.
    objective
        The plan's own, in the unit of ``goal``; re-evaluated by the cost model, never read off the solver.
    bound
        No plan does better, under this cost model.
    family, configuration
        Which family of layouts it is of, and its decisions, as a ``configuration`` block has them.
    prediction
        What the configuration costs.
    explanation
        What binds, and why other plans lost.
    alternatives
        Configurations that lost, in the order of their objective.
    provenance
        What is needed to repeat the answer.
    key_assumptions, assumptions
        What was taken to hold: those that stand under the headline, each with its effect, the largest first; and the
        others.
    cautions, warnings
        What keeps the plan from being run as it is; and what else to know about it.
    not_modelled
        What no prediction here counts.
    domain
        Over what the proof holds, in words.
    instead
        The best plan that some program can launch, where none can launch this one, or that none was found.
    beyond
        Layouts that were not searched, by name, with the objective that none of them beats, where that is better than
        the plan's.
    problem
        The resolved question, so that a document of the plan needs no other file.
    substitutions
        Names of the layer replacements that the configuration's network holds.
    recommended
        A configuration of less risk within the known error, if there is one; the plan itself, where that was asked for.
    least_by_family
        What no plan of a family that was searched is below, on the network as given; empty where there are others.
    """

    goal: Goal
    status: Status
    objective: float
    bound: float
    family: str
    configuration: Configuration
    prediction: Prediction
    explanation: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    provenance: Provenance
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    not_modelled: tuple[str, ...] = ()
    domain: tuple[str, ...] = ()
    key_assumptions: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    instead: str = ""
    beyond: Mapping[str, float] = field(default_factory=dict)
    problem: Mapping[str, Any] = field(default_factory=dict)
    substitutions: tuple[str, ...] = ()
    recommended: Recommended | None = None
    least_by_family: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_recommended(self) -> bool:
        """Whether it was asked for as the recommended one, and costs more than the best one."""
        return self.recommended is not None and self.recommended.configuration == self.configuration

    def __repr__(self) -> str:
        """Return what a prompt shows: the headline, the objective and its proof; :meth:`to_dict` has all of it."""
        proof = f"{self.status.value}{f', gap {self.gap:.1%}' * bool(self.gap)}"
        what = f"{self.family} on {self.configuration.headline}"
        return f"<Plan: {what}, {self.goal.name} {self.objective:.6g} {self.goal.unit}, {proof}>"

    @property
    def gap(self) -> float:
        """Share of the objective that is not proven: ``(objective - bound) / objective``."""
        return gap_of(self.objective, self.bound)

    def to_dict(self) -> dict[str, Any]:
        """Return the document ``planner.plan/1``: what ``planner plan --out`` writes and :func:`planner.load` reads."""
        return {
            "schema": "planner.plan/1",
            **document_of(self, "status", "problem"),
            "objective": {"name": self.goal.field, "value": self.objective, "bound": self.bound, "gap": self.gap},
            **document_of(self, "family", "configuration", "substitutions", "prediction", "explanation"),
            "assumptions": [*self.key_assumptions, *self.assumptions],
            "warnings": [*self.cautions, *filter(None, [self.instead]), *self.warnings],
            **document_of(self, "not_modelled", "domain", "alternatives", "recommended"),
            "provenance": {key: part for key, part in document_of(self.provenance).items() if part or key != "plugins"},
        }

    def to_records(self) -> list[dict[str, object]]:
        """Return a row of the plan, and one of each alternative with what is known of it; in the order of their rank.

        Decisions of one value stand in columns of their own, ``configuration.num_devices`` for one.
        """
        best = {
            "name": self.configuration.headline,
            "family": self.family,
            "status": self.status.value,
            "objective_name": self.goal.field,
            "objective": self.objective,
            "bound": self.bound,
            "gap": self.gap,
            "relative_loss": 0.0,
            **{f"{name}_time_s": seconds for name, seconds in self.prediction.times_s.items()},
            "cost_usd": self.prediction.cost_usd,
            "memory_bytes": self.prediction.memory_bytes["total"],
            **row_of(self.configuration.to_document(), "configuration."),
        }
        others = [
            {
                "name": one.name,
                "family": one.family,
                "objective_name": self.goal.field,
                "objective": one.objective,
                "relative_loss": one.relative_loss,
                **row_of(one.configuration.to_document() if one.configuration else {}, "configuration."),
            }
            for one in self.alternatives
        ]
        return [best, *others]

"""What a reader of a foreign network gives: the network, its measured seconds if it has any, and what to tell."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.cost import Profile
from planner.dnn import Dnn

__all__ = ["Imported"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A network from a file or a module.

    Attributes
    ----------
    profile
        Seconds of one sample, where they were measured.
    dtype
        Type of the weights as the source has it, in the words of a spec; None where it does not say.
    facts
        Totals that the reader counted beside the network's own, by a name with its unit: ``element_flop``, ....
    notes
        What was assumed; printed as the answer's assumptions.
    warnings
        What makes the figures doubtful: unknown operators by name and number, for one.
    """

    dnn: Dnn
    profile: Profile | None = None
    dtype: str | None = None
    facts: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

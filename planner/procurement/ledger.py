"""Every fleet that was planned, for whatever question: the one list that all answers are read from.

The search of the answer, of other devices, of the trade-off of time and money, of changed prices and deadlines, and of
what limits would have to be all write here. A fleet stands with its hardware and not with its prices, so that what one
question planned is an answer to every other one that may have it. So nothing that is shown beside an answer can be
better than it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from planner.procurement.fleet import Fleet, Hardware, hardware_of
from planner.procurement.prices import Offer
from planner.solvers.counts import Counts


@dataclass(slots=True)
class Ledger:
    """Fleets that were planned, by their hardware; shared by all questions with the same oracles."""

    _counts: dict[tuple[Hardware, ...], dict[tuple[Counts, Counts], None]] = field(default_factory=dict)

    def note(self, fleet: Fleet, used: Sequence[int] | None) -> None:
        """Take down a fleet, and the part of it that its plan needs, which reaches as much."""
        seen = self._counts.setdefault(tuple(hardware_of(offer) for offer in fleet.offers), {})
        seen[fleet.counts, fleet.counts] = None
        if used is not None:
            seen[tuple(max(count, 1) for count in used), fleet.counts] = None

    def fleets_of(self, offers: Sequence[Offer]) -> Iterator[tuple[Counts, Counts]]:
        """Yield counts of machines of these offers, and those that were planned for them: as many, or more."""
        yield from self._counts.get(tuple(hardware_of(offer) for offer in offers), ())

"""Fleets planned before their turn: a crew begins those that the search is likely to ask for next.

A plan is a function of the fleet, of the time from which on nothing matters, and of how many alternatives are wanted.
So whoever makes it, the search gets what it would have made itself, and takes the same way to the same answer. What was
begun and is never asked for is lost work, which is counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.crew import Crew, Lost, Origin
from planner.procurement.fleet import Fleet
from planner.search import Search

if TYPE_CHECKING:
    from planner.procurement.oracle import Oracle, Trained

__all__ = ["Foresight"]

_POLL_S = 0.05
_Key = tuple[int, tuple[str, ...], tuple[int, ...], float, int]


@dataclass(slots=True)
class Foresight:
    """What a crew was asked to plan.

    Attributes
    ----------
    num_hits, num_begun
        Plans that were asked for and had been begun; all that were begun.
    """

    crew: Crew
    num_hits: int = 0
    num_begun: int = 0
    _origins: dict[int, tuple["Oracle", Origin | None]] = field(default_factory=dict)  # with its oracle, by identity
    _numbers: dict[_Key, int] = field(default_factory=dict)
    _found: dict[int, "Trained | Lost"] = field(default_factory=dict)

    def begin(self, wanted: Callable[[int], Sequence[tuple["Oracle", Fleet, float]]], search: Search) -> None:
        """Have fleets planned, as many as there is room for; ``wanted`` names so many, in the order of their turns."""
        if (room := self.crew.room()) <= 0 or search.is_over:
            return
        for oracle, fleet, enough_s in wanted(room):
            origin = self._origin(oracle)
            key = _key(oracle, fleet, enough_s, search)
            if origin is None or key in self._numbers or oracle.known(fleet, enough_s) is not None:
                continue
            limits = (oracle.time_limit_s(search), search.memory_limit_bytes, search.num_alternatives)
            self._numbers[key] = self.crew.submit(_planned, origin, (fleet, enough_s, *limits))
            self.num_begun += 1

    def known(self, oracle: "Oracle", fleet: Fleet, enough_s: float, search: Search) -> "Trained | None":
        """Return what came of a fleet that was begun; None where it was not, or is at work."""
        number = self._numbers.get(_key(oracle, fleet, enough_s, search))
        if number is None:
            return None
        if number not in self._found:
            self._look(0.0)
        found = self._found.get(number)
        return None if isinstance(found, Lost) else found

    def taken(self, oracle: "Oracle", fleet: Fleet, enough_s: float, search: Search) -> "Trained | None":
        """Return the plan of a fleet that was begun, when it is there; None where it was not begun, or nobody is left.

        A plan that kills whoever makes it is not made here either: then nothing but the bound is known.
        """
        number = self._numbers.get(_key(oracle, fleet, enough_s, search))
        if number is None:
            return None
        while number not in self._found and not search.is_over:
            self._look(_POLL_S)
        found = self._found.get(number)
        if isinstance(found, Lost) and not found.is_gone:
            self.crew.tell(f"a fleet could not be planned, and counts with its bound: {found.why}")
            return oracle.not_planned(fleet, found.why)
        if found is None or isinstance(found, Lost):
            return None
        self.num_hits += 1
        return found

    def _look(self, wait_s: float) -> None:
        """Take in what has come back."""
        self._found.update(self.crew.poll(wait_s, self._numbers.values()))

    def _origin(self, oracle: "Oracle") -> Origin | None:
        """Return an oracle as it travels, made once; the oracle is kept, so that its identity is."""
        if id(oracle) not in self._origins:
            self._origins[id(oracle)] = (oracle, Origin.of(oracle.maker()))
        return self._origins[id(oracle)][1]


def _planned(
    oracle: "Oracle",
    fleet: Fleet,
    enough_s: float,
    time_limit_s: float,
    memory_limit_bytes: float | None,
    num_alternatives: int,
) -> "Trained":
    """Plan a fleet."""
    search = Search(
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        num_alternatives=num_alternatives,
        cutoff=enough_s,
    )
    return oracle.planned(fleet, search)


def _key(oracle: "Oracle", fleet: Fleet, enough_s: float, search: Search) -> _Key:
    """Return what tells a plan from others."""
    return id(oracle), tuple(offer.name for offer in fleet.offers), fleet.counts, enough_s, search.num_alternatives

"""Which calls of its oracle a search of :mod:`planner.solvers.count_boxes` makes next, so that others can begin them.

A copy of the walk goes on ahead of it. Where an answer is known it takes that; else it guesses that the call proves
what it can prove: that the box is cut. That is what most calls come to once there is a good incumbent. What the copy
guesses never reaches the walk, which makes the same calls in the same order as without anybody ahead: a wrong guess
costs whoever began the call, and nothing else. The copy goes on as long as the walk makes the calls that it foresaw;
after a call that it did not, a new copy is made.
"""

from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING

from planner.errors import ModelError
from planner.search import Search
from planner.solvers.count_question import Counts, Question, Reading

if TYPE_CHECKING:
    from planner.solvers.count_places import Box
    from planner.solvers.count_question import Ints
    from planner.solvers.count_walk import Walk

__all__ = ["Ahead", "Call"]

Call = tuple[int, Counts, float]  # root, counts, and a t from which on nothing matters

_MOST_BEHIND = 64  # calls that were foreseen and not made, until a new copy is made
_FALSE_STEPS = 4  # foreseen calls per call wanted, at most, that one look may take


@dataclass(slots=True)
class Ahead:
    """Foresees the calls of a walk.

    Attributes
    ----------
    known
        What a call returns, where that is known already; None where it is not.
    """

    known: Callable[[int, Counts, float], Reading | None]
    num_hits: int = 0
    num_misses: int = 0
    _copy: "Walk | None" = None
    _foreseen: dict[Call, None] = field(default_factory=dict)  # in their order
    _new: deque[Call] = field(default_factory=deque)

    def note(self, walk: "Walk", box: "Box", counts: "Ints", call: Call) -> None:
        """Take note that the walk makes a call, about a point of a box."""
        if call in self._foreseen:
            self.num_hits += 1
            del self._foreseen[call]
            if len(self._foreseen) <= _MOST_BEHIND:
                return
        else:
            self.num_misses += 1
        self._foreseen.clear()
        self._new.clear()
        self._copy = _copied(walk, self._answer)
        try:
            self._copy.guess(box, counts, self._guess(call))
        except ModelError:  # a guess that contradicts what is known
            self._copy = None

    def next(self, number: int) -> list[Call]:
        """Return up to so many calls that are foreseen next, each once."""
        found: list[Call] = []
        for _ in range(number * _FALSE_STEPS):
            if len(found) >= number or not self._steps():
                break
            while self._new:
                found.append(self._new.popleft())
        return found

    def _steps(self) -> bool:
        """Take a step ahead; return False where there is none."""
        if self._copy is None:
            return False
        try:
            return self._copy.step()
        except ModelError:
            self._copy = None
            return False

    def _answer(self, root: int, counts: Counts, enough: float) -> Reading:
        """Answer a call of the copy."""
        call = (root, counts, enough)
        known = self.known(root, counts, enough)
        if call not in self._foreseen:
            self._foreseen[call] = None
            if known is None:
                self._new.append(call)
        return self._guess(call) if known is None else known

    def _guess(self, call: Call) -> Reading:
        """Return that a point does not matter; where there is no telling what matters, that nothing is possible."""
        _, _, enough = call
        return Reading(value=enough, bound=enough) if enough < inf else Reading(value=inf, bound=inf)


def _copied(walk: "Walk", oracle: Callable[[int, Counts, float], Reading]) -> "Walk":
    """Return a copy that goes its own way, and tells nobody."""
    found = copy(walk)
    holds = None if walk.question.has_costly_condition else walk.question.holds
    question: Question = replace(walk.question, oracle=oracle, holds=holds)
    found.question, found.ahead, found.search, found.told = question, None, Search(), lambda walk: None
    found.aim = walk.aim.copied()
    found.most_calls = walk.num_calls + (1 << 30)
    found.readings = {root: one.copied(question) for root, one in walk.readings.items()}
    found.best_of, found.left_of = dict(walk.best_of), walk.left_of.copy()
    found.fork()
    return found

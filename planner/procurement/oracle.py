"""How long a fleet trains: the best plan of the families that are searched, asked once for each kind of hardware.

``seconds(fleet)`` is the least training time with *at most* the fleet's machines, so more machines never take longer.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from typing import TYPE_CHECKING, Any

from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families.searches import BOUNDS
from planner.names import OF_TRANSFORMERS
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement.fleet import Fleet, Hardware, hardware_of, question_of
from planner.procurement.prices import Offer
from planner.procurement.question import Job, Procurement
from planner.question.build import problem_of
from planner.ranking import best_plan
from planner.search import Search
from planner.solution import SAME
from planner.worker_pool import FailedTask, Origin, WorkerPool

if TYPE_CHECKING:
    pass


# --- Fleets planned before their turn: a worker pool begins those that the search is likely to ask for next
# A plan is a function of the fleet, of the time from which on nothing matters, and of how many alternatives are wanted.
# So whoever makes it, the search gets what it would have made itself, and takes the same way to the same answer. What
# was
# begun and is never asked for is lost work, which is counted.

_POLL_S = 0.05
_ForesightKey = tuple[int, tuple[str, ...], tuple[int, ...], float, int]


@dataclass(slots=True)
class Foresight:
    """What a worker pool was asked to plan.

    Attributes
    ----------
    num_hits, num_begun
        Plans that were asked for and had been begun; all that were begun.
    """

    pool: WorkerPool
    num_hits: int = 0
    num_begun: int = 0
    _origins: dict[int, tuple["Oracle", Origin | None]] = field(default_factory=dict)  # with its oracle, by identity
    _numbers: dict[_ForesightKey, int] = field(default_factory=dict)
    _found: dict[int, "Trained | FailedTask"] = field(default_factory=dict)

    def begin(self, wanted: Callable[[int], Sequence[tuple["Oracle", Fleet, float]]], search: Search) -> None:
        """Have fleets planned, as many as there is room for; ``wanted`` names so many, in the order of their turns."""
        if (room := self.pool.room()) <= 0 or search.is_over:
            return
        for oracle, fleet, enough_s in wanted(room):
            origin = self._origin(oracle)
            key = _key(oracle, fleet, enough_s, search)
            if origin is None or key in self._numbers or oracle.known(fleet, enough_s) is not None:
                continue
            limits = (oracle.time_limit_s(search), search.memory_limit_bytes, search.num_alternatives)
            self._numbers[key] = self.pool.submit(_planned, origin, (fleet, enough_s, *limits))
            self.num_begun += 1

    def known(self, oracle: "Oracle", fleet: Fleet, enough_s: float, search: Search) -> "Trained | None":
        """Return what came of a fleet that was begun; None where it was not, or is at work."""
        number = self._numbers.get(_key(oracle, fleet, enough_s, search))
        if number is None:
            return None
        if number not in self._found:
            self._look(0.0)
        found = self._found.get(number)
        return None if isinstance(found, FailedTask) else found

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
        if isinstance(found, FailedTask) and not found.is_gone:
            self.pool.tell(f"a fleet could not be planned, and counts with its bound: {found.why}")
            return oracle.not_planned(fleet, found.why)
        if found is None or isinstance(found, FailedTask):
            return None
        self.num_hits += 1
        return found

    def _look(self, wait_s: float) -> None:
        """Take in what has come back."""
        self._found.update(self.pool.poll(wait_s, self._numbers.values()))

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


def _key(oracle: "Oracle", fleet: Fleet, enough_s: float, search: Search) -> _ForesightKey:
    """Return what tells a plan from others."""
    return id(oracle), tuple(offer.name for offer in fleet.offers), fleet.counts, enough_s, search.num_alternatives


_TYPES = ("dtype", "optimizer")  # taken by the machines, where the question leaves them open
# Families whose searches end proven within a second.
_FOR_TRANSFORMERS, _FOR_OTHERS = (OF_TRANSFORMERS,), ("all_reduce",)
_Key = tuple[tuple[Hardware, int], ...]
_SHARE_OF_TIME = 0.25  # of what is left, that one fleet may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What was found for a fleet.

    Attributes
    ----------
    seconds
        Of the best plan found; ``inf`` where nothing trains on the fleet, or no plan was found in time.
    bound
        No plan of the families that are searched takes less on it; ``inf`` where there is none, proven.
    used
        Machines of each offer that the plan needs, no more than there are.
    plan
        None where there is none, or none was found in time.
    reason
        Why there is none.
    """

    seconds: float
    bound: float
    used: tuple[int, ...]
    plan: Plan | None = None
    reason: str = ""


def _as_it_is(problem: Problem) -> Problem:
    """Return a question unchanged."""
    return problem


@dataclass(slots=True)
class Oracle:
    """Plans one job on fleets, and remembers; the answers hold for every price and limit.

    ``change`` is made to every question, for what would be on other hardware; ``foresight`` may have planned a fleet
    before its turn. ``planned_s``: CPU seconds of the ``num_here`` fleets that were planned here.
    """

    procurement: Procurement
    job: Job
    change: Callable[[Problem], Problem] = _as_it_is
    families: tuple[str, ...] = field(init=False)
    num_planned: int = 0
    num_contradictions: int = 0
    planned_s: float = 0.0
    num_here: int = 0
    foresight: Foresight | None = None
    _question: Mapping[str, Any] | None = None
    _known: dict[_Key, tuple[Trained, float]] = field(default_factory=dict)
    _rates: dict[Any, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.families = self.procurement.families or _FOR_TRANSFORMERS + _FOR_OTHERS

    def problem(self, fleet: Fleet, *, has_pins: bool = True) -> Problem:
        """Return the question of the training on a fleet.

        Files are read once: from then on the network stands in the question. What depends on the machines does not.
        ``has_pins``: with its pins, which may name machines that not every fleet has.

        Raises
        ------
        SpecError
            If the training cannot be asked of these machines, or of any.
        """
        source = self.procurement.source
        question = self._question or self.job.question
        data = question_of(self.procurement, question, fleet, self.families)
        if not has_pins:
            data.pop("fix", None)
        problem = problem_of(replace(source, data=data))
        if self._question is None:
            if self.procurement.families is None:
                self.families = _FOR_TRANSFORMERS if problem.dnn.transformer is not None else _FOR_OTHERS
                problem = replace(problem, families=self.families)
            given = self.job.question["dnn"]
            dnn = {key: value for key, value in problem.resolved["dnn"].items() if key in given or key not in _TYPES}
            known = {key: problem.resolved[key] for key in ("calibration",) if key in problem.resolved}
            self._question = {**self.job.question, **known, "dnn": dnn}
        return self.change(problem)

    def ideal_rate(self, offer: Offer) -> float:
        """Return trainings a second that one machine does at most, and at which machines of any kinds add up.

        From the bounds of the families, which leave out all communication.
        """
        key = hardware_of(offer)
        if key not in self._rates:
            least_s = _least_s(self.problem(Fleet(offers=(offer,), counts=(1,)), has_pins=False))
            self._rates[key] = 1 / least_s if least_s > 0 else inf
        return self._rates[key]

    def trained(self, fleet: Fleet, search: Search, *, enough_s: float = inf) -> Trained:
        """Return the best plan on at most the fleet's machines.

        Parameters
        ----------
        enough_s
            A time from which on it does not matter how long the fleet takes: the bound may then be as low as this.
        """
        if (found := self.known(fleet, enough_s)) is not None:
            return found
        key = _key_of(fleet)
        answer, before = self._reconciled(key, self._planned(fleet, search, enough_s)), self.found(fleet)
        if before is not None and before.seconds < answer.seconds:  # there was less time than before
            answer = replace(before, bound=min(before.seconds, max(before.bound, answer.bound)))
        self._known[key] = (answer, enough_s)
        return answer

    def learned(self, fleet: Fleet, plan: Plan) -> Trained:
        """Return a plan of a fleet that was made elsewhere; remember it where it is better than what was found."""
        key = _key_of(fleet)
        before, enough_s = self._known.get(key, (None, 0.0))
        bound = plan.bound if before is None else min(before.bound, plan.objective)
        found = Trained(seconds=plan.objective, bound=bound, used=_used(plan, fleet), plan=plan)
        if before is None or plan.objective < before.seconds:
            self._known[key] = (self._reconciled(key, found), enough_s)
        return found

    def found(self, fleet: Fleet) -> Trained | None:
        """Return the best that was found of a fleet, however early its search ended; None where it was not planned."""
        known = self._known.get(_key_of(fleet))
        return None if known is None else known[0]

    def known(self, fleet: Fleet, enough_s: float) -> Trained | None:
        """Return what was found of a fleet before, if that will do."""
        found = self._known.get(_key_of(fleet))
        if found is not None and (found[1] >= enough_s or _is_proven(found[0])):
            return found[0]
        return None

    def not_planned(self, fleet: Fleet, why: str) -> Trained:
        """Return what is known of a fleet that was not planned: a bound, or that it cannot keep a pin."""
        try:
            problem = self.problem(fleet)
        except SpecError as error:
            return _refused(fleet, error)
        return Trained(seconds=inf, bound=_least_s(problem), used=fleet.counts, reason=why)

    def maker(self) -> Callable[[], "Oracle"]:
        """Return what makes this oracle elsewhere, without what it remembers."""
        return partial(_made, self.procurement, self.job, self.change, self.families, self._question)

    def _reconciled(self, key: _Key, answer: Trained) -> Trained:
        """Return an answer that more machines never make longer: the plan of a part of the fleet is a plan of it, too.

        A family may search less on more machines. Then a bound that it gave does not hold for every part of them: it
        is lowered, for the next search, and :attr:`num_contradictions` counts it.
        """
        for other, (known, enough_s) in list(self._known.items()):
            if _is_part(other, key) and known.seconds < answer.seconds:
                answer = replace(known, bound=min(answer.bound, known.seconds))
            elif _is_part(key, other) and known.bound > answer.seconds * (1 + SAME):
                self.num_contradictions += 1
                self._known[other] = (replace(known, bound=answer.seconds), enough_s)
        return answer

    def _planned(self, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        """Plan the training on a fleet."""
        self.num_planned += 1
        if self.foresight is not None and (found := self.foresight.taken(self, fleet, enough_s, search)) is not None:
            return found
        part = search.part(self.time_limit_s(search), cutoff=enough_s)
        part.pool = None  # who helps plans other fleets meanwhile
        begin_s = time.thread_time()
        found = self.planned(fleet, part)
        self.planned_s += time.thread_time() - begin_s
        self.num_here += 1
        return found

    def time_limit_s(self, search: Search) -> float:
        """Return the most that the plan of one fleet may take of a search."""
        return max(1.0, search.left_s * _SHARE_OF_TIME)

    def planned(self, fleet: Fleet, search: Search) -> Trained:
        """Plan the training on a fleet: a function of the fleet and the search's limits alone."""
        try:
            problem = self.problem(fleet)
        except SpecError as error:  # a pin that this fleet cannot keep
            return _refused(fleet, error)
        try:
            plan = best_plan(problem, search)
        except InfeasibleError as error:
            return _refused(fleet, error)
        except NoAnswerError as error:
            return Trained(seconds=inf, bound=_least_s(problem), used=fleet.counts, reason=str(error))
        return Trained(seconds=plan.objective, bound=plan.bound, used=_used(plan, fleet), plan=plan)


def _made(
    procurement: Procurement,
    job: Job,
    change: Callable[[Problem], Problem],
    families: tuple[str, ...],
    question: Mapping[str, Any] | None,
) -> Oracle:
    """Return an oracle as it was when it was sent."""
    found = Oracle(procurement, job, change=change, _question=question)
    found.families = families
    return found


def _refused(fleet: Fleet, error: PlannerError) -> Trained:
    """Return that nothing trains on a fleet."""
    return Trained(seconds=inf, bound=inf, used=fleet.counts, reason=str(error))


def _key_of(fleet: Fleet) -> _Key:
    """Return what a training sees of a fleet."""
    return tuple((hardware_of(offer), count) for offer, count in zip(fleet.offers, fleet.counts, strict=True))


def _least_s(problem: Problem) -> float:
    """Return what no plan of the problem's families takes less than, all communication left out.

    A family that does not apply to the machines has a bound of 0: it makes no plan, and says nothing.
    """
    return min(filter(None, (BOUNDS[family](problem) for family in problem.families)), default=0.0)


def _is_part(fewer: _Key, more: _Key) -> bool:
    """Whether the first machines are some of the second, of the same hardware and in the same order."""
    return len(fewer) == len(more) and all(
        one == other and count <= most for (one, count), (other, most) in zip(fewer, more, strict=True)
    )


def _is_proven(trained: Trained) -> bool:
    """Whether nothing is left to learn of a fleet."""
    return trained.bound >= trained.seconds * (1 - SAME)


def _used(plan: Plan, fleet: Fleet) -> tuple[int, ...]:
    """Return the machines of each offer that a plan needs; all of them where its configuration does not say."""
    block = plan.configuration.to_document()
    if len(fleet.offers) == 1:
        if isinstance(number := block.get("num_machines"), int):
            return (min(number, fleet.counts[0]),)
        if plan.family == OF_TRANSFORMERS:
            return (min(ceil(_devices(block) / fleet.offers[0].devices_per_machine), fleet.counts[0]),)
    if plan.family == "parameter_server":
        return _working_or_serving(block, fleet)
    return fleet.counts


def _working_or_serving(block: Mapping[str, Any], fleet: Fleet) -> tuple[int, ...]:
    """Return the machines of each offer that work, or serve on their own; at least one, as every fleet has of each."""
    names = [offer.instance for offer in fleet.offers]
    if len(set(names)) < len(names):
        return fleet.counts
    used = {name: block["workers"].get(name, 0) for name in names}
    servers, number = block["servers"], block["num_parameter_servers"]
    used[servers] = max(used[servers], number) if block["co_located"] else used[servers] + number
    return tuple(min(max(used[name], 1), count) for name, count in zip(names, fleet.counts, strict=True))


def _devices(block: Mapping[str, Any]) -> int:
    """Return the devices of a layout."""
    return int(block["tensor"] * block["context"] * block["pipeline"] * block["data"])

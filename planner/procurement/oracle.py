"""How long a fleet trains: the best plan of the families that are searched, asked once for each kind of hardware.

``seconds(fleet)`` is the least training time with *at most* the fleet's machines, so more machines never take longer.
A plan is a function of the fleet, of the time from which on nothing matters, and of how many alternatives are wanted.
So whoever makes it, the search gets what it would have made itself, and takes the same way to the same answer:
:class:`Foresight` has a worker pool begin those that the search is likely to ask for next.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, inf
from typing import Any

import numpy as np

from planner.constraints import narrowed
from planner.cost import Floats
from planner.errors import InfeasibleError, NoAnswerError, PlannerError, SpecError
from planner.families import bound_of, least_beside_of, least_by_count_of, least_parts_of
from planner.families.answer import CountBounds
from planner.families.hybrid.configuration import HybridConfiguration
from planner.frozen import frozen
from planner.names import OF_TRANSFORMERS
from planner.plan import Plan
from planner.problem import Problem
from planner.procurement.fleet import Fleet, Hardware, group_names, hardware_of, question_of
from planner.procurement.prices import Offer
from planner.procurement.question import FROM_MACHINES, Job, Procurement, of_job
from planner.question.build import problem_of
from planner.ranking import best_plan
from planner.search import LateError, Search
from planner.solution import SAME
from planner.worker_pool import FailedTask, Origin, WorkerPool

# Families whose searches end proven within a second.
_FOR_TRANSFORMERS, _FOR_OTHERS = (OF_TRANSFORMERS,), ("all_reduce",)
_SHARE_OF_TIME = 0.25  # of what is left, that one fleet may take
_MUCH_MORE = 1.5  # times what was not enough: then it is asked again
_SHARE_OF_FIRST = 0.5  # while no plan of any fleet is known, and of what was cut off before
_LEAST_S, _LEAST_OF_FIRST_S = 1.0, 3.0
_POLL_S = 0.05
_INSIDE = 3  # entries of what a training sees of an offer, before those of its network
FEWEST = tuple(2**one for one in range(1, 13))  # machines of a fleet of several kinds, at least
_EXACT = 1 - 1e-10  # sums are rounded; a bound stays below them, and proves the same sum

_Key = tuple[tuple[Hardware, int], ...]
_ForesightKey = tuple[int, tuple[str, ...], tuple[int, ...], float, int]


@frozen
class Trained:
    """What training on a fleet takes, as far as its search came.

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
    late_s
        The time that was not enough to prove it; 0 where no limit struck.
    """

    seconds: float
    bound: float
    used: tuple[int, ...]
    plan: Plan | None = None
    reason: str = ""
    late_s: float = 0.0


def _unchanged(problem: Problem) -> Problem:
    """Return a question as it is; by name, so that it can travel to workers."""
    return problem


def best_linked(offers: Sequence[Offer]) -> Offer:
    """Return an offer with the best network of some."""
    rates = [offer.network_bytes_per_s for offer in offers if offer.network_bytes_per_s is not None]
    return replace(offers[0], network_bytes_per_s=max(rates), latency_s=min(offer.latency_s for offer in offers))


@dataclass(slots=True)
class Oracle:
    """Plans one job on fleets, and remembers; the answers hold for every price and limit.

    ``change`` is made to every question, for what would be on other hardware; ``foresight`` may have planned a fleet
    before its turn. ``planned_s``: CPU seconds of the ``num_here`` fleets that were planned here.
    """

    procurement: Procurement
    job: Job
    change: Callable[[Problem], Problem] = _unchanged
    families: tuple[str, ...] = ()
    num_planned: int = 0
    num_contradictions: int = 0
    planned_s: float = 0.0
    num_here: int = 0
    foresight: "Foresight | None" = None
    _question: Mapping[str, Any] | None = None
    _known: dict[_Key, tuple[Trained, float]] = field(default_factory=dict)
    _rates: dict[Hardware, float] = field(default_factory=dict)
    _profiles: dict[Hardware, Floats] = field(default_factory=dict)
    _parts: dict[tuple[Hardware, float, float, float], Floats | None] = field(default_factory=dict)
    _beside: dict[tuple[object, ...], float] = field(default_factory=dict)
    _unmeasured: set[Hardware] = field(default_factory=set)
    _late: set[Hardware] = field(default_factory=set)  # whose numbers of machines were not all asked about in time

    def __post_init__(self) -> None:
        self.families = self.families or self.procurement.families or _FOR_TRANSFORMERS + _FOR_OTHERS

    def problem(self, fleet: Fleet, *, has_pins: bool = True) -> Problem:
        """Return the question of the training on a fleet.

        Files are read once: from then on the network stands in the question. What depends on the machines does not.
        ``has_pins``: with its pins, which may name machines that not every fleet has.

        Raises
        ------
        SpecError
            If the training cannot be asked of these machines, or of any.
        """
        data = question_of(self.procurement, self._question or self.job.question, fleet, self.families)
        if not has_pins:
            data.pop("fix", None)
        try:
            problem = problem_of(replace(self.procurement.source, data=data))
        except SpecError as error:
            raise of_job(self.procurement.source, self.procurement.asked, self.job.name, error) from None
        if self._question is None:
            if self.procurement.families is None:
                self.families = _FOR_TRANSFORMERS if problem.dnn.transformer is not None else _FOR_OTHERS
                problem = replace(problem, families=self.families)
            resolved, given = problem.resolved, self.job.question["dnn"]
            dnn = {key: value for key, value in resolved["dnn"].items() if key in given or key not in FROM_MACHINES}
            read = {key: resolved[key] for key in ("calibration",) if key in resolved}
            self._question = {**self.job.question, **read, "dnn": dnn}
        return self.change(problem)

    @property
    def calibration(self) -> Mapping[str, object]:
        """The block of the question's calibration, with what its files hold, once a fleet was asked about."""
        found: Mapping[str, Any] = (self._question or self.job.question).get("calibration") or {}
        return found

    def ideal_rate(self, offer: Offer) -> float:
        """Return trainings a second that one machine does at most, and at which machines of any kinds add up.

        From the bounds of the families, which leave out all communication.
        """
        key = hardware_of(offer)
        if key not in self._rates:
            problem = self.problem(Fleet(offers=(offer,), counts=(1,)), has_pins=False)
            least_s = _least_s(problem)
            self._rates[key] = 1 / least_s if least_s > 0 else inf
            if any(one.band is not None and not one.band.is_device_measured for one in problem.profiles.values()):
                self._unmeasured.add(key)
        return self._rates[key]

    def parts_s(
        self, offer: Offer, enough_s: float = 0.0, within_s: float = inf, fastest_s: float = 0.0
    ) -> Floats | None:
        """Return the seconds of one machine that each part of the training takes at least, in company of others.

        A row for each of :data:`FEWEST`. None where a family that is searched cannot tell: then only
        :meth:`ideal_rate` is known.

        Parameters
        ----------
        enough_s, within_s
            From what on it does not matter how long all parts take one machine; and what the training must be done in.
        fastest_s
            What all parts take one device of any machine at the least.
        """
        key = hardware_of(offer), enough_s, within_s, fastest_s
        if key not in self._parts:
            self._parts[key] = self._parts_s(offer, enough_s, within_s, fastest_s)
        return self._parts[key]

    def _parts_s(self, offer: Offer, enough_s: float, within_s: float, fastest_s: float) -> Floats | None:
        """Return the same, which is worked out."""
        bounds = [bound for family in self.families if (bound := least_parts_of(family)) is not None]
        if len(bounds) < len(self.families):
            return None
        devices = offer.devices_per_machine
        number = max(1, self.procurement.asked.most_devices // devices)
        try:
            problem = self.problem(Fleet(offers=(offer,), counts=(number,)), has_pins=False)
        except SpecError:
            return None
        times = {"enough_s": enough_s * devices, "within_s": within_s, "fastest_s": fastest_s}
        each = [bound(problem, **times, machines=FEWEST) for bound in bounds]
        known = [one for one in each if one is not None]
        if len(known) < len(each) or len({one.shape for one in known}) > 1:
            return None
        return np.asarray(np.min(known, axis=0) / devices)

    def beside_usd(
        self,
        fleet: Fleet,
        usd_per_s: Sequence[float],
        more_usd_per_s: float,
        within_s: float,
        most_usd: float,
        part: Search,
    ) -> float:
        """Return what the training costs at least on some machines of each offer of a fleet, at most ``most_usd``.

        Layouts that leave an offer idle do not count. 0 where that is not known. Machines that are alike but for their
        links cost no less than as many with the best of them at the least of their prices.

        Parameters
        ----------
        usd_per_s, more_usd_per_s
            Of one machine of each offer; and besides.
        within_s
            What the training must be done in.
        """
        key = (_key_of(fleet), tuple(usd_per_s), more_usd_per_s, within_s, most_usd)
        if key in self._beside:
            return self._beside[key]
        least = self._beside_usd(fleet, usd_per_s, (more_usd_per_s, within_s, most_usd), part)
        if not part.is_late:
            self._beside[key] = least
        return least

    def _beside_usd(
        self, fleet: Fleet, usd_per_s: Sequence[float], limits: tuple[float, float, float], part: Search
    ) -> float:
        """Return the same, which is worked out; ``limits``: what is paid besides, the time and the money."""
        more_usd_per_s, within_s, most_usd = limits
        bounds = [least_beside_of(family) for family in self.families]
        if None in bounds:
            return 0.0
        least = 0.0
        if len({hardware_of(offer)[:_INSIDE] for offer in fleet.offers}) == 1:
            each_usd = np.arange(1.0, sum(fleet.counts) + 1) * min(usd_per_s) + more_usd_per_s
            limit_s = np.full(len(each_usd), within_s)
            one = self.by_count(best_linked(fleet.offers), np.divide(most_usd, each_usd), limit_s, part)
            if one is None:
                return 0.0
            least = float(np.where(one.bounds_s < within_s, one.bounds_s * each_usd, inf).min())
            if least >= most_usd or len({hardware_of(offer) for offer in fleet.offers}) == 1:
                return min(most_usd, least)
        try:
            problem = self.problem(fleet, has_pins=False)
        except SpecError:
            return least
        prices = dict(zip(group_names(fleet), usd_per_s, strict=True))
        found = [bound(problem, prices, more_usd_per_s, within_s, most_usd, part) for bound in filter(None, bounds)]
        return min(most_usd, max(least, min(one or 0.0 for one in found)))

    def is_measured(self, offer: Offer) -> bool:
        """Whether training steps were measured on an offer's device, or its seconds are given."""
        self.ideal_rate(offer)
        return hardware_of(offer) not in self._unmeasured

    def trained(self, fleet: Fleet, search: Search, *, enough_s: float = inf) -> Trained:
        """Return the best plan on at most the fleet's machines.

        Parameters
        ----------
        enough_s
            A time from which on it does not matter how long the fleet takes: the bound may then be as low as this.
        """
        if (remembered := self.known(fleet, enough_s, search)) is not None:
            return remembered
        key = _key_of(fleet)
        answer, before = self._reconciled(key, self._planned(fleet, search, enough_s)), self.found(fleet)
        if before is not None and before.seconds < answer.seconds:  # there was less time than before
            answer = replace(before, bound=min(before.seconds, max(before.bound, answer.bound)))
        self._known[key] = (answer, enough_s)
        return answer

    def bounds_s(self, offer: Offer, number: int) -> Floats:
        """Return what is known that no plan on n machines of an offer or fewer takes less than, for n up to a number.

        All devices busy all the time, or what was proven for whatever question.
        """
        found: Floats = _EXACT / (np.arange(1.0, number + 1) * self.ideal_rate(offer))
        known = self._profiles.get(hardware_of(offer), found)[:number]
        found[: len(known)] = np.maximum(found[: len(known)], known)
        for key, (trained, _) in self._known.items():
            if len(key) == 1 and key[0][0] == hardware_of(offer):
                found[: key[0][1]] = np.maximum(found[: key[0][1]], trained.bound)
        return found

    def least_s(self, fleet: Fleet) -> float:
        """Return what is known that no plan on a fleet takes less than, before it is planned."""
        if len(fleet.offers) == 1:
            least_s = float(self.bounds_s(fleet.offers[0], fleet.counts[0])[-1])
        else:
            each = zip(fleet.offers, fleet.counts, strict=True)
            least_s = _EXACT / sum(count * self.ideal_rate(offer) for offer, count in each)
        found = self.found(fleet)
        return least_s if found is None else max(least_s, found.bound)

    def by_count(self, offer: Offer, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds | None:
        """Return what no plan on n machines of an offer or fewer takes less than, for all n; see :data:`LeastByCount`.

        What was proven before, for whatever question, holds here, too. None where a family cannot tell. The plan of the
        least share is that of a fleet from then on.

        Parameters
        ----------
        weight_s, limit_s
            For n = 1 .. so many machines: by which a plan is weighed, and from when on it does not matter.
        """
        key, number = hardware_of(offer), len(limit_s)
        known = self._profiles.get(key, np.zeros(0))
        known_s = np.zeros(max(number, len(known)))
        known_s[: len(known)] = known
        is_open = known_s[:number] < np.minimum(weight_s, limit_s) * (1 - SAME)
        if not is_open.any():
            return CountBounds(bounds_s=known_s[:number])
        num_needed = int(np.flatnonzero(is_open).max()) + 1
        try:
            problem = narrowed(self.problem(Fleet(offers=(offer,), counts=(num_needed,))))
        except (SpecError, InfeasibleError):  # a pin that some number cannot keep, say: each is asked by itself
            return None
        searches = [least_by_count_of(family) for family in problem.families]
        if problem.substitutions or None in searches:
            return None
        part = search.part(self.time_limit_s(search, is_again=key in self._late))
        part.pool = None
        bounds_s, num_machines, plan = np.full(num_needed, inf), None, None
        for least_by_count in filter(None, searches):
            try:
                found = None
                with part.ended():
                    found = least_by_count(problem, weight_s[:num_needed], limit_s[:num_needed], part)
            except (LateError, PlannerError, MemoryError):
                part.disarm()
            (self._late.discard if part.left_s else self._late.add)(key)
            if found is None:
                return None
            bounds_s = np.minimum(bounds_s, found.bounds_s)
            num_machines, plan = num_machines or found.num_machines, plan or found.plan
        known_s[:num_needed] = np.maximum(known_s[:num_needed], bounds_s)
        self._profiles[key] = known_s = np.minimum.accumulate(known_s)
        if plan is not None and num_machines is not None:
            fleet = Fleet(offers=(offer,), counts=(num_machines,))
            self.learned(fleet, replace(plan, bound=min(plan.bound, float(known_s[num_machines - 1]))))
        return CountBounds(bounds_s=known_s[:number], num_machines=num_machines)

    def learned(self, fleet: Fleet, plan: Plan) -> Trained:
        """Return a plan of a fleet that was made elsewhere; remember it where it is better than what was found.

        It may have cuts of the layers that no proof is of: bounds that it beats are lowered, and none was wrong.
        """
        key = _key_of(fleet)
        before, enough_s = self._known.get(key, (None, 0.0))
        bound = plan.bound if before is None else min(before.bound, plan.objective)
        late_s = 0.0 if before is None else before.late_s
        learned = Trained(seconds=plan.objective, bound=bound, used=_used(plan, fleet), plan=plan, late_s=late_s)
        if before is None or plan.objective < before.seconds:
            before_it = self.num_contradictions
            self._known[key] = (self._reconciled(key, learned), enough_s)
            self.num_contradictions = before_it
        return learned

    def found(self, fleet: Fleet) -> Trained | None:
        """Return the best that was found of a fleet, however early its search ended; None where it was not planned."""
        remembered = self._known.get(_key_of(fleet))
        return None if remembered is None else remembered[0]

    def known(self, fleet: Fleet, enough_s: float, search: Search) -> Trained | None:
        """Return what was found of a fleet before, if that will do: proven, or looked for at least as long.

        What a limit cut off does not, where there is a good deal more time now.
        """
        trained, before_s = self._known.get(_key_of(fleet), (None, 0.0))
        if trained is None or trained.bound >= trained.seconds * (1 - SAME):
            return trained
        return trained if before_s >= enough_s and not self.may_go_on(trained, search) else None

    def may_go_on(self, trained: Trained, search: Search) -> bool:
        """Whether a limit cut off what was found, and there is a good deal more time now."""
        return 0 < trained.late_s * _MUCH_MORE <= self.time_limit_s(search, is_again=True)

    def not_planned(self, fleet: Fleet, why: str) -> Trained:
        """Return what is known of a fleet that was not planned: a bound, or that it cannot keep a pin."""
        try:
            problem = self.problem(fleet)
        except SpecError as error:
            return Trained(seconds=inf, bound=inf, used=fleet.counts, reason=str(error))
        return Trained(seconds=inf, bound=_least_s(problem), used=fleet.counts, reason=why)

    def maker(self) -> Callable[[], "Oracle"]:
        """Return what makes this oracle elsewhere, without what it remembers."""
        return partial(
            Oracle, self.procurement, self.job, change=self.change, families=self.families, _question=self._question
        )

    def _reconciled(self, key: _Key, answer: Trained) -> Trained:
        """Return an answer that more machines never make longer: the plan of a part of the fleet is a plan of it, too.

        A family may search less on more machines. Then a bound that it gave does not hold for every part of them, or
        for every machine more than a plan needs: it is lowered, for the next search, and :attr:`num_contradictions`
        counts it.
        """
        needed = tuple((hardware, used) for (hardware, _), used in zip(key, answer.used, strict=True))
        for other, (trained, enough_s) in list(self._known.items()):
            if _is_part(other, key) and trained.seconds < answer.seconds:
                answer = replace(trained, bound=min(answer.bound, trained.seconds))
            elif _is_part(needed, other) and trained.bound > answer.seconds * (1 + SAME):
                self.num_contradictions += 1
                self._known[other] = (replace(trained, bound=answer.seconds), enough_s)
        return answer

    def _planned(self, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        """Plan the training on a fleet, or take the plan that a worker made."""
        self.num_planned += 1
        is_again = (before := self.found(fleet)) is not None and before.late_s > 0
        foresight = None if is_again else self.foresight
        if foresight is not None and (made := foresight.taken(self, fleet, enough_s, search)) is not None:
            return made
        part = search.part(self.time_limit_s(search, is_again=is_again), cutoff=enough_s, is_brief=True)
        part.pool = None  # who helps plans other fleets meanwhile
        begin_s = time.thread_time()
        trained = self.planned(fleet, part)
        self.planned_s += time.thread_time() - begin_s
        self.num_here += 1
        return trained

    def time_limit_s(self, search: Search, *, is_again: bool = False) -> float:
        """Return the most that the plan of one fleet may take of a search; ``is_again``: it was cut off before."""
        if not self.has_plan:
            return max(_LEAST_OF_FIRST_S, search.left_s * _SHARE_OF_FIRST)
        return max(_LEAST_S, search.left_s * (_SHARE_OF_FIRST if is_again else _SHARE_OF_TIME))

    @property
    def has_plan(self) -> bool:
        """Whether any fleet is known to train."""
        return any(trained.seconds < inf for trained, _ in self._known.values())

    @property
    def was_cut_off(self) -> bool:
        """Whether a limit of time cut off the plan of any fleet, and it was not asked for again."""
        return any(trained.late_s > 0 for trained, _ in self._known.values())

    def planned(self, fleet: Fleet, search: Search) -> Trained:
        """Plan the training on a fleet: a function of the fleet and the search's limits alone."""
        try:
            problem = self.problem(fleet)
        except SpecError as error:  # a pin that this fleet cannot keep
            return Trained(seconds=inf, bound=inf, used=fleet.counts, reason=str(error))
        try:
            plan = best_plan(problem, search)
        except InfeasibleError as error:
            return Trained(seconds=inf, bound=inf, used=fleet.counts, reason=str(error))
        except NoAnswerError as error:
            late_s, bound = _late_s(search), _least_s(problem)
            return Trained(seconds=inf, bound=bound, used=fleet.counts, reason=str(error), late_s=late_s)
        used, late_s = _used(plan, fleet), _late_s(search)
        return Trained(seconds=plan.objective, bound=plan.bound, used=used, plan=plan, late_s=late_s)


def _key_of(fleet: Fleet) -> _Key:
    """Return what a training sees of a fleet."""
    return tuple((hardware_of(offer), count) for offer, count in zip(fleet.offers, fleet.counts, strict=True))


def _is_part(fewer: _Key, more: _Key) -> bool:
    """Whether the first machines are some of the second, of the same hardware and in the same order."""
    return len(fewer) == len(more) and all(
        hardware == other and count <= most for (hardware, count), (other, most) in zip(fewer, more, strict=True)
    )


def _least_s(problem: Problem) -> float:
    """Return what no plan of the problem's families takes less than, all communication left out.

    A family that does not apply to the machines has a bound of 0: it makes no plan, and says nothing.
    """
    return min(filter(None, (bound_of(family, problem) for family in problem.families)), default=0.0)


def _late_s(search: Search) -> float:
    """Return the time that a search had where that was not enough, 0 where it ended before."""
    return 0.0 if search.left_s else search.time_limit_s


def _used(plan: Plan, fleet: Fleet) -> tuple[int, ...]:
    """Return the machines of each offer that a plan needs; all of them where its configuration does not say.

    Of parameter servers those that work, or serve on their own; at least one, as every fleet has of each. A fleet whose
    plan leaves an offer idle costs no less than that of the others alone.
    """
    names = group_names(fleet)
    if isinstance(plan.configuration, HybridConfiguration):
        devices = plan.configuration.devices_of
        if len(names) == 1:
            devices = {names[0]: sum(devices.values())}
        if not devices.keys() <= {*names}:  # equal machines at several prices
            return fleet.counts
        needed = [
            ceil(devices.get(name, 0) / offer.devices_per_machine)
            for name, offer in zip(names, fleet.offers, strict=True)
        ]
        return tuple(min(max(one, 1), count) for one, count in zip(needed, fleet.counts, strict=True))
    block, names = plan.configuration.to_document(), [offer.instance for offer in fleet.offers]
    if len(fleet.offers) == 1 and isinstance(number := block.get("num_machines"), int):
        return (min(number, fleet.counts[0]),)
    if plan.family != "parameter_server" or len(set(names)) < len(names):
        return fleet.counts
    used = {name: block["workers"].get(name, 0) for name in names}
    servers, number = block["servers"], block["num_parameter_servers"]
    used[servers] = max(used[servers], number) if block["co_located"] else used[servers] + number
    return tuple(min(max(used[name], 1), count) for name, count in zip(names, fleet.counts, strict=True))


# --- Fleets planned before their turn. What was begun and is never asked for is lost work, which is counted.


@dataclass(slots=True)
class Foresight:
    """What a worker pool was asked to plan.

    Attributes
    ----------
    num_begun
        Plans that were begun.
    """

    pool: WorkerPool
    num_begun: int = 0
    _origins: dict[int, tuple[Oracle, Origin | None]] = field(default_factory=dict)  # with its oracle, by identity
    _numbers: dict[_ForesightKey, int] = field(default_factory=dict)
    _results: dict[int, Trained | FailedTask] = field(default_factory=dict)

    def begin(self, wanted: Callable[[int], Sequence[tuple[Oracle, Fleet, float]]], search: Search) -> None:
        """Have fleets planned, as many as there is room for; ``wanted`` names so many, in the order of their turns."""
        if (room := self.pool.room()) <= 0 or search.is_over:
            return
        for oracle, fleet, enough_s in wanted(room):
            if id(oracle) not in self._origins:  # as it travels, made once; kept, so that its identity is
                self._origins[id(oracle)] = (oracle, Origin.of(oracle.maker()))
            origin = self._origins[id(oracle)][1]
            key = _foresight_key(oracle, fleet, enough_s, search)
            if origin is None or key in self._numbers or oracle.known(fleet, enough_s, search) is not None:
                continue
            limits = (oracle.time_limit_s(search), search.memory_limit_bytes, search.num_alternatives)
            self._numbers[key] = self.pool.submit(_planned_elsewhere, origin, (fleet, enough_s, *limits))
            self.num_begun += 1

    def known(self, oracle: Oracle, fleet: Fleet, enough_s: float, search: Search) -> Trained | None:
        """Return what came of a fleet that was begun; None where it was not, or is at work."""
        number = self._numbers.get(_foresight_key(oracle, fleet, enough_s, search))
        if number is None:
            return None
        if number not in self._results:
            self._collect(0.0)
        result = self._results.get(number)
        return None if isinstance(result, FailedTask) else result

    def taken(self, oracle: Oracle, fleet: Fleet, enough_s: float, search: Search) -> Trained | None:
        """Return the plan of a fleet that was begun, when it is there; None where it was not begun, or nobody is left.

        A plan that kills whoever makes it is not made here either: then nothing but the bound is known.
        """
        number = self._numbers.get(_foresight_key(oracle, fleet, enough_s, search))
        if number is None:
            return None
        while number not in self._results and not search.is_over:
            self._collect(_POLL_S)
        result = self._results.get(number)
        if isinstance(result, FailedTask) and not result.is_gone:
            self.pool.tell(f"a fleet could not be planned, and counts with its bound: {result.why}")
            return oracle.not_planned(fleet, result.why)
        if result is None or isinstance(result, FailedTask):
            return None
        return result

    def _collect(self, wait_s: float) -> None:
        """Take in what has come back."""
        self._results.update(self.pool.poll(wait_s, self._numbers.values()))


def _planned_elsewhere(
    oracle: Oracle,
    fleet: Fleet,
    enough_s: float,
    time_limit_s: float,
    memory_limit_bytes: float | None,
    num_alternatives: int,
) -> Trained:
    """Plan a fleet in a worker."""
    search = Search(
        time_limit_s=time_limit_s,
        memory_limit_bytes=memory_limit_bytes,
        num_alternatives=num_alternatives,
        cutoff=enough_s,
        is_brief=True,
    )
    return oracle.planned(fleet, search)


def _foresight_key(oracle: Oracle, fleet: Fleet, enough_s: float, search: Search) -> _ForesightKey:
    """Return what tells a plan from others."""
    return id(oracle), tuple(offer.name for offer in fleet.offers), fleet.counts, enough_s, search.num_alternatives

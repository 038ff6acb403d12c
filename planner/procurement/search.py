"""The search over fleets: which one is best, and which ones nothing beats in both time and money.

Roots of :mod:`planner.solvers.counts` are the markets, counts the machines of each offer, the oracle
the families' own searches on a cluster of at most so many machines, and the criteria those
of :mod:`planner.procurement.fleet`. :meth:`Fleets.floor` is the one bound of whole boxes of fleets; of one type, one
search of the families over all numbers of machines at once (:class:`planner.families.answer.CountBounds`) takes the
place of most plans. What was planned for any question stands in one :class:`planner.procurement.fleet.Ledger`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from itertools import product as all_of
from math import inf, nan
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError, SpecError
from planner.families import least_by_count_of
from planner.models.money import S_PER_H
from planner.procurement.fleet import Account, Fleet, Ledger, Market, markets_of
from planner.procurement.oracle import FEWEST, Foresight, Oracle, Trained, best_linked
from planner.procurement.prices import Offer
from planner.procurement.question import Procurement
from planner.search import Search
from planner.solution import BELOW, SAME, Solution, Status
from planner.solvers.counts import BestCounts, Candidate, TradeOffs, best_counts, best_trade_offs
from planner.solvers.readings import Counts, Profile, Question, Reading

_Answer = TypeVar("_Answer", BestCounts, TradeOffs)

OnProgress = Callable[[float, float, int], None]  # bound, incumbent, fleets planned

_AT_ONCE = 512  # fleets in one array of criteria: few, as it has a row for each of their offers
_MOST_KEPT = 3
_PAIR = 2  # offers
_ROUND_UP = 1 + SAME / 2  # a limit that is met exactly is kept, whatever rounding makes of it
_SHARE_OF_PAIRS = 0.95  # of the time that is left, for what each costs at least
_CLEARLY = 1.1  # times what money lasts for: parts of two kinds, each where it is quicker, take less than all of either
_SOONER = tuple(1 - 0.002 * 1.08**step for step in range(75))  # shares of a time, down to 0.4, held against a budget
_MANY = 1 << 62
_WORTH_S = 0.05  # CPU seconds of planning one fleet: looking ahead costs the half of that
_TIES = ("cost", "time", "machines")  # of fleets of equal objective, the cheaper, the faster, the smaller

Ints = NDArray[np.int64]


def _kind_of(offer: Offer) -> tuple[object, ...]:
    """Return what tells machines apart but for their price and their network."""
    return offer.provider, offer.region, offer.device, offer.devices_per_machine, offer.inside, offer.is_bought


def _fewest(fleet: Fleet) -> Fleet:
    """Return one machine of each offer of a fleet: those that fail least often."""
    return replace(fleet, counts=tuple(min(count, 1) for count in fleet.counts))


@dataclass(slots=True, kw_only=True)
class Fleets:
    """All fleets of a question, and what is known of them; what was planned is kept from search to search.

    Attributes
    ----------
    stretch
        What training takes longer than predicted.
    offers, refused
        Those whose devices can train the networks; why others cannot, with how many.
    ledger
        All fleets that were planned, for whatever question with the same oracles.
    """

    procurement: Procurement
    stretch: float = 1.0
    oracles: tuple[Oracle, ...] = ()
    offers: tuple[Offer, ...] = field(init=False)
    refused: dict[str, int] = field(init=False, default_factory=dict)
    account: Account = field(init=False)
    foresight: Foresight | None = None
    ledger: Ledger = field(default_factory=Ledger)
    _rates: Floats = field(init=False)  # trainings a second of one machine, (jobs, offers)
    _sizes: Floats = field(init=False)
    _usd_per_s: Floats = field(init=False)
    _power_w: Floats = field(init=False)
    _accounts: dict[tuple[int, ...], Account] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.oracles = self.oracles or tuple(Oracle(self.procurement, job) for job in self.procurement.jobs)
        kept, rates, first = [], [], None
        for offer in self.procurement.offers:
            try:
                rates.append([oracle.ideal_rate(offer) for oracle in self.oracles])
                kept.append(offer)
            except SpecError as error:
                first = first or error
                why = f"that cannot be asked ({error.faults[0].problem.rstrip('.') if error.faults else error})"
                self.refused[why] = self.refused.get(why, 0) + 1
        if not kept and first is not None:
            raise first  # the question is at fault, not the offers
        self.offers = tuple(kept)
        self._rates = np.array(rates).T.reshape(len(self.oracles), len(self.offers))
        self.account = Account(self.procurement, self.offers, stretch=self.stretch)
        self._sizes = np.where(np.isfinite(self._rates[0]) & (self._rates[0] > 0), self._rates[0], 1.0)
        self._usd_per_s = self.account.usd_per_s()
        self._power_w = self.account.power_w()

    def asked_otherwise(self, *, procurement: Procurement | None = None, stretch: float | None = None) -> "Fleets":
        """Return the fleets of another question on the same machines: no plan has to be made again."""
        return Fleets(
            procurement=procurement or self.procurement,
            stretch=self.stretch if stretch is None else stretch,
            oracles=self.oracles,
            ledger=self.ledger,
        )

    @property
    def families(self) -> tuple[str, ...]:
        """The families that are searched for some job, each once."""
        return tuple(dict.fromkeys(family for oracle in self.oracles for family in oracle.families))

    @property
    def num_contradictions(self) -> int:
        """How often a family's bound on more machines was beaten by its plan on fewer."""
        return sum(oracle.num_contradictions for oracle in self.oracles)

    def is_measured(self, offer: Offer) -> bool:
        """Whether training steps were measured on an offer's device, or the seconds of all jobs are given."""
        return all(oracle.is_measured(offer) for oracle in self.oracles)

    def markets(self, num_types: int) -> list[Market]:
        """Return the sets of so many offers that may make a fleet."""
        return markets_of(self.procurement, self.offers, num_types)

    def all_markets(self) -> list[Market]:
        """Return the sets of as many offers as a fleet may have, the small ones first."""
        types = range(1, self.procurement.asked.most_types + 1)
        return [market for num_types in types for market in self.markets(num_types)]

    # -- searches ------------------------------------------------------------------------------------------------------

    def best(
        self,
        markets: Sequence[Market],
        search: Search,
        *,
        objective: str = "objective",
        without: Sequence[str] = (),
        most: float = inf,
        most_calls: int = _MANY,
        on_progress: OnProgress | None = None,
    ) -> BestCounts:
        """Return the fleet of some markets with the least objective within the limits.

        Where the search ends without a proof, the best fleet that was looked at before, for whatever question, is the
        answer if it is better.

        Parameters
        ----------
        objective
            A criterion to be least, if not the question's objective.
        without
            Limits that do not count, by their criterion.
        most
            Only fleets whose objective is less are looked for.
        most_calls
            Fleets to plan, at most.
        """
        question = self._question(markets, (objective,), search, without=without, most=most)

        def report(bound: float, incumbent: Candidate | None, calls: int) -> None:
            if on_progress is not None:
                on_progress(bound, inf if incumbent is None else incumbent.criteria[0], calls)

        answer = self._agreed(lambda: best_counts(question, search, most_calls=most_calls, on_progress=report))
        solution = answer.solution
        if solution.status in (Status.OPTIMAL, Status.INFEASIBLE) or solution.objective <= search.good_enough:
            return answer
        before = self._best_looked_at(question, markets)
        if before is None or before.criteria[0] >= solution.objective * (1 - SAME):
            return answer
        least, bound = before.criteria[0], min(solution.bound, before.criteria[0])
        status = Status.OPTIMAL if least - bound <= SAME * least else Status.FEASIBLE
        return replace(answer, solution=Solution(status=status, objective=least, bound=bound, value=before))

    def best_looked_at(self, *, most: float) -> tuple[Market, Candidate] | None:
        """Return the best of all fleets whose work was ever asked for, if it keeps the limits and is below ``most``."""
        if not (markets := self.all_markets()):
            return None
        best = self._best_looked_at(self._question(markets, ("objective",), Search(), most=most), markets)
        return None if best is None or best.criteria[0] >= most else (markets[best.root], best)

    def looked_at_by_time(self) -> list[tuple[Market, Candidate]]:
        """Return the fleets whose work was ever asked for that no other one of them beats in time and money.

        The fastest first, whatever the limits on time and money; they keep all others.
        """
        if not (markets := self.all_markets()):
            return []
        question = self._question(markets, ("time", "cost"), Search(), without=("time", "spent"))
        least, kept = inf, []
        for candidate in sorted(self._looked_at(question, markets), key=lambda one: one.order):
            if candidate.criteria[1] < least * (1 - SAME):
                least = candidate.criteria[1]
                kept.append((markets[candidate.root], candidate))
        return kept

    def best_by_devices(self) -> list[tuple[Market, Candidate]]:
        """Return the best fleet of each set of devices within the limits, of those whose work was ever asked for."""
        markets, best = self.all_markets(), dict[frozenset[str], Candidate]()
        found = self._looked_at(self._question(markets, ("objective",), Search()), markets) if markets else []
        for candidate in sorted(found, key=lambda one: one.order):
            best.setdefault(frozenset(offer.device for offer in markets[candidate.root].offers), candidate)
        return [(markets[one.root], one) for one in best.values()]

    def promising(self, markets: Sequence[Market]) -> list[Market]:
        """Return markets in the order of the least objective that they could have."""
        question = self._question(markets, ("objective",), Search())
        least = self.floor(["objective"], self._rows(markets), question.least, question.most)[:, 0]
        return [markets[row] for row in np.lexsort((np.arange(len(markets)), least))]

    def trade_offs(self, markets: Sequence[Market], search: Search) -> TradeOffs:
        """Return the fleets that none beats in both time and money."""
        question = self._question(markets, ("time", "cost"), search)
        return self._agreed(lambda: best_trade_offs(question, search))

    def _agreed(self, search: Callable[[], _Answer]) -> _Answer:
        """Return what a search finds; begin anew where the oracles contradict themselves, who then know better."""
        while True:
            before = self.num_contradictions
            try:
                return search()
            except ModelError:
                if self.num_contradictions == before:
                    raise

    def _best_looked_at(self, question: Question, markets: Sequence[Market]) -> Candidate | None:
        """Return the best point of a question among the fleets whose work was ever asked for; None where none is."""
        return min(self._looked_at(question, markets), key=lambda candidate: candidate.order, default=None)

    def _looked_at(self, question: Question, markets: Sequence[Market]) -> list[Candidate]:
        """Return the points of a question that keep its limits, of the fleets whose work was ever asked for."""
        points: list[tuple[int, Counts, Reading]] = []
        for root, market in enumerate(markets):
            for counts, planned in self.ledger.fleets_of(market.offers):
                if any(count > most for count, most in zip(counts, market.most, strict=True)):
                    continue
                parts = self._parts(Fleet(offers=market.offers, counts=planned)) or []
                trained = [oracle.found(part) for oracle, part in parts]
                found = [one for one in trained if one is not None and one.seconds < inf]
                fleet = Fleet(offers=market.offers, counts=counts)
                if found and len(found) == len(trained) and self._holds(fleet, found):
                    points.append((root, counts, self._reading(fleet, found)))
        if not points:
            return []
        width = question.most.shape[1]
        rows = np.array([[*number, *[0] * (width - len(number))] for _, number, _ in points], dtype=np.int64)
        roots, work_s = np.array([root for root, *_ in points]), np.array([found.value for *_, found in points])
        criteria = question.criteria(roots, rows, work_s)
        is_kept = (criteria <= np.asarray(question.limits)).all(axis=1) & np.isfinite(criteria).all(axis=1)
        candidates = []
        for row in np.flatnonzero(is_kept).tolist():
            root, counts, reading = points[row]
            order = tuple(criteria[row].tolist())
            candidates.append(
                Candidate(root=root, counts=counts, criteria=order, t=reading.value, payload=reading.payload)
            )
        return candidates

    # -- the work of one fleet -----------------------------------------------------------------------------------------

    def trained(self, market: Market, counts: Sequence[int], search: Search, enough_s: float = inf) -> Reading:
        """Return what is known of the work of a month, or of the one training, on so many machines."""
        fleet = Fleet(offers=market.offers, counts=tuple(counts))
        if (parts := self._parts(fleet)) is None:
            return Reading(value=inf, bound=inf)
        trained = []
        for oracle, part, seconds in self._asked(fleet, parts, enough_s):
            if len(parts) > 1 and oracle.found(part) is None and (least_s := oracle.least_s(part)) >= seconds:
                trained.append(Trained(seconds=inf, bound=least_s, used=part.counts))  # whatever its plan is
            else:
                trained.append(oracle.trained(part, search, enough_s=seconds))
        return self.look_at(fleet, trained)

    def look_at(self, fleet: Fleet, trained: Sequence[Trained]) -> Reading:
        """Return what is known of a fleet's work; remember that it was asked for, and of the part that the plan needs.

        So the fleet can be the answer to another question.
        """
        reading = self._reading(fleet, trained)
        self.ledger.note(fleet, reading.used)
        return reading

    def _parts(self, fleet: Fleet) -> list[tuple[Oracle, Fleet]] | None:
        """Return who is asked for which machines; None: one job has none."""
        parts = [self.account.part_of(fleet, oracle.job) for oracle in self.oracles]
        return list(zip(self.oracles, parts, strict=True)) if all(any(part.counts) for part in parts) else None

    def _asked(
        self, fleet: Fleet, parts: Sequence[tuple[Oracle, Fleet]], enough_s: float
    ) -> Iterator[tuple[Oracle, Fleet, float]]:
        """Yield whom to ask for which machines, and from which time on it does not matter.

        Of several jobs what is known of the others is taken off, also of those that were asked since the first was.
        """
        least_s = np.array([[oracle.least_s(part)] for oracle, part in parts]) if self.procurement.is_monthly else None
        for index, (oracle, part) in enumerate(parts):
            seconds = enough_s
            if least_s is not None:
                seconds = float(self._enough_s(fleet, least_s, np.array([enough_s]), index)[0])
            yield oracle, part, seconds
            if least_s is not None and (found := oracle.found(part)) is not None:
                least_s[index] = max(least_s[index, 0], found.bound)

    def _walls_s(self, fleet: Fleet, least_s: Floats) -> Floats:
        """Return the wall time of one run of each job at least, (jobs, fleets), with no more failures than of one part.

        ``least_s``: what each job trains.
        """
        account, fewest, walls = replace(self.account, offers=fleet.offers), _fewest(fleet), []
        for job, seconds in zip(self.procurement.jobs, least_s, strict=True):
            counts = np.array(self.account.part_of(fewest, job).counts, dtype=np.float64)[:, None]
            walls.append(account.run(counts, seconds).wall_s)
        return np.array(walls)

    def _enough_s(
        self, fleet: Fleet, least_s: Floats, enough_s: Floats, index: int, *, has_deadlines: bool = True
    ) -> Floats:
        """Return from which training time on a job does not matter, next to what the others take at least.

        Parameters
        ----------
        least_s
            What each job trains at least, (jobs, fleets).
        enough_s
            From which work on fleets do not matter.
        """
        walls, jobs = self._walls_s(fleet, least_s), self.procurement.jobs
        runs = np.array([job.runs_per_month for job in jobs])[:, None]
        deadlines = [job.deadline_s if has_deadlines else inf for job in jobs]
        if self.account.is_parted:
            left_s = np.minimum(enough_s / jobs[index].runs_per_month, deadlines[index] / BELOW)
        else:
            others = np.arange(len(jobs)) != index
            order = sorted(range(len(jobs)), key=deadlines.__getitem__)  # in which they are done
            with np.errstate(invalid="ignore"):  # where another one never ends: no number
                left_s = (enough_s - (runs * walls)[others].sum(axis=0)) / jobs[index].runs_per_month
                for place in range(order.index(index), len(jobs)):
                    before = [one for one in order[: place + 1] if one != index]
                    left_s = np.minimum(left_s, deadlines[order[place]] / BELOW - walls[before].sum(axis=0))
        run = self.procurement.asked.run
        return np.fmax(left_s - (run.start_up or 0.0) - (run.evaluation or 0.0), 0.0) / self.account.stretch

    def _month_s(self, fleet: Fleet, least_s: Floats) -> Floats:
        """Return the work of fleets that all share at least, infinite where a job is late; ``least_s``: (jobs, n)."""
        walls, jobs = self._walls_s(fleet, least_s), self.procurement.jobs
        work_s: Floats = (np.array([job.runs_per_month for job in jobs])[:, None] * walls).sum(axis=0)
        order = sorted(range(len(jobs)), key=lambda one: jobs[one].deadline_s)
        due_s = np.array([jobs[one].deadline_s for one in order])[:, None]
        return np.where((np.cumsum(walls[order], axis=0) > due_s / BELOW).any(axis=0), inf, work_s * BELOW)

    def _profile(self, offer: Offer, weight_s: Floats, enough_s: Floats, search: Search) -> Profile | None:
        """Return what is known of the work on all numbers of machines of an offer, asked for at once.

        Of several jobs one after the other, each next to what the others take at least; named is the number whose work
        has the least share, of those that one of them names.
        """
        if not self.procurement.is_monthly:
            found = self.oracles[0].by_count(offer, weight_s, enough_s, search)
            return None if found is None else Profile(bounds=found.bounds_s, promising=found.num_machines)
        fleet, number, named = Fleet(offers=(offer,), counts=(1,)), len(weight_s), []
        least_s = np.array([oracle.bounds_s(offer, number) for oracle in self.oracles])
        for index, oracle in enumerate(self.oracles):
            weights = self._enough_s(fleet, least_s, weight_s, index, has_deadlines=False)
            limits = self._enough_s(fleet, least_s, enough_s, index)
            # Fewer machines may have less left, where another job is late: what more machines are held against counts.
            weights, limits = (np.maximum.accumulate(one[::-1])[::-1] for one in (weights, limits))
            found = oracle.by_count(offer, weights, limits, search)
            if found is None:
                return None
            least_s[index] = np.maximum(least_s[index], found.bounds_s)
            named += [] if found.num_machines is None else [found.num_machines]
        month_s = self._month_s(fleet, least_s)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.nan_to_num(month_s / weight_s, nan=inf, posinf=inf)  # where a job is late, whatever the weight
        return Profile(bounds=month_s, promising=min(named, key=lambda one: float(shares[one - 1]), default=None))

    def _first_profile(self, offer: Offer, number: int) -> Floats:
        """Return what is known of the work on up to so many machines of an offer."""
        least_s = np.array([oracle.bounds_s(offer, number) for oracle in self.oracles])
        if not self.procurement.is_monthly:
            return np.asarray(least_s[0])
        return self._month_s(Fleet(offers=(offer,), counts=(1,)), least_s)

    def _reading(self, fleet: Fleet, trained: Sequence[Trained]) -> Reading:
        """Return what is known of a fleet's work from what was planned for each job.

        Hopeless is one on which a job of several misses its deadline, whatever part of it is used: at these counts and
        at any fewer, which train no faster and fail no less than one machine of each.
        """
        jobs, bounds = self.procurement.jobs, [one.bound for one in trained]
        value = self.account.work_s(fleet, [one.seconds for one in trained])
        bound, own = min(value, self.account.work_s(_fewest(fleet), bounds)), self.account.work_s(fleet, bounds)
        if self.procurement.is_monthly and self.account.is_late(_fewest(fleet), bounds):
            value = bound = inf
        used = trained[0].used if len(jobs) == 1 and jobs[0].share == 1 else None
        return Reading(value=value, bound=bound, used=used, payload=tuple(trained), own=min(value, own))

    def known_readings(self, market: Market, search: Search) -> list[tuple[Counts, Reading]]:
        """Return what is known of the work of a market's fleets, for whatever question they were planned.

        Without those that a limit cut off, where there is time to ask again.
        """
        found = []
        for counts, planned in self.ledger.fleets_of(market.offers):
            if counts != planned or any(count > most for count, most in zip(counts, market.most, strict=True)):
                continue
            parts = self._parts(Fleet(offers=market.offers, counts=counts)) or []
            trained = [oracle.found(part) for oracle, part in parts]
            each = zip(self.oracles, trained, strict=False)
            known = [one for oracle, one in each if one is not None and not oracle.may_go_on(one, search)]
            if known and len(known) == len(self.oracles):
                found.append((counts, self._reading(Fleet(offers=market.offers, counts=counts), known)))
        return found

    def _known(self, fleet: Fleet, enough_s: float, search: Search) -> Reading | None:
        """Return what is known already of a fleet's work; None where something is still to be planned."""
        if (parts := self._parts(fleet)) is None:
            return Reading(value=inf, bound=inf)
        known = []
        for oracle, part, seconds in self._asked(fleet, parts, enough_s):
            trained = oracle.known(part, seconds, search)
            if trained is None and self.foresight is not None:
                trained = self.foresight.known(oracle, part, seconds, search)
            known += [] if trained is None else [trained]
        return self._reading(fleet, known) if len(known) == len(parts) else None

    def _holds(self, fleet: Fleet, trained: Sequence[Trained]) -> bool:
        """Whether there are enough machines, and no job of several is late: which it may be with more of them, too.

        For more machines fail more often. So this is no matter of the oracle, which never grows.
        """
        if fleet.num_machines < self.procurement.asked.num_machines.least:
            return False
        return not (self.procurement.is_monthly and self.account.is_late(fleet, [one.seconds for one in trained]))

    # -- arrays for the solver -----------------------------------------------------------------------------------------

    def _question(
        self,
        markets: Sequence[Market],
        first: Sequence[str],
        search: Search,
        *,
        without: Sequence[str] = (),
        most: float = inf,
    ) -> Question:
        """Return the solver's question: the criteria named, then what decides between equals, then the limits.

        ``most``: of the first criterion, besides its limit.
        """
        limits = {name: limit for name, limit in self.account.limits.items() if name not in without and limit < inf}
        limits = {name: limit * _ROUND_UP for name, limit in limits.items()}
        names = list(dict.fromkeys([*first, *_TIES, *limits]))
        index = self._rows(markets)
        largest = np.zeros(index.shape, dtype=np.int64)
        for row, market in enumerate(markets):
            largest[row, : len(market.most)] = market.most
        paces: list[list[Floats]] = []  # worked out where a floor is asked for
        beside = np.zeros(len(markets))
        least, is_monthly = self.procurement.asked.num_machines.least, self.procurement.is_monthly
        if search.pool is not None and self.foresight is None:
            # A changed question may have the same oracles, and what they were asked is known there.
            before = (oracle.foresight for oracle in self.oracles if oracle.foresight is not None)
            self.foresight = next(before, None) or Foresight(search.pool)
            for oracle in self.oracles:
                oracle.foresight = self.foresight
        foresight = self.foresight

        def floor(roots: Ints, low: Ints, high: Ints) -> Floats:
            if not paces:
                is_mixed = index.shape[1] > 1
                paces.append(self._paces_of(names[0], limits, most, search) if is_mixed else [])
                if is_mixed:
                    floors = self.floor(names, index, np.minimum(largest, 1), largest, paces[0])
                    can = (floors <= [limits.get(name, inf) for name in names]).all(axis=1)  # keep the limits
                    floors[~can] = inf
                    beside[:] = self._beside(markets, floors[:, 0], names[0], limits, most, search)
            found = self.floor(names, index[roots], low, high, paces[0])
            found[:, 0] = np.maximum(found[:, 0], beside[roots])
            return found

        def fleet_of(root: int, counts: Sequence[int]) -> Fleet:
            offers = markets[root].offers
            return Fleet(offers=offers, counts=tuple(int(count) for count in counts[: len(offers)]))

        def kept_by(root: int, counts: Counts, payload: Sequence[Trained] | None) -> bool | None:
            """Whether no job is late."""
            fleet = fleet_of(root, counts)
            if not payload or not self.account.is_late(fleet, [one.seconds for one in payload]):
                return True if payload else None
            return False if self.account.is_late(fleet, [one.bound for one in payload]) else None

        def foreseen(calls: Callable[[int], list[tuple[int, Counts, float]]]) -> None:
            """Have those planned that are likely to be asked for next."""
            if foresight is None or not self._is_large(foresight):
                return

            def wanted(number: int) -> list[tuple[Oracle, Fleet, float]]:
                fleets = [(fleet_of(root, counts), enough_s) for root, counts, enough_s in calls(number)]
                asked = [self._asked(fleet, self._parts(fleet) or (), enough_s) for fleet, enough_s in fleets]
                return [part for one in asked for part in islice(one, 1)]  # a job's limit depends on the one before

            foresight.begin(wanted, search)

        return Question(
            most=largest,
            profile=(
                lambda root, weight_s, enough_s: self._profile(markets[root].offers[0], weight_s, enough_s, search)
            )
            if self._has_profiles
            else None,
            first_profile=lambda root: self._first_profile(markets[root].offers[0], int(largest[root, 0])),
            begun=lambda root: self.known_readings(markets[root], search),
            oracle=lambda root, counts, enough_s: self.trained(markets[root], counts, search, enough_s),
            criteria=lambda roots, counts, work_s: self._criteria(names, index[roots], counts, work_s),
            limits=[min(most, limits.get(names[0], inf)), *(limits.get(name, inf) for name in names[1:])],
            floor=floor,
            size=lambda roots, counts: (counts * self._sizes[index[roots]]).sum(axis=1),
            known=None
            if foresight is None
            else lambda root, counts, enough_s: self._known(fleet_of(root, counts), enough_s, search),
            foreseen=foreseen,
            kept_by=kept_by if is_monthly else None,
            can_hold=(lambda roots, low, high: high.sum(axis=1) >= least) if least > 1 else None,
            holds=(lambda roots, counts: counts.sum(axis=1) >= least) if least > 1 else None,
        )

    @property
    def _has_profiles(self) -> bool:
        """Whether all numbers of machines of an offer can be asked about at once: of trainings on all of them."""
        is_whole = all(job.share == 1 for job in self.procurement.jobs)
        return is_whole and all(least_by_count_of(family) is not None for family in self.families)

    def _is_large(self, foresight: Foresight) -> bool:
        """Whether fleets take so long to plan that it is worth while to look ahead and ask others."""
        planned_s = sum(oracle.planned_s for oracle in self.oracles)
        is_long = planned_s >= foresight.pool.alone_s or foresight.num_begun > 0
        return is_long and planned_s >= _WORTH_S * sum(oracle.num_here for oracle in self.oracles)

    def _rows(self, markets: Sequence[Market]) -> Ints:
        """Return which of all offers the offers of markets are, a row each; 0 beyond the last."""
        rows = {offer.name: row for row, offer in enumerate(self.offers)}
        index = np.zeros((len(markets), max(len(market.offers) for market in markets)), dtype=np.int64)
        for row, market in enumerate(markets):
            index[row, : len(market.offers)] = [rows[offer.name] for offer in market.offers]
        return index

    def _criteria(self, names: Sequence[str], index: Ints, counts: Ints, work_s: Floats) -> Floats:
        """Return criteria of fleets, a row each; ``index`` says which offer each count is of."""
        parts = []
        is_one = bool((index == index[:1]).all())  # set of offers: then a row has no offers of others
        size = max(len(counts), 1) if is_one else _AT_ONCE
        for start in range(0, len(counts), size):
            rows = slice(start, start + size)
            used, local = np.unique(index[:1] if is_one else index[rows], return_inverse=True)
            key = tuple(used.tolist())
            account = self._accounts.get(key)
            if account is None:
                account = replace(self.account, offers=tuple(self.offers[row] for row in key))
                if len(key) <= _MOST_KEPT:  # those of single markets are asked again
                    self._accounts[key] = account
            dense = np.zeros((len(used), len(counts[rows])))  # of the offers that these fleets have
            fleets = np.arange(dense.shape[1])
            for row, each in zip(local.reshape(-1, index.shape[1]).T, counts[rows].T, strict=True):
                dense[row, fleets] += each
            criteria = account.criteria(dense, np.asarray(work_s[rows], dtype=np.float64))
            parts.append(np.stack([np.broadcast_to(criteria[name], dense.shape[1]) for name in names], axis=1))
        return np.concatenate(parts) if parts else np.zeros((0, len(names)))

    def floor(self, names: Sequence[str], index: Ints, least: Ints, most: Ints, paces: Sequence[Floats] = ()) -> Floats:
        """Return what no fleet of a box has less than, all devices busy all the time: ``work >= 1 / sum(n rate)``.

        Rates: see :meth:`_rates_of`.

        Fleets are paid for, and draw power, while they train. So cost and energy are at least a ratio of two linear
        functions of the counts, and that is least in a corner of the box.

        Parameters
        ----------
        names
            Criteria, one a column of the result.
        index, least, most
            Shape (boxes, types): which offer each count is of, and the box's corners.
        paces
            See :meth:`_rates_of`; without, devices are taken to be at their peak.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = [np.where(most > 0, one, 0.0) for one in self._rates_of(index, least, most, paces)]
            least_s = [np.nan_to_num(1 / (most * rate).sum(axis=1), nan=inf, posinf=inf) for rate in rates]
            work_s = self._works(least_s)
            floors = self._criteria(names, index, least, work_s)
            if self.account.is_parted:
                return floors
            corners = [np.where(np.array(ends), most, least) for ends in all_of((False, True), repeat=most.shape[1])]
            ratios = {}
            for name, each in (("cost", self._usd_per_s[index]), ("energy", self._power_w[index])):
                times = [
                    np.min([(n * each).sum(axis=1) / (n * rate).sum(axis=1) for n in corners], axis=0) for rate in rates
                ]
                stretch = 1.0 if self.procurement.is_monthly else self.stretch
                ratios[name] = np.nan_to_num(self._works(times) * stretch, nan=0.0)
            if not any(offer.is_bought for offer in self.offers):  # what is rented is spent
                ratios["spent"] = ratios["cost"]
        usd_per_s = (self.procurement.asked.usd_per_hour_saved or 0.0) / S_PER_H
        for column, name in enumerate(names):
            goal = self.procurement.asked.objective if name == "objective" else name
            if goal in ratios:
                floors[:, column] = np.maximum(floors[:, column], ratios[goal] * BELOW)
            elif goal == "value_of_time":
                timed = self._criteria(["time"], index, least, work_s)[:, 0]
                floors[:, column] = np.maximum(floors[:, column], (ratios["cost"] + usd_per_s * timed) * BELOW)
        return floors

    def _rates_of(self, index: Ints, least: Ints, most: Ints, paces: Sequence[Floats]) -> list[Floats]:
        """Return trainings a second at which machines of a fleet's kinds add up, by job, of the shape of ``index``.

        Of one kind what all its devices do at their peak. Of several kinds less, by the least seconds ``s_kp`` of one
        machine of kind k for part p of the training: where kind k does ``x_kp`` of part p, ``sum_p x_kp s_kp <= n_k T``
        and ``sum_k x_kp = 1``. With ``z_k = sum_p s_kp`` and ``y_p`` the least ``s_kp / z_k`` of the fleet's kinds

            ``T sum_k n_k / z_k >= sum_kp x_kp s_kp / z_k >= sum_p y_p``,

        which is a rate of ``1 / (z_k sum_p y_p)`` of every machine.

        Parameters
        ----------
        paces
            See :meth:`_paces_of`.
        """
        found = [rates[index] for rates in self._rates]
        at = np.maximum(np.searchsorted(FEWEST, least.sum(axis=1), side="right") - 1, 0)
        for job, parts_s in enumerate(paces):
            each_s = parts_s[at[:, None], index]
            whole_s, is_there = each_s.sum(axis=2), most > 0
            with np.errstate(divide="ignore", invalid="ignore"):
                shares = np.where(is_there[..., None], each_s / whole_s[..., None], 1.0)
                rate = 1 / (whole_s * shares.min(axis=1).sum(axis=1)[:, None])
            known = np.where(np.isfinite(rate), np.minimum(rate, found[job]), found[job])
            cannot = (np.isinf(whole_s) & is_there).any(axis=1)[:, None]  # some of its machines, and so no such fleet
            is_mixed = is_there.sum(axis=1, keepdims=True) > 1
            found[job] = np.where(is_mixed, np.where(cannot, 0.0, known), found[job])
        return found

    def usd_in_company(self, most: float, search: Search) -> list[tuple[float, Offer]]:
        """Return what a training costs at least by machines of each offer, the cheapest first.

        Of fleets of several kinds with an objective below ``most``: what a kind does costs in proportion as much. Empty
        where that is not known of all machines that can train.
        """
        if self.procurement.is_monthly:
            return []
        limits = {name: limit for name, limit in self.account.limits.items() if limit < inf}
        paces = self._paces_of("objective", limits, most, search)
        if not paces or np.isnan(whole_s := paces[0][0].sum(axis=1)).any():
            return []
        usd = whole_s * self._usd_per_s * self.account.stretch
        rows = [(float(one), offer) for one, offer in zip(usd, self.offers, strict=True) if np.isfinite(one)]
        return sorted(rows, key=lambda row: (row[0], row[1].name))

    def _paces_of(self, first: str, limits: Mapping[str, float], most: float, search: Search) -> list[Floats]:
        """Return the least seconds of each part on one machine of each offer by job, nan if unknown.

        Shape (numbers, offers, parts), for each of :data:`planner.procurement.oracle.FEWEST` machines in all.

        Nothing where the search is over before.

        In fleets of several kinds that keep the limits, and that some other fleet of one kind is not as good as: no
        machine is paid for longer than money lasts, and the training must be done in time.
        """
        asked, account = self.procurement.asked, self.account
        enough_s, within_s = np.zeros(len(self.offers)), inf
        if not self.procurement.is_monthly and asked.num_machines.least <= 1:
            goal = asked.objective if first == "objective" else first
            saved_usd = (asked.usd_per_hour_saved or 0.0) / S_PER_H if goal == "value_of_time" else 0.0
            within_s = min(limits.get("time", inf), most if goal == "time" else inf)
            within_s = min(within_s, most / saved_usd if saved_usd else inf)
            usd = min(self._most_usd(limits, within_s), most if goal in ("cost", "value_of_time") else inf)
            within_s /= account.stretch
            if usd < inf and within_s < inf:
                with np.errstate(divide="ignore"):
                    enough_s = np.nan_to_num(_CLEARLY * usd / self._usd_per_s / account.stretch, posinf=inf)
        found = []
        for oracle in self.oracles:
            each = [oracle.parts_s(offer) for offer in self.offers if not search.is_over]
            if len(each) < len(self.offers):
                return []
            whole_s = [0.0 if one is None else float(one[0].sum()) for one in each]
            fastest_s = min(one * offer.devices_per_machine for one, offer in zip(whole_s, self.offers, strict=True))
            asked_s: dict[object, list[int]] = {}
            for row, offer in enumerate(self.offers):
                if each[row] is not None and whole_s[row] < enough_s[row] and 0 < fastest_s < inf:
                    asked_s.setdefault((_kind_of(offer), offer.network_bytes_per_s is None), []).append(row)
            for rows in asked_s.values():  # the best of their networks takes no longer than any
                alike = [self.offers[row] for row in rows]
                best = alike[0] if alike[0].network_bytes_per_s is None else best_linked(alike)
                least_s = oracle.parts_s(best, float(enough_s[rows].max()), within_s, fastest_s)
                for row in rows:
                    if (known_s := each[row]) is not None and least_s is not None:
                        each[row] = np.maximum(known_s, least_s)
            width = max((one.shape[1] for one in each if one is not None), default=1)
            parts_s = np.full((len(FEWEST), len(self.offers), width), nan)
            for row, one in enumerate(each):
                if one is not None:
                    parts_s[:, row] = one  # where one is infinite, all are
            found.append(parts_s)
        return found

    def _most_usd(self, limits: Mapping[str, float], within_s: float) -> float:
        """Return what a run of so long costs at most by the limits, infinite where they do not tell.

        A budget pays for whole machines, and so for all that they wear, unless a run outlasts their life.
        """
        used = self.account.used
        outlasts = any(one.wear_usd_per_s * within_s > one.purchase_usd * used for one in self.offers if one.is_bought)
        return min(limits.get("cost", inf), inf if outlasts else limits.get("spent", inf))

    def _beside(
        self,
        markets: Sequence[Market],
        floors: Floats,
        first: str,
        limits: Mapping[str, float],
        most: float,
        search: Search,
    ) -> Floats:
        """Return what fleets of some machines of each of two offers have at least, 0 where their floors are enough.

        Where such a fleet trains on one offer alone, that fleet of one kind is as good. Those whose floors are least
        come first, within most of the time. If in some time none keeps the budget, none that does is as fast. Of offers
        of one device in like machines, whatever costs the least of them and has the best of their networks costs no
        more than any: where that is enough, none is asked by itself.
        """
        asked, found = self.procurement.asked, np.zeros(len(markets))
        goal = asked.objective if first == "objective" else first
        within_s = min(limits.get("time", inf), most if goal == "time" else inf)
        usd = self._most_usd(limits, within_s) if goal == "time" else most
        if usd == inf or goal not in ("cost", "time", "value_of_time") or self.procurement.is_monthly:
            return found
        if most == inf or len(self.oracles) > 1 or asked.num_machines.least > 1:
            return found
        more_usd_per_s = (asked.usd_per_hour_saved or 0.0) / S_PER_H if goal == "value_of_time" else 0.0
        stretch, part, known = self.account.stretch, search.part(search.left_s * _SHARE_OF_PAIRS), dict[object, float]()
        left: list[tuple[int, Fleet, list[float]]] = []
        kinds: dict[object, list[tuple[float, Offer]]] = {}
        usd_of = {offer.name: each for offer, each in zip(self.offers, self._usd_per_s.tolist(), strict=True)}
        for offer, usd_per_s in zip(self.offers, usd_of.values(), strict=True):
            if offer.network_bytes_per_s is not None:
                kinds.setdefault(_kind_of(offer), []).append((usd_per_s, offer))

        def least_usd(fleet: Fleet, usd_per_s: Sequence[float], in_s: float = within_s) -> float:
            least = self.oracles[0].beside_usd(fleet, usd_per_s, more_usd_per_s, in_s / stretch, usd / stretch, part)
            return least * stretch if least * stretch < usd * BELOW else inf  # so much does not matter

        def is_too_soon(fleet: Fleet, usd_per_s: Sequence[float], share: float) -> bool:
            return not part.is_over and least_usd(fleet, usd_per_s, share * within_s) == inf

        for root in np.argsort(floors, kind="stable").tolist():
            market = markets[root]
            if floors[root] >= most * BELOW**4 or part.is_over:
                break
            names = tuple(sorted((_kind_of(offer) for offer in market.offers), key=str))  # in either order one pair
            alike = [kinds.get(name, []) for name in names]
            if len(market.offers) != _PAIR or not all(alike) or not all(each for rows in alike for each, _ in rows):
                continue
            if names not in known:
                best = [best_linked([offer for _, offer in rows]) for rows in alike]
                counts = [self.procurement.asked.most_devices // offer.devices_per_machine for offer in best]
                fleet = Fleet(offers=tuple(best), counts=tuple(counts))
                known[names] = least_usd(fleet, [min(each for each, _ in rows) for rows in alike])
            least, fleet = known[names], Fleet(offers=market.offers, counts=market.most)
            own = [usd_of[offer.name] for offer in market.offers]
            if least < usd and any(len(rows) > 1 for rows in alike):
                least = max(least, least_usd(fleet, own))
            found[root] = least if goal != "time" or least == inf else 0.0
            if found[root] == 0 and goal == "time":
                left.append((root, fleet, own))
        at = 0  # of the least share so far: of others it is enough that they are no sooner
        for root, fleet, own in left:
            if not is_too_soon(fleet, own, (*_SOONER, 0.0)[at]):
                at = min(at + 1, len(_SOONER))
                at = bisect_left(_SOONER, True, lo=at, key=partial(is_too_soon, fleet, own))
            found[root] = (*_SOONER, 0.0)[at] * within_s
        return found

    def _works(self, training_s: Sequence[Floats]) -> Floats:
        """Return the work of trainings, arrays of their seconds; of a month at least that, without failures."""
        if not self.procurement.is_monthly:
            return training_s[0]
        jobs = self.procurement.jobs
        each = [job.runs_per_month * seconds * self.stretch for job, seconds in zip(jobs, training_s, strict=True)]
        return np.asarray(np.max(each, axis=0) if self.account.is_parted else np.sum(each, axis=0))

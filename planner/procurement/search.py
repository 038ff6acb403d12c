"""The search over fleets: which one is best, and which ones nothing beats in both time and money.

Roots of :mod:`planner.solvers.counts` are the markets, counts the machines of each offer, the oracle
the families' own searches on a cluster of at most so many machines, and the criteria those
of :mod:`planner.procurement.fleet`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as all_of
from math import inf
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from planner.cost import Floats
from planner.errors import ModelError, SpecError
from planner.procurement.fleet import Account, Fleet, Hardware, Market, hardware_of, markets_of
from planner.procurement.oracle import Foresight, Oracle, Trained
from planner.procurement.prices import Offer
from planner.procurement.question import Procurement, matches_offer
from planner.search import Search
from planner.solution import SAME, Solution, Status
from planner.solvers.counts import (
    BestCounts,
    Candidate,
    Counts,
    Question,
    Reading,
    TradeOffs,
    best_counts,
    best_trade_offs,
)

__all__ = ["Fleets", "Told"]

_Answer = TypeVar("_Answer", BestCounts, TradeOffs)

Told = Callable[[float, float, int], None]  # bound, incumbent, fleets planned

_AT_ONCE = 512  # fleets in one array of criteria: few, as it has a row for each of their offers
_MOST_KEPT = 3
_MANY = 1 << 62
_EXACT = 1 - 1e-9  # sums are rounded; a bound stays below them
_WORTH_S = 0.05  # CPU seconds of planning one fleet: looking ahead costs the half of that
_TIES = ("cost", "time", "machines")  # of fleets of equal objective, the cheaper, the faster, the smaller

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class Fleets:
    """All fleets of a question, and what is known of them; what was planned is kept from search to search.

    Attributes
    ----------
    stretch
        What training takes longer than predicted.
    looked_at
        By hardware, counts of machines, and those that were planned for them: the same, or more of which the plan needs
        no more. Shared by all questions with the same oracles, so that what one of them finds can be another's answer.
    """

    procurement: Procurement
    stretch: float = 1.0
    oracles: tuple[Oracle, ...] = ()
    offers: tuple[Offer, ...] = field(init=False)
    refused: dict[str, int] = field(init=False, default_factory=dict)
    account: Account = field(init=False)
    foresight: Foresight | None = None
    looked_at: dict[tuple[Hardware, ...], dict[tuple[Counts, Counts], None]] = field(default_factory=dict)
    _rates: Floats = field(init=False)  # trainings a second of one machine, (jobs, offers)
    _sizes: Floats = field(init=False)
    _usd_per_s: Floats = field(init=False)
    _power_w: Floats = field(init=False)
    _meant: dict[str, list[int]] = field(init=False)
    _accounts: dict[tuple[int, ...], Account] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not self.oracles:
            self.oracles = tuple(Oracle(self.procurement, job) for job in self.procurement.jobs)
        self.offers, rates = self._usable()
        self._rates = np.array(rates).T.reshape(len(self.oracles), len(self.offers))
        self.account = Account(self.procurement, self.offers, stretch=self.stretch)
        self._sizes = np.where(np.isfinite(self._rates[0]) & (self._rates[0] > 0), self._rates[0], 1.0)
        self._usd_per_s = self.account.usd_per_s()
        self._power_w = self.account.power_w()
        self._meant = {
            name: [row for row, offer in enumerate(self.offers) if matches_offer(offer, [name])]
            for name in self.procurement.asked.quotas
        }

    def _usable(self) -> tuple[tuple[Offer, ...], list[list[float]]]:
        """Return the offers whose devices can train the networks, with their ideal rates; note why others cannot.

        Raises
        ------
        SpecError
            If none can: then the question is at fault, not the offers.
        """
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
            raise first
        return tuple(kept), rates

    def asked_otherwise(self, *, procurement: Procurement | None = None, stretch: float | None = None) -> "Fleets":
        """Return the fleets of another question on the same machines: no plan has to be made again."""
        return Fleets(
            procurement=procurement or self.procurement,
            stretch=self.stretch if stretch is None else stretch,
            oracles=self.oracles,
            looked_at=self.looked_at,
        )

    def markets(self, num_types: int) -> list[Market]:
        """Return the sets of so many offers that may make a fleet."""
        return markets_of(self.procurement, self.offers, num_types)

    def best(
        self,
        markets: Sequence[Market],
        search: Search,
        *,
        objective: str | None = None,
        without: Sequence[str] = (),
        most: float = inf,
        most_calls: int = _MANY,
        told: Told | None = None,
    ) -> BestCounts:
        """Return the fleet of some markets with the least objective within the limits.

        Where the search ends without a proof, the best fleet that was looked at before, for whatever question, is the
        answer if it is better.

        Parameters
        ----------
        objective
            A criterion to be least instead of the question's objective.
        without
            Limits that do not count, by their criterion.
        most
            Only fleets whose objective is less are looked for.
        most_calls
            Fleets to plan, at most.
        """
        question = self._question(markets, (objective or "objective",), without, search)
        limits = [min(most, question.limits[0]), *question.limits[1:]]

        def tell(bound: float, incumbent: object, calls: int) -> None:
            if told is not None:
                told(bound, getattr(incumbent, "criteria", (inf,))[0], calls)

        asked = replace(question, limits=limits)
        answer = self._agreed(lambda: best_counts(asked, search, most_calls=most_calls, on_progress=tell))
        solution = answer.solution
        if solution.status in (Status.OPTIMAL, Status.INFEASIBLE) or solution.objective <= search.good_enough:
            return answer
        before = self._best_looked_at(asked, markets)
        if before is None or before.criteria[0] >= solution.objective * (1 - SAME):
            return answer
        least, bound = before.criteria[0], min(solution.bound, before.criteria[0])
        status = Status.OPTIMAL if least - bound <= SAME * least else Status.FEASIBLE
        return replace(answer, solution=Solution(status=status, objective=least, bound=bound, value=before))

    def best_looked_at(self, *, most: float = inf) -> tuple[Market, Candidate] | None:
        """Return the best of all fleets whose work was ever asked for, if it keeps the limits and is below ``most``."""
        types = range(1, self.procurement.asked.most_types + 1)
        markets = [market for num_types in types for market in self.markets(num_types)]
        if not markets:
            return None
        question = self._question(markets, ("objective",), (), Search())
        asked = replace(question, limits=[min(most, question.limits[0]), *question.limits[1:]])
        found = self._best_looked_at(asked, markets)
        return None if found is None or found.criteria[0] >= most else (markets[found.root], found)

    def _best_looked_at(self, question: Question, markets: Sequence[Market]) -> Candidate | None:
        """Return the best point of a question among the fleets whose work was ever asked for; None where none is."""
        hardware = {offer.name: hardware_of(offer) for offer in self.offers}
        points: list[tuple[int, Counts, Reading]] = []
        for root, market in enumerate(markets):
            for counts, planned in self.looked_at.get(tuple(hardware[offer.name] for offer in market.offers), ()):
                if all(count <= most for count, most in zip(counts, market.most, strict=True)):
                    points += [(root, counts, found) for found in self._found(market, counts, planned)]
        if not points:
            return None
        width = question.most.shape[1]
        rows = np.array([[*number, *[0] * (width - len(number))] for _, number, _ in points], dtype=np.int64)
        roots, work_s = np.array([root for root, *_ in points]), np.array([found.value for *_, found in points])
        criteria = question.criteria(roots, rows, work_s)
        is_kept = (criteria <= np.asarray(question.limits)).all(axis=1) & np.isfinite(criteria).all(axis=1)
        candidates = [
            Candidate(
                root=points[row][0],
                counts=points[row][1],
                criteria=tuple(criteria[row].tolist()),
                t=points[row][2].value,
                payload=points[row][2].payload,
            )
            for row in np.flatnonzero(is_kept).tolist()
        ]
        return min(candidates, key=lambda one: one.order, default=None)

    def _found(self, market: Market, counts: Counts, planned: Counts) -> Iterator[Reading]:
        """Yield what was found of the work on so many machines, if it can be done and is in time.

        ``planned``: the counts for which it was planned.
        """
        asked = self._asked(market, planned, inf)
        found = [oracle.found(part) for oracle, part, _ in asked or ()]
        trained = [one for one in found if one is not None and one.seconds < inf]
        if not trained or len(trained) < len(found) or sum(counts) < self._fewest:
            return
        fleet = Fleet(offers=market.offers, counts=counts)
        if self.procurement.is_monthly and self.is_late(fleet, [one.seconds for one in trained]):
            return
        yield self._reading(market, counts, trained)

    def promising(self, markets: Sequence[Market]) -> list[Market]:
        """Return markets in the order of the least objective that they could have."""
        question = self._question(markets, ("objective",), (), Search())
        roots = np.arange(len(markets))
        least = self._floor(["objective"], self._rows(markets), question.least, question.most)[:, 0]
        return [markets[row] for row in np.lexsort((roots, least))]

    def trade_offs(self, markets: Sequence[Market], search: Search) -> TradeOffs:
        """Return the fleets that none beats in both time and money."""
        question = self._question(markets, ("time", "cost"), (), search)
        return self._agreed(lambda: best_trade_offs(question, search))

    @property
    def num_contradictions(self) -> int:
        """How often a family's bound on more machines was beaten by its plan on fewer."""
        return sum(oracle.num_contradictions for oracle in self.oracles)

    def _agreed(self, search: Callable[[], _Answer]) -> _Answer:
        """Return what a search finds; begin anew where the oracles contradict themselves, who then know better."""
        while True:
            before = self.num_contradictions
            try:
                return search()
            except ModelError:
                if self.num_contradictions == before:
                    raise

    def trained(self, market: Market, counts: Sequence[int], search: Search, enough_s: float = inf) -> Reading:
        """Return what is known of the work of a month, or of the one training, on so many machines."""
        asked = self._asked(market, counts, enough_s)
        if asked is None:
            return Reading(value=inf, bound=inf)
        found = self._reading(market, counts, [oracle.trained(part, search, enough_s=s) for oracle, part, s in asked])
        self._look_at(market.offers, tuple(counts), found.used)
        return found

    def look_at(self, fleet: Fleet, found: Sequence[Trained]) -> None:
        """Remember that a fleet was planned, one plan a job, so that it can be the answer to another question."""
        market = Market(offers=fleet.offers, most=fleet.counts)
        self._look_at(fleet.offers, fleet.counts, self._reading(market, fleet.counts, found).used)

    def _look_at(self, offers: Sequence[Offer], counts: Counts, used: Counts | None) -> None:
        """Remember that the work of a fleet was asked for, and that of the part of it which the plan needs."""
        seen = self.looked_at.setdefault(tuple(hardware_of(offer) for offer in offers), {})
        seen[counts, counts] = None
        if used is not None:
            seen[tuple(max(count, 1) for count in used), counts] = None

    def _asked(
        self, market: Market, counts: Sequence[int], enough_s: float
    ) -> list[tuple[Oracle, Fleet, float]] | None:
        """Return who is asked for which machines, and from which time on it does not matter; None: one has none."""
        jobs, fleet = self.procurement.jobs, Fleet(offers=market.offers, counts=tuple(counts))
        parts = [self.account.part_of(fleet, job) for job in jobs]
        if not all(any(part.counts) for part in parts):
            return None
        enough_s = enough_s if len(jobs) == 1 else inf
        return [(oracle, part, enough_s) for oracle, part in zip(self.oracles, parts, strict=True)]

    def _reading(self, market: Market, counts: Sequence[int], found: Sequence[Trained]) -> Reading:
        """Return what is known of the work on so many machines from what was planned for each job."""
        jobs = self.procurement.jobs
        used = found[0].used if len(jobs) == 1 and jobs[0].share == 1 else None
        fleet = Fleet(offers=market.offers, counts=tuple(counts))
        fewest = Fleet(offers=market.offers, counts=tuple(min(count, 1) for count in counts))  # which fail least
        value = self.work_s(fleet, [one.seconds for one in found])
        bound = min(value, self.work_s(fewest, [one.bound for one in found]))
        if self._is_hopeless(market, counts, found):
            value = bound = inf
        return Reading(value=value, bound=bound, used=used, payload=tuple(found))

    def _known(self, market: Market, counts: Sequence[int], enough_s: float, search: Search) -> Reading | None:
        """Return what is known already of the work on so many machines; None where something is still to be planned."""
        asked, foresight = self._asked(market, counts, enough_s), self.foresight
        if asked is None:
            return Reading(value=inf, bound=inf)
        found = [oracle.known(part, s) for oracle, part, s in asked]
        if foresight is not None:
            found = [
                foresight.known(*one, search) if known is None else known
                for one, known in zip(asked, found, strict=True)
            ]
        known = [one for one in found if one is not None]
        return self._reading(market, counts, known) if len(known) == len(found) else None

    def work_s(self, fleet: Fleet, training_s: Sequence[float]) -> float:
        """Return what a fleet's criteria are asked for: the training, or the wall time of all runs of a month."""
        if not self.procurement.is_monthly:
            return training_s[0]
        return sum(self.account.parts_s(fleet, training_s).values()) if all(np.isfinite(training_s)) else inf

    @property
    def families(self) -> tuple[str, ...]:
        """The families that are searched for some job, each once."""
        return tuple(dict.fromkeys(family for oracle in self.oracles for family in oracle.families))

    def _is_hopeless(self, market: Market, counts: Sequence[int], found: Sequence[Trained]) -> bool:
        """Whether a job of several misses its deadline at these counts and at any fewer, which train no faster."""
        fewest = Fleet(offers=market.offers, counts=tuple(min(count, 1) for count in counts))  # and fail least
        return self.procurement.is_monthly and self.is_late(fewest, [one.bound for one in found])

    def _holds(self, market: Market, counts: Ints, search: Search) -> bool:
        """Whether there are enough machines, and no job of several is late: which it may be with more of them, too.

        For more machines fail more often. So this is no matter of the oracle, which never grows.
        """
        number = tuple(int(count) for count in counts[: len(market.offers)])
        if sum(number) < self._fewest:
            return False
        if not self.procurement.is_monthly:
            return True
        payload = self.trained(market, number, search).payload
        fleet = Fleet(offers=market.offers, counts=number)
        return payload is not None and not self.is_late(fleet, [one.seconds for one in payload])

    @property
    def _fewest(self) -> int:
        """Machines that there must be."""
        asked = self.procurement.asked.machines
        return 0 if asked is None else asked.exactly or asked.at_least or 0

    def is_late(self, fleet: Fleet, training_s: Sequence[float]) -> bool:
        """Whether a job misses its deadline, all asked for at once, the earliest deadline first; or on its own part."""
        if not all(np.isfinite(training_s)):
            return True
        jobs = self.procurement.jobs
        wall_s = [float(run.wall_s[0]) for run in self.account.runs(fleet, training_s)]
        if self.account.is_parted:
            return any(seconds > job.deadline_s for job, seconds in zip(jobs, wall_s, strict=True))
        total = 0.0
        for job, seconds in sorted(zip(jobs, wall_s, strict=True), key=lambda pair: pair[0].deadline_s):
            total += seconds
            if total > job.deadline_s:
                return True
        return False

    # -- arrays for the solver -----------------------------------------------------------------------------------

    def _question(
        self, markets: Sequence[Market], first: Sequence[str], without: Sequence[str], search: Search
    ) -> Question:
        """Return the solver's question: the criteria named, then what decides between equals, then the limits."""
        limits = {name: limit for name, limit in self._limits.items() if name not in without}
        names = list(dict.fromkeys([*first, *_TIES, *(name for name, limit in limits.items() if limit < inf)]))
        index = self._rows(markets)
        most = np.zeros(index.shape, dtype=np.int64)
        for row, market in enumerate(markets):
            most[row, : len(market.most)] = market.most
        fewest, is_monthly = self._fewest, self.procurement.is_monthly
        foresight = self._foresight(search)

        def foreseen(calls: Callable[[int], list[tuple[int, Counts, float]]]) -> None:
            """Have those planned that are likely to be asked for next."""
            if foresight is not None and self._is_large:
                foresight.begin(
                    lambda number: [
                        one
                        for root, counts, enough in calls(number)
                        for one in self._asked(markets[root], counts, enough) or ()
                    ],
                    search,
                )

        return Question(
            most=most,
            oracle=lambda root, counts, enough: self.trained(markets[root], counts, search, enough),
            criteria=lambda roots, counts, work_s: self._criteria(names, index[roots], counts, work_s),
            limits=[limits.get(name, inf) for name in names],
            floor=lambda roots, least, most: self._floor(names, index[roots], least, most),
            size=lambda roots, counts: (counts * self._sizes[index[roots]]).sum(axis=1),
            known=None
            if foresight is None
            else lambda root, counts, enough: self._known(markets[root], counts, enough, search),
            foreseen=foreseen,
            has_costly_condition=is_monthly,
            can_hold=(lambda roots, least, most: most.sum(axis=1) >= fewest) if fewest else None,
            holds=(
                lambda roots, counts: np.array(
                    [self._holds(markets[root], row, search) for root, row in zip(roots, counts, strict=True)]
                )
            )
            if fewest or is_monthly
            else None,
        )

    def _foresight(self, search: Search) -> Foresight | None:
        """Return what has fleets planned before their turn; None where nobody helps."""
        if search.pool is not None and self.foresight is None:
            before = (oracle.foresight for oracle in self.oracles if oracle.foresight is not None)
            # A changed question may have the same oracles, and what they were asked is known there.
            self.foresight = next(before, None) or Foresight(search.pool)
            for oracle in self.oracles:
                oracle.foresight = self.foresight
        return self.foresight

    @property
    def _is_large(self) -> bool:
        """Whether fleets take so long to plan that it is worth while to look ahead and ask others."""
        if self.foresight is None:
            return False
        planned_s, number = (sum(getattr(one, name) for one in self.oracles) for name in ("planned_s", "num_here"))
        is_long = planned_s >= self.foresight.pool.alone_s or self.foresight.num_begun > 0
        return is_long and planned_s >= _WORTH_S * number

    def _rows(self, markets: Sequence[Market]) -> Ints:
        """Return which of all offers the offers of markets are, a row each; 0 beyond the last."""
        rows = {offer.name: row for row, offer in enumerate(self.offers)}
        index = np.zeros((len(markets), max(len(market.offers) for market in markets)), dtype=np.int64)
        for row, market in enumerate(markets):
            index[row, : len(market.offers)] = [rows[offer.name] for offer in market.offers]
        return index

    @property
    def _limits(self) -> dict[str, float]:
        """The limits, by criterion: the account's, and every quota."""
        return {
            **self.account.limits,
            **{f"quota {name}": most for name, most in self.procurement.asked.quotas.items()},
        }

    def _criteria(self, names: Sequence[str], index: Ints, counts: Ints, work_s: Floats) -> Floats:
        """Return criteria of fleets, a row each; ``index`` says which offer each count is of."""
        parts = []
        for start in range(0, len(counts), _AT_ONCE):
            rows = slice(start, start + _AT_ONCE)
            used, local = np.unique(index[rows], return_inverse=True)
            account = self._account_of(tuple(used.tolist()))
            dense = np.zeros((len(used), len(counts[rows])))  # of the offers that these fleets have
            np.add.at(dense, (local.reshape(index[rows].shape), np.arange(dense.shape[1])[:, None]), counts[rows])
            found = account.criteria(dense, np.asarray(work_s[rows], dtype=np.float64))
            found["objective"] = account.objective(found)
            for name in self.procurement.asked.quotas:
                found[f"quota {name}"] = dense[np.isin(used, self._meant[name])].sum(axis=0)
            parts.append(np.stack([np.broadcast_to(found[name], dense.shape[1]) for name in names], axis=1))
        return np.concatenate(parts) if parts else np.zeros((0, len(names)))

    def _account_of(self, rows: tuple[int, ...]) -> Account:
        """Return the account of some of the offers; those of single markets are kept, as they are asked again."""
        found = self._accounts.get(rows)
        if found is None:
            found = replace(self.account, offers=tuple(self.offers[row] for row in rows))
            if len(rows) <= _MOST_KEPT:
                self._accounts[rows] = found
        return found

    def _floor(self, names: Sequence[str], index: Ints, least: Ints, most: Ints) -> Floats:
        """Return what no fleet of a box has less than, all devices busy all the time: ``work >= 1 / sum(n rate)``.

        Fleets are paid for, and draw power, while they train. So cost and energy are at least a ratio of two linear
        functions of the counts, and that is least in a corner of the box.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            rates = [np.where(most > 0, rates[index], 0.0) for rates in self._rates]
            least_s = [np.nan_to_num(1 / (most * rate).sum(axis=1), nan=inf, posinf=inf) for rate in rates]
            found = self._criteria(names, index, least, self._works(least_s))
            if self.account.is_parted:
                return found
            corners = [np.where(np.array(ends), most, least) for ends in all_of((False, True), repeat=most.shape[1])]
            ratios = {}
            for name, each in (("cost", self._usd_per_s[index]), ("energy", self._power_w[index])):
                times = [
                    np.min([(n * each).sum(axis=1) / (n * rate).sum(axis=1) for n in corners], axis=0) for rate in rates
                ]
                stretch = 1.0 if self.procurement.is_monthly else self.stretch
                ratios[name] = np.nan_to_num(self._works(times) * stretch, nan=0.0)
        hours = self.procurement.asked.usd_per_hour_saved or 0.0
        for column, name in enumerate(names):
            goal = self.procurement.asked.objective if name == "objective" else name
            if goal in ratios:
                found[:, column] = np.maximum(found[:, column], ratios[goal] * _EXACT)
            elif goal == "value_of_time":
                timed = self._criteria(["time"], index, least, self._works(least_s))[:, 0]
                found[:, column] = np.maximum(found[:, column], (ratios["cost"] + hours / 3600 * timed) * _EXACT)
        return found

    def _works(self, training_s: Sequence[Floats]) -> Floats:
        """Return the work of trainings, arrays of their seconds; of a month at least that, without failures."""
        if not self.procurement.is_monthly:
            return training_s[0]
        training_s = [seconds * self.stretch for seconds in training_s]
        each = [job.runs_per_month * seconds for job, seconds in zip(self.procurement.jobs, training_s, strict=True)]
        return np.asarray(np.max(each, axis=0) if self.account.is_parted else np.sum(each, axis=0))

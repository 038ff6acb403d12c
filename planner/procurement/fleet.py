"""Fleets: which offers go together, the question that their machines make of a training, and what they take and cost.

Machines train together within one region of one provider. Machines whose network is unknown train alone. All bought
machines of a fleet have one network tier.

A fleet's *work* is its training time without failures; where trainings share the machines, the wall time of all runs of
a month, failures included. From there on everything is :mod:`planner.models.failures` and :mod:`planner.models.money`,
and no criterion falls when a count or the work grows. :class:`Account` is the one place of these sums: arrays over many
fleets for the search, and every part of one fleet's for the answer and for whoever checks it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import floor, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.constraints import FLEET_LIMITS, is_within
from planner.cost import Floats
from planner.frozen import frozen
from planner.letters import visible
from planner.models.failures import Checkpoints, RunTime, rate_per_s, run_time
from planner.models.money import (
    J_PER_KWH,
    S_PER_H,
    S_PER_MONTH,
    MachinePrices,
    Rates,
    capital_usd,
    cost_parts,
    energy_j,
    peak_power_w,
    total_usd,
)
from planner.names import OF_TRANSFORMERS
from planner.procurement.prices import Offer, Term
from planner.procurement.question import Job, Procurement, ProcureSpec, is_one_of, matches_offer
from planner.question.cluster import trays_of_a_rack
from planner.units import Dimension, format_exact

_BURDENS = (  # what makes an offer worse the more it is, whatever is asked
    *("usd_per_h", "least_billed_s", "committed_s", "interruptions_per_h", "power_w"),
    *("purchase_usd", "hosting_usd_per_month"),
    *("lead_time_s", "upfront_usd"),
)
_PRICES = (  # of an offer, as the cost model has them, too
    *("usd_per_h", "billing_s", "least_billed_s", "committed_s", "is_bought"),
    *("purchase_usd", "useful_life_s", "resale_usd", "hosting_usd_per_month"),
)
CRITERIA = ("cost", "spent", "time", "energy", "power", "capital", "spending", "racks", "machines")
_ROUNDING = 1e-9
_UNKNOWN = float("nan")

Hardware = tuple[str, int, str | None, float | None, float]
Counts = tuple[int, ...]  # of machines, an offer each
Bools = NDArray[np.bool_]

# --- Which offers go together


@frozen
class Market:
    """Offers that may be combined, and how many machines of each there can be."""

    offers: tuple[Offer, ...]
    most: tuple[int, ...]


@frozen
class Fleet:
    """So many machines of each offer of a market."""

    offers: tuple[Offer, ...]
    counts: tuple[int, ...]

    @property
    def num_machines(self) -> int:
        """Machines of all offers."""
        return sum(self.counts)

    @property
    def num_devices(self) -> int:
        """Devices of all machines."""
        return sum(count * offer.devices_per_machine for offer, count in zip(self.offers, self.counts, strict=True))

    @property
    def headline(self) -> str:
        """``4 x p4d.24xlarge (spot), 1 x c5n.18xlarge``; of bought machines with the network tier."""
        parts = []
        for offer, count in zip(self.offers, self.counts, strict=True):
            terms = str(offer.term) if offer.tier is None else f"{offer.term}, {offer.tier}"
            parts.append(f"{count} x {offer.instance}" + (f" ({terms})" if offer.term is not Term.ON_DEMAND else ""))
        return ", ".join(parts)

    @property
    def sellers(self) -> str:
        """Where the machines come from: ``aws us-east-1``, each once."""
        return " and ".join(dict.fromkeys(one.seller for one in self.offers))


def hardware_of(offer: Offer) -> Hardware:
    """Return what a training sees of an offer: two offers of equal hardware train alike, whatever they cost."""
    return offer.device, offer.devices_per_machine, offer.inside, offer.network_bytes_per_s, offer.latency_s


@dataclass(slots=True)
class Ledger:
    """Every fleet that was planned, for whatever question: the one list that all answers are read from.

    The search of the answer, of other devices, of the trade-off of time and money, of changed prices and deadlines, and
    of what limits would have to be all write here. A fleet stands with its hardware and not with its prices, so that
    what one question planned is an answer to every other one that may have it. So nothing that is shown beside an
    answer can be better than it.
    """

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


def markets_of(procurement: Procurement, offers: Sequence[Offer], num_types: int) -> list[Market]:
    """Return every set of so many offers that may make a fleet.

    Two offers of equal hardware are combined only where neither is as good as the other in everything: else all
    machines may just as well be of the better one, unless there are too few of it. For the same reason fleets of one
    type have none that another offer replaces, of whatever region.
    """
    asked = procurement.asked
    machines = asked.num_machines.most
    most_of = {}
    for offer in offers:
        limits = [asked.most_devices // offer.devices_per_machine]
        limits += [] if offer.most is None else [offer.most]
        limits += [] if offer.network_bytes_per_s is not None else [1]
        limits += [] if machines is None else [machines - (num_types - 1)]
        most_of[offer.name] = min(limits)
    kept = [offer for offer in offers if most_of[offer.name] >= 1]
    kept = _without_replaced(kept) if num_types == 1 else kept
    return [
        Market(offers=chosen, most=tuple(most_of[offer.name] for offer in chosen))
        for chosen in combinations(kept, num_types)
        if _go_together(chosen)
    ]


def _without_replaced(offers: Sequence[Offer]) -> list[Offer]:
    """Return offers without those that another one replaces; the first of equal ones.

    As many machines of the other one train alike, and nothing that is limited or minimised is more. Who has a quota
    replaces none: that is what can be had of it.
    """
    kept: dict[Hardware, list[Offer]] = {}
    for offer in sorted(offers, key=lambda one: (one.usd_per_h, one.purchase_usd)):  # who replaces it came before
        rows = kept.setdefault(hardware_of(offer), [])
        if not any(_replaces(other, offer) for other in rows):
            rows.append(offer)
    names = {offer.name for rows in kept.values() for offer in rows}
    return [offer for offer in offers if offer.name in names]


def _endless_if_unknown(values: Floats) -> Floats:
    """Return what machines draw, infinite where it is not known: then it keeps no limit."""
    return np.where(np.isnan(values), inf, values)


def _go_together(offers: Sequence[Offer]) -> bool:
    """Whether machines of these offers can train together, and it is worth a thought."""
    if len(offers) == 1:
        return True
    if len({(offer.provider, offer.region) for offer in offers}) > 1:
        return False
    if any(offer.network_bytes_per_s is None for offer in offers):
        return False
    if len({offer.tier for offer in offers if offer.is_bought}) > 1:
        return False
    pairs = combinations(offers, 2)
    return not any(_replaces(offer, other) or _replaces(other, offer) for offer, other in pairs)


def _replaces(offer: Offer, other: Offer) -> bool:
    """Whether any machine of the other offer may just as well be one of this: like hardware, and nothing is worse."""
    if offer.most is not None or hardware_of(offer) != hardware_of(other) or offer.is_bought is not other.is_bought:
        return False
    if (offer.power_w is None) is not (other.power_w is None):
        return False
    if offer.wear_usd_per_s > other.wear_usd_per_s:
        return False
    granules = other.billing_s / offer.billing_s if offer.billing_s else 1.0
    return granules == round(granules) > 0 and all(
        (getattr(offer, name) or 0.0) <= (getattr(other, name) or 0.0) for name in _BURDENS
    )


# --- The question that a fleet's machines make of a training


def group_names(fleet: Fleet) -> list[str]:
    """Return how the machines of a fleet are called in the question that they make: with the term, if that is more."""
    names = [offer.instance for offer in fleet.offers]
    return names if len({*names}) == len(names) else [f"{one.instance} {one.term}" for one in fleet.offers]


def question_of(
    procurement: Procurement, question: Mapping[str, Any], fleet: Fleet, families: Sequence[str]
) -> dict[str, Any]:
    """Return a training's question with the machines of a fleet, as :func:`planner.load` reads it.

    Trays of more than one rack stand in whole racks, of which as many trays as the fleet has may be used: more of them
    then never train slower, whatever their number is divisible by. Nor do more of several kinds: layouts of a
    transformer take most of each kind unless a limit is set on machines, here that of all there are.
    """
    custom = {visible(device["name"]): device for device in procurement.resolved["procure"].get("custom_devices") or ()}
    machines = []
    for name, offer, count in zip(group_names(fleet), fleet.offers, fleet.counts, strict=True):
        group: dict[str, Any] = {
            "name": name,
            "count": count,
            "device": custom.get(offer.device, offer.device),
            "devices": offer.devices_per_machine,
            "nics": 1,  # the offer's rate is that of the machine, all its cards together
        }
        if offer.inside is not None and offer.devices_per_machine > 1:
            group["inside"] = offer.inside
        if offer.network_bytes_per_s is not None:
            group["network"] = format_exact(offer.network_bytes_per_s, Dimension.RATE)
            group["latency"] = format_exact(offer.latency_s, Dimension.TIME)
        if count:
            machines.append(group)
    limits: dict[str, Any] = {}
    for group in machines if len(machines) == 1 else ():
        trays, number = trays_of_a_rack(str(group["device"]), group["devices"]), group["count"]
        if number > trays > 1:
            group["count"] = -(-number // trays) * trays
            limits["constraints"] = {**question.get("constraints", {}), "machines": {"at_most": number}}
    if len(machines) > 1 and OF_TRANSFORMERS in families:
        most = sum(group["count"] for group in machines)
        limits["constraints"] = {**question.get("constraints", {}), "machines": {"at_most": most}}
    return {
        **question,
        **limits,
        "cluster": {"name": "fleet", "machines": machines},
        "objective": "training_time",
        "families": list(families),
    }


# --- What fleets take and cost


def prices_of(offer: Offer) -> MachinePrices:
    """Return the prices of one offer as the cost model has them, each a number."""
    power_w = _UNKNOWN if offer.power_w is None else offer.power_w
    return MachinePrices(**{name: getattr(offer, name) or 0.0 for name in _PRICES}, power_w=power_w)


def rates_of(procurement: Procurement) -> Rates:
    """Return the prices that do not depend on the machine."""
    asked = procurement.asked
    power, storage, egress = asked.electricity, asked.storage, asked.egress
    return Rates(
        electricity_usd_per_kwh=0.0 if power is None else power.usd_per_kwh,
        pue=1.0 if power is None else power.pue,
        storage_usd_per_gb_month=0.0 if storage is None else storage.usd_per_gb_month,
        egress_usd_per_gb=0.0 if egress is None else egress.usd_per_gb,
    )


def carbon_g(asked: ProcureSpec, fleet: Fleet, energy_j: float) -> float | None:
    """Return the CO2 of a run's electricity; None where no intensity is given for the region of its machines."""
    given, offer = asked.carbon_intensity, fleet.offers[0]
    if isinstance(given, dict):
        names = (offer.region, f"{offer.provider}/{offer.region}")
        given = next((each for name, each in given.items() if any(is_one_of(one, [name]) for one in names)), None)
    return None if given is None else energy_j / J_PER_KWH * given


@frozen
class FleetUsage:
    """What one fleet takes and costs: all that is limited, and its parts.

    Attributes
    ----------
    run_s
        The parts of the wall time of one run, or of a month's runs.
    wall_s, done_s
        By job: the wall time of one run of it, and by when it is done where all are asked for at once.
    money_usd
        The parts of the cost.
    criteria
        Each of :data:`CRITERIA`, and ``quota`` with its pattern: how many machines it is about.
    objective
        What is minimised.
    """

    run_s: Mapping[str, float]
    wall_s: Mapping[str, float]
    done_s: Mapping[str, float]
    money_usd: Mapping[str, float]
    criteria: Mapping[str, float]
    objective: float


@dataclass(frozen=True)
class Account:
    """The criteria of fleets of some offers. Counts have the shape (offers, fleets), work (fleets,).

    ``stretch``: what training takes longer than predicted, at the end of the error band that is planned for.
    """

    procurement: Procurement
    offers: tuple[Offer, ...]
    stretch: float = 1.0

    @cached_property
    def prices(self) -> MachinePrices:
        """The prices of the offers; of a month's jobs a commitment is paid month by month, as long as it lasts."""
        each = {name: [getattr(offer, name) or 0.0 for offer in self.offers] for name in _PRICES}
        each["power_w"] = [_UNKNOWN if offer.power_w is None else offer.power_w for offer in self.offers]
        if self.procurement.is_monthly:
            each["committed_s"] = [min(one, S_PER_MONTH) for one in each["committed_s"]]
        each["useful_life_s"] = [seconds * self.used for seconds in each["useful_life_s"]]
        each["hosting_usd_per_month"] = [usd / self.used for usd in each["hosting_usd_per_month"]]
        return MachinePrices(**{name: np.array(one, dtype=np.float64) for name, one in each.items()})

    @property
    def used(self) -> float:
        """The share of their life in which bought machines train: a run pays for what they idle between runs, too."""
        return 1.0 if self.procurement.is_monthly else self.procurement.asked.utilisation

    @cached_property
    def rates(self) -> Rates:
        """The prices that do not depend on the machine."""
        return rates_of(self.procurement)

    @cached_property
    def failures_per_h(self) -> Floats:
        """Failures and interruptions of one machine of each offer in an hour."""
        between_s = self.procurement.asked.run.mean_time_between_failures
        own = 0.0 if between_s is None else S_PER_H / between_s
        device_s = self.procurement.asked.run.device_failures_s
        of_device = 0.0 if device_s is None else S_PER_H / device_s
        return np.array(
            [own + of_device * offer.devices_per_machine + offer.interruptions_per_h for offer in self.offers]
        )

    @cached_property
    def quotas(self) -> dict[str, Bools]:
        """Which offers each quota is about, by its criterion."""
        patterns = self.procurement.asked.quotas
        return {f"quota {one}": np.array([matches_offer(offer, [one]) for offer in self.offers]) for one in patterns}

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits of the question, by criterion; infinite where there is none."""
        asked = self.procurement.asked
        given = {limit.criterion: getattr(asked, limit.key) for limit in FLEET_LIMITS}
        given["machines"] = asked.num_machines.most
        given["racks"] = None if asked.racks is None else asked.racks.number
        if self.procurement.is_monthly:
            given["time"] = S_PER_MONTH
        limits = {name: inf if given.get(name) is None else float(given[name]) for name in CRITERIA}
        return limits | {f"quota {pattern}": float(most) for pattern, most in asked.quotas.items()}

    def run(self, counts: Floats, training_s: Floats) -> RunTime:
        """Return the wall time of one run on fleets, and its parts."""
        asked = self.procurement.asked.run
        checkpoints = None
        if asked.checkpoint_s is not None or asked.checkpoint_interval is not None:
            checkpoints = Checkpoints(write_s=asked.checkpoint_s or 0.0, interval_s=asked.checkpoint_interval)
        return run_time(
            training_s * self.stretch,
            rate_per_s(counts, self.failures_per_h),
            checkpoints=checkpoints,
            restart_s=asked.restart,
            start_up_s=asked.start_up,
            evaluation_s=asked.evaluation,
        )

    def money(self, counts: Floats, wall_s: Floats) -> Mapping[str, Floats]:
        """Return the parts of the cost: of one run, or of a month."""
        asked, jobs = self.procurement.asked, self.procurement.jobs
        stored_bytes = 0.0 if asked.storage is None else asked.storage.size
        egress_bytes = 0.0 if asked.egress is None else asked.egress.size
        if not self.procurement.is_monthly:
            return cost_parts(
                counts, self.prices, wall_s, self.rates, stored_bytes=stored_bytes, egress_bytes=egress_bytes
            )
        runs_bytes = egress_bytes * sum(job.runs_per_month for job in jobs)
        parts = cost_parts(counts, self.prices, wall_s, self.rates, egress_bytes=runs_bytes)
        # What is bought ages, and data are kept, the whole month.
        month_s = np.where(np.isfinite(wall_s), S_PER_MONTH, inf)
        owned = cost_parts(counts, self.prices, month_s, self.rates, stored_bytes=stored_bytes)
        return {**parts, **{name: owned[name] for name in ("capital", "hosting", "storage")}}

    def criteria(self, counts: Floats, work_s: Floats) -> dict[str, Floats]:
        """Return every criterion of :data:`CRITERIA`, the machines of every quota, and ``objective``; shape (fleets,).

        ``cost`` holds the share of a run in what was bought, ``spent`` the whole purchase: what a budget has to pay. Of
        a month it holds the first one's, with all that reservations take at the start.
        The objective is dollars, seconds, joules, or dollars with those that time is worth.
        """
        asked = self.procurement.asked
        wall_s = work_s if self.procurement.is_monthly else self.run(counts, work_s).wall_s
        capital = capital_usd(counts, self.prices)
        with np.errstate(over="ignore"):  # beyond floating point is infinite
            parts = self.money(counts, wall_s)
            criteria = {
                "cost": total_usd(parts),
                "spent": total_usd({**parts, "capital": capital, "upfront": self.upfront_usd(counts)}),
                "time": wall_s + self.lead_s(counts),
                "energy": _endless_if_unknown(energy_j(counts, self.prices, wall_s, pue=self.rates.pue)),
                "power": _endless_if_unknown(peak_power_w(counts, self.prices, pue=self.rates.pue)),
                "capital": capital,
                "spending": self.spending_usd_per_s(counts),
                "racks": self.racks(counts),
                "machines": counts.sum(axis=0),
            }
        criteria |= {name: counts[meant].sum(axis=0) for name, meant in self.quotas.items()}
        if asked.objective == "value_of_time":
            with np.errstate(over="ignore"):
                saved_usd = (asked.usd_per_hour_saved or 0.0) / S_PER_H * criteria["time"]
                return {**criteria, "objective": np.asarray(criteria["cost"] + saved_usd)}
        return {**criteria, "objective": criteria[asked.objective]}

    def lead_s(self, counts: Floats) -> Floats:
        """Return how long it takes until all machines of fleets are there; of a month's jobs they are."""
        lead_s = np.array([offer.lead_time_s or 0.0 for offer in self.offers])
        if self.procurement.is_monthly or not lead_s.any():
            return np.zeros(counts.shape[1:])
        return np.asarray(np.max(np.where(counts > 0, lead_s[:, None], 0.0), axis=0))

    def upfront_usd(self, counts: Floats) -> Floats:
        """Return what fleets' reservations take at the start beyond a month's part of it; of one run the cost holds it.

        A month pays ``H / committed`` of it as rent, ``H`` hours of a month; the first one all of it.
        """
        if not self.procurement.is_monthly or not any(offer.upfront_usd for offer in self.offers):
            return np.zeros(counts.shape[1:])
        each = [(one.upfront_usd or 0.0) * (1 - S_PER_MONTH / max(one.committed_s, S_PER_MONTH)) for one in self.offers]
        return np.asarray((counts * np.array(each)[:, None]).sum(axis=0))

    @cached_property
    def _spending_usd_per_s(self) -> tuple[Floats, float]:
        """What one machine of each offer is paid for while it runs, and what is kept beside all of them."""
        bought = np.array([offer.is_bought for offer in self.offers])
        rent = np.array([offer.usd_per_h for offer in self.offers]) / S_PER_H
        hosting = np.array([offer.hosting_usd_per_month for offer in self.offers]) / S_PER_MONTH
        electricity = self.power_w() * self.rates.electricity_usd_per_kwh / J_PER_KWH * bought
        storage = self.procurement.asked.storage
        stored = 0.0 if storage is None else storage.size / 1e9 * self.rates.storage_usd_per_gb_month / S_PER_MONTH
        return rent + hosting + electricity, stored

    def spending_usd_per_s(self, counts: Floats) -> Floats:
        """Return what fleets are paid for while they run: rent, hosting, electricity and storage, without purchases."""
        each, stored = self._spending_usd_per_s
        return np.asarray((counts * each[:, None]).sum(axis=0) + stored)

    def racks(self, counts: Floats) -> Floats:
        """Return the racks that bought machines take, each kind its own: as many in one as its power feeds."""
        asked = self.procurement.asked.racks
        if asked is None:
            return np.zeros(counts.shape[1:])
        power_w = [offer.power_w if offer.is_bought and offer.power_w else 0.0 for offer in self.offers]
        each = np.array([max(1, floor(asked.power / watts + _ROUNDING)) if watts else 0 for watts in power_w])
        filled = np.divide(counts, each[:, None], out=np.zeros(counts.shape), where=each[:, None] > 0)
        return np.asarray(np.ceil(filled - _ROUNDING).sum(axis=0))

    def usd_per_s(self) -> Floats:
        """Return what one machine of each offer costs for every second that it is paid, at least; shape (offers,).

        A granule that is begun is paid in full, and what is bought ages a whole month: this leaves out both.
        """
        electricity = self.rates.electricity_usd_per_kwh / J_PER_KWH
        bought = np.array([offer.is_bought for offer in self.offers])
        used = np.array([offer.usd_per_h for offer in self.offers]) / S_PER_H + self.power_w() * electricity * bought
        owned = np.array([offer.owned_usd_per_s for offer in self.offers]) / self.used
        return np.asarray(used if self.procurement.is_monthly else used + owned)

    def power_w(self) -> Floats:
        """Return the power of one machine of each offer with cooling, as energy counts it, 0 where unknown."""
        return np.nan_to_num(np.asarray(self.prices.power_w, dtype=np.float64) * self.rates.pue, nan=0.0)

    # -- one fleet ---------------------------------------------------------------------------------------------------

    @property
    def is_parted(self) -> bool:
        """Whether every job has a part of the machines to itself."""
        return self.procurement.is_monthly and all(job.share < 1 for job in self.procurement.jobs)

    def part_of(self, fleet: Fleet, job: Job) -> Fleet:
        """Return the machines that a job trains on: its share of each kind, in whole machines."""
        return replace(fleet, counts=tuple(floor(count * job.share + _ROUNDING) for count in fleet.counts))

    def runs(self, fleet: Fleet, training_s: Sequence[float]) -> list[RunTime]:
        """Return the wall time of one run of each job, on the machines that are its own."""
        own = replace(self, offers=fleet.offers)
        runs = []
        for job, seconds in zip(self.procurement.jobs, training_s, strict=True):
            part = self.part_of(fleet, job) if self.is_parted else fleet
            runs.append(own.run(np.array(part.counts, dtype=np.float64)[:, None], np.array([seconds])))
        return runs

    def parts_s(self, fleet: Fleet, training_s: Sequence[float]) -> dict[str, float]:
        """Return the parts of the wall time of one run, or of a month's runs: side by side, of what takes longest."""
        each = []
        for job, run in zip(self.procurement.jobs, self.runs(fleet, training_s), strict=True):
            times = run.repeated(job.runs_per_month if self.procurement.is_monthly else 1.0)
            each.append({name: float(part[0]) for name, part in times.parts_s.items()})
        if self.is_parted:
            return max(each, key=lambda parts: sum(parts.values()))
        own = replace(self, offers=fleet.offers)
        if lead_s := float(own.lead_s(np.array(fleet.counts, dtype=np.float64)[:, None])[0]):
            return {"delivery": lead_s, **{name: sum(parts[name] for parts in each) for name in each[0]}}
        return {name: sum(parts[name] for parts in each) for name in each[0]}

    def work_s(self, fleet: Fleet, training_s: Sequence[float]) -> float:
        """Return a fleet's work: the training, or the wall time of all runs of a month."""
        if not self.procurement.is_monthly:
            return training_s[0]
        return sum(self.parts_s(fleet, training_s).values()) if all(np.isfinite(training_s)) else inf

    def done_s(self, fleet: Fleet, training_s: Sequence[float]) -> dict[str, float]:
        """Return by when each job is done, all asked for at once, the earliest deadline first; or on its own part."""
        jobs = self.procurement.jobs
        wall_s = [float(run.wall_s[0]) for run in self.runs(fleet, training_s)]
        if self.is_parted:
            return {job.name: seconds for job, seconds in zip(jobs, wall_s, strict=True)}
        total, done = 0.0, {}
        for job, seconds in sorted(zip(jobs, wall_s, strict=True), key=lambda pair: pair[0].deadline_s):
            total += seconds
            done[job.name] = total
        return done

    def is_late(self, fleet: Fleet, training_s: Sequence[float]) -> bool:
        """Whether a job misses its deadline."""
        if not all(np.isfinite(training_s)):
            return True
        done = self.done_s(fleet, training_s)
        return not all(is_within(done[job.name], job.deadline_s) for job in self.procurement.jobs)

    def usage(self, fleet: Fleet, training_s: Sequence[float]) -> FleetUsage:
        """Return what a fleet takes and costs, its jobs training so many seconds each."""
        own = replace(self, offers=fleet.offers)
        counts = np.array(fleet.counts, dtype=np.float64)[:, None]
        run_s = self.parts_s(fleet, training_s)
        criteria = own.criteria(counts, np.array([self.work_s(fleet, training_s)]))
        paid_s = criteria["time"] - own.lead_s(counts)
        names = [job.name for job in self.procurement.jobs]
        runs = self.runs(fleet, training_s)
        return FleetUsage(
            run_s=run_s,
            wall_s={name: float(run.wall_s[0]) for name, run in zip(names, runs, strict=True)},
            done_s=self.done_s(fleet, training_s),
            money_usd={name: float(part[0]) for name, part in own.money(counts, paid_s).items()},
            criteria={name: float(value[0]) for name, value in criteria.items()},
            objective=float(criteria["objective"][0]),
        )

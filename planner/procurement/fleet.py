"""Fleets: which offers go together, and the question that a fleet's machines make of a training.

Machines train together within one region of one provider. Machines whose network is unknown train alone. All bought
machines of a fleet have one network tier.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import floor, inf
from typing import Any

import numpy as np

from planner.constraints import FLEET_LIMITS, read_range
from planner.cost import Floats
from planner.letters import visible
from planner.models.failures import Checkpoints, RunTime, rate_per_s, run_time
from planner.models.money import (
    H_PER_MONTH,
    MachinePrices,
    Rates,
    capital_usd,
    cost_parts,
    energy_j,
    peak_power_w,
    total_usd,
)
from planner.procurement.prices import Offer, Term
from planner.procurement.question import Job, Procurement
from planner.units import Dimension, format_exact

_BURDENS = (  # what makes an offer worse the more it is, whatever is asked
    *("usd_per_h", "least_billed_s", "committed_s", "interruptions_per_h", "power_w"),
    *("purchase_usd", "hosting_usd_per_month"),
)

Hardware = tuple[str, int, str | None, float | None, float]


_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Offers that may be combined, and how many machines of each there can be."""

    offers: tuple[Offer, ...]
    most: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
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
        parts = [
            f"{count} x {offer.instance}" + (f" ({_terms(offer)})" if offer.term != "on-demand" else "")
            for offer, count in zip(self.offers, self.counts, strict=True)
        ]
        return ", ".join(parts)


def _terms(offer: Offer) -> str:
    """Return the term of an offer, with its network tier."""
    return str(offer.term) if offer.tier is None else f"{offer.term}, {offer.tier}"


def hardware_of(offer: Offer) -> Hardware:
    """Return what a training sees of an offer: two offers of equal hardware train alike, whatever they cost."""
    return offer.device, offer.devices_per_machine, offer.inside, offer.network_bytes_per_s, offer.latency_s


def markets_of(procurement: Procurement, offers: Sequence[Offer], num_types: int) -> list[Market]:
    """Return every set of so many offers that may make a fleet.

    Two offers of equal hardware are combined only where neither is as good as the other in everything: else all
    machines may just as well be of the better one, unless there are too few of it.
    """
    found = []
    for chosen in combinations(offers, num_types):
        if _go_together(chosen):
            most = tuple(_most(procurement, offer, num_types) for offer in chosen)
            if min(most) >= 1:
                found.append(Market(offers=chosen, most=most))
    return found


def _go_together(offers: Sequence[Offer]) -> bool:
    """Whether machines of these offers can train together, and it is worth a thought."""
    if len(offers) == 1:
        return True
    places = {(offer.provider, offer.region) for offer in offers}
    if len(places) > 1 or any(offer.network_bytes_per_s is None for offer in offers):
        return False
    if len({offer.tier for offer in offers if offer.term is Term.BOUGHT}) > 1:
        return False
    return not any(_replaces(one, other) or _replaces(other, one) for one, other in combinations(offers, 2))


def _replaces(one: Offer, other: Offer) -> bool:
    """Whether any machine of the other offer may just as well be one of this: like hardware, and nothing is worse."""
    if one.most is not None or hardware_of(one) != hardware_of(other):
        return False
    if (one.term is Term.BOUGHT) is not (other.term is Term.BOUGHT) or (one.power_w is None) is not (
        other.power_w is None
    ):
        return False
    if one.purchase_usd / one.useful_life_s > other.purchase_usd / other.useful_life_s:
        return False
    granules = other.billing_s / one.billing_s if one.billing_s else 1.0
    return granules == round(granules) > 0 and all(
        getattr(one, name) <= getattr(other, name) for name in _BURDENS if getattr(one, name) is not None
    )


def _most(procurement: Procurement, offer: Offer, num_types: int) -> int:
    """Return how many machines of an offer there can be."""
    asked = procurement.asked
    limits = [asked.most_devices // offer.devices_per_machine]
    if offer.most is not None:
        limits.append(offer.most)
    if offer.network_bytes_per_s is None:
        limits.append(1)
    if asked.machines is not None:
        most = asked.machines.exactly or asked.machines.at_most
        limits += [] if most is None else [most - (num_types - 1)]
    return min(limits)


def question_of(
    procurement: Procurement, question: Mapping[str, Any], fleet: Fleet, families: Sequence[str]
) -> dict[str, Any]:
    """Return a training's question with the machines of a fleet, as :func:`planner.load` reads it."""
    machines = [
        _machines(procurement, offer, count) for offer, count in zip(fleet.offers, fleet.counts, strict=True) if count
    ]
    names = [machine["name"] for machine in machines]
    if len(set(names)) < len(names):  # one instance on two terms
        for machine, offer in zip(machines, fleet.offers, strict=True):
            machine["name"] = f"{offer.instance} {offer.term}"
    return {
        **question,
        "cluster": {"name": "fleet", "machines": machines},
        "objective": "training_time",
        "families": list(families),
    }


def _machines(procurement: Procurement, offer: Offer, count: int) -> dict[str, Any]:
    """Return a group of machines, as a spec has it."""
    custom = {visible(device["name"]): device for device in procurement.resolved["procure"].get("custom_devices") or ()}
    found: dict[str, Any] = {
        "name": offer.instance,
        "count": count,
        "device": custom.get(offer.device, offer.device),
        "devices": offer.devices_per_machine,
        "nics": 1,  # the offer's rate is that of the machine, all its cards together
    }
    if offer.inside is not None and offer.devices_per_machine > 1:
        found["inside"] = offer.inside
    if offer.network_bytes_per_s is not None:
        found["network"] = format_exact(offer.network_bytes_per_s, Dimension.RATE)
        found["latency"] = format_exact(offer.latency_s, Dimension.TIME)
    return found


# --- What fleets take and cost: the criteria of the search, for many fleets at once, and each part of them for one
# A fleet's work ``t`` is its training time without failures; where trainings share the machines, the wall time of all
# runs of a month, failures included. From there on everything is :mod:`planner.models.failures` and
# :mod:`planner.models.money`, and nothing falls when a count or ``t`` grows.

CRITERIA = ("cost", "spent", "time", "energy", "power", "capital", "machines")
S_PER_MONTH = H_PER_MONTH * 3600.0
_UNKNOWN = float("nan")
_J_PER_KWH = 3.6e6


def prices_of(offers: Sequence[Offer]) -> MachinePrices:
    """Return the prices of some offers, as the cost model has them."""
    return MachinePrices(
        usd_per_h=[offer.usd_per_h for offer in offers],
        billing_s=[offer.billing_s for offer in offers],
        least_billed_s=[offer.least_billed_s for offer in offers],
        committed_s=[offer.committed_s for offer in offers],
        is_bought=[offer.term is Term.BOUGHT for offer in offers],
        purchase_usd=[offer.purchase_usd for offer in offers],
        useful_life_s=[offer.useful_life_s for offer in offers],
        hosting_usd_per_month=[offer.hosting_usd_per_month for offer in offers],
        power_w=[_UNKNOWN if offer.power_w is None else offer.power_w for offer in offers],
    )


def price_of(offer: Offer) -> MachinePrices:
    """Return the price of one offer, each figure a number."""
    return MachinePrices(
        usd_per_h=offer.usd_per_h,
        committed_s=offer.committed_s,
        is_bought=offer.term is Term.BOUGHT,
        purchase_usd=offer.purchase_usd,
        useful_life_s=offer.useful_life_s,
        hosting_usd_per_month=offer.hosting_usd_per_month,
        power_w=_UNKNOWN if offer.power_w is None else offer.power_w,
    )


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


@dataclass(frozen=True)
class Account:
    """The criteria of fleets of some offers. Counts have the shape (offers, fleets), work (fleets,).

    ``stretch``: what training takes longer than predicted, at
    the end of the error band that is planned for.
    """

    procurement: Procurement
    offers: tuple[Offer, ...]
    stretch: float = 1.0

    @property
    def num_runs(self) -> float:
        """Trainings: 1, or those of a month."""
        return sum(job.runs_per_month for job in self.procurement.jobs) if self.procurement.is_monthly else 1.0

    @cached_property
    def prices(self) -> MachinePrices:
        """The prices of the offers."""
        return prices_of(self.offers)

    @cached_property
    def rates(self) -> Rates:
        """The prices that do not depend on the machine."""
        return rates_of(self.procurement)

    @cached_property
    def _failures_per_h(self) -> Floats:
        """Failures and interruptions of one machine of each offer in an hour."""
        between_s = self.procurement.asked.run.mean_time_between_failures
        own = 0.0 if between_s is None else 3600 / between_s
        return np.array([own + offer.interruptions_per_h for offer in self.offers])

    def run(self, counts: Floats, work_s: Floats) -> RunTime:
        """Return the wall time of one run on fleets, and its parts."""
        asked = self.procurement.asked.run
        checkpoints = None
        if asked.checkpoint is not None or asked.checkpoint_interval is not None:
            checkpoints = Checkpoints(write_s=asked.checkpoint or 0.0, interval_s=asked.checkpoint_interval)
        return run_time(
            work_s * self.stretch,
            rate_per_s(counts, self._failures_per_h),
            checkpoints=checkpoints,
            restart_s=asked.restart,
            start_up_s=asked.start_up,
            evaluation_s=asked.evaluation,
        )

    @property
    def is_parted(self) -> bool:
        """Whether every job has a part of the machines to itself."""
        return self.procurement.is_monthly and all(job.share < 1 for job in self.procurement.jobs)

    def part_of(self, fleet: Fleet, job: Job) -> Fleet:
        """Return the machines that a job trains on: its share of each kind, in whole machines."""
        return Fleet(offers=fleet.offers, counts=tuple(floor(count * job.share + _ROUNDING) for count in fleet.counts))

    def runs(self, fleet: Fleet, training_s: Sequence[float]) -> list[RunTime]:
        """Return the wall time of one run of each job, on the machines that are its own."""
        fleets = [self.part_of(fleet, job) if self.is_parted else fleet for job in self.procurement.jobs]
        return [
            self.run(fleet_counts(part, self.offers), np.array([seconds]))
            for part, seconds in zip(fleets, training_s, strict=True)
        ]

    def parts_s(self, fleet: Fleet, training_s: Sequence[float]) -> dict[str, float]:
        """Return the parts of the wall time of one run, or of a month's runs: side by side, of what takes longest."""
        numbers = [job.runs_per_month if self.procurement.is_monthly else 1.0 for job in self.procurement.jobs]
        each = [
            {name: float(part[0]) for name, part in run.repeated(number).parts_s.items()}
            for number, run in zip(numbers, self.runs(fleet, training_s), strict=True)
        ]
        if self.is_parted:
            return max(each, key=lambda parts: sum(parts.values()))
        return {name: sum(parts[name] for parts in each) for name in each[0]}

    def money(self, counts: Floats, wall_s: Floats) -> Mapping[str, Floats]:
        """Return the parts of the cost: of one run, or of a month."""
        asked = self.procurement.asked
        paid_s = np.full_like(wall_s, S_PER_MONTH) if self.procurement.is_monthly else wall_s
        parts = dict(
            cost_parts(
                counts,
                self.prices,
                wall_s,
                self.rates,
                stored_bytes=0.0 if asked.storage is None else asked.storage.size,
                egress_bytes=0.0 if asked.egress is None else asked.egress.size * self.num_runs,
            )
        )
        if self.procurement.is_monthly:  # what is bought ages, and data are kept, the whole month
            owned = cost_parts(
                counts,
                self.prices,
                np.where(np.isfinite(wall_s), paid_s, inf),
                self.rates,
                stored_bytes=0.0 if asked.storage is None else asked.storage.size,
            )
            parts |= {name: owned[name] for name in ("capital", "hosting", "storage")}
        return parts

    def criteria(self, counts: Floats, work_s: Floats) -> dict[str, Floats]:
        """Return every criterion of :data:`CRITERIA`, of shape (fleets,).

        ``cost`` holds the share of a run in what was bought, ``spent`` the whole purchase: what a budget has to pay.
        """
        wall_s = work_s if self.procurement.is_monthly else self.run(counts, work_s).wall_s
        capital = capital_usd(counts, self.prices)
        with np.errstate(over="ignore"):  # beyond floating point is infinite
            parts = self.money(counts, wall_s)
            spent = total_usd({**parts, "capital": capital})
            used_j = energy_j(counts, self.prices, wall_s, pue=self.rates.pue)
            power_w = peak_power_w(counts, self.prices, pue=self.rates.pue)
        return {
            "cost": total_usd(parts),
            "spent": spent,
            "time": wall_s,
            "energy": np.nan_to_num(used_j, nan=inf, posinf=inf),
            "power": np.nan_to_num(power_w, nan=inf, posinf=inf),
            "capital": capital,
            "machines": counts.sum(axis=0),
        }

    def objective(self, criteria: Mapping[str, Floats]) -> Floats:
        """Return what is minimised: dollars, seconds, joules, or dollars with those that time is worth."""
        asked = self.procurement.asked
        if asked.objective == "value_of_time":
            return np.asarray(criteria["cost"] + (asked.usd_per_hour_saved or 0.0) / 3600 * criteria["time"])
        return criteria[asked.objective]

    @cached_property
    def limits(self) -> dict[str, float]:
        """The limits of the question, by criterion; infinite where there is none."""
        asked = self.procurement.asked
        given = {one.criterion: getattr(asked, one.key) for one in FLEET_LIMITS}
        given["machines"] = read_range(None if asked.machines is None else asked.machines.model_dump()).most
        if self.procurement.is_monthly:
            given["time"] = S_PER_MONTH
        return {name: inf if given.get(name) is None else float(given[name]) for name in CRITERIA}

    def usd_per_s(self) -> Floats:
        """Return what one machine of each offer costs for every second that it is paid, at least; shape (offers,).

        A granule that is begun is paid in full, and what is bought ages a whole month: this leaves out both.
        """
        rent = np.asarray(self.prices.usd_per_h) / 3600
        used = self.power_w() * self.rates.electricity_usd_per_kwh / _J_PER_KWH * np.asarray(self.prices.is_bought)
        if self.procurement.is_monthly:
            return np.asarray(rent + used)
        ages = np.asarray(self.prices.purchase_usd) / np.asarray(self.prices.useful_life_s)
        return np.asarray(rent + used + ages + np.asarray(self.prices.hosting_usd_per_month) / S_PER_MONTH)

    def power_w(self) -> Floats:
        """Return the power of one machine of each offer with cooling, as energy counts it, 0 where unknown."""
        return np.nan_to_num(np.asarray(self.prices.power_w, dtype=np.float64) * self.rates.pue, nan=0.0)


def fleet_counts(fleet: Fleet, offers: Sequence[Offer]) -> Floats:
    """Return a fleet's counts of all offers, of shape (offers, 1)."""
    index = {offer.name: row for row, offer in enumerate(offers)}
    counts = np.zeros((len(offers), 1))
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        counts[index[offer.name], 0] += count
    return counts

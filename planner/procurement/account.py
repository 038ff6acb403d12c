"""What fleets take and cost: the criteria of the search, for many fleets at once, and each part of them for one.

A fleet's work ``t`` is its training time without failures; where trainings share the machines, the wall time of all
runs of a month, failures included. From there on everything is :mod:`planner.models.failures` and
:mod:`planner.models.money`, and nothing falls when a count or ``t`` grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from planner.cost import Floats
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
from planner.procurement.fleet import Fleet
from planner.procurement.offer import Offer, Term
from planner.procurement.question import Procurement

__all__ = ["CRITERIA", "S_PER_MONTH", "Account", "fleet_counts", "price_of", "prices_of", "rates_of"]

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
        machines = None if asked.machines is None else asked.machines.exactly or asked.machines.at_most
        time_s = S_PER_MONTH if self.procurement.is_monthly else asked.deadline
        given = {
            "spent": asked.budget,
            "time": time_s,
            "power": asked.power,
            "capital": asked.capital,
            "machines": machines,
        }
        return {name: inf if given.get(name) is None else float(given[name] or 0.0) for name in CRITERIA}

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

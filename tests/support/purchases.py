"""Questions of a purchase on small price lists, and a referee that tries every fleet with its own plain sums."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from itertools import combinations, product
from math import ceil, exp, expm1, inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from planner.cost import Floats
from planner.families.answer import CountBounds
from planner.procurement.answer import Procured
from planner.procurement.fleet import Fleet
from planner.procurement.oracle import Oracle, Trained
from planner.procurement.prices import Offer
from planner.procurement.procure import procure
from planner.procurement.question import Procurement, load_procurement
from planner.search import Search

TODAY = date(2026, 11, 21)
DNN = {"zoo": "alexnet", "global_batch": 256, "epochs": 1, "dataset_samples": 100_000}
COLUMNS = (
    *("provider", "instance", "region", "term", "device", "devices", "inside", "usd_per_h", "billing_s"),
    "network_gbit_per_s",
    *("least_billed_s", "interruptions_per_h", "purchase_usd", "useful_life_years", "hosting_usd_per_month", "power_w"),
    *("most", "resale_usd", "lead_time_days", "committed_h", "upfront_usd", "date", "source"),
)
MONTH_S = 730 * 3600.0

Row = Mapping[str, Any]
Times = Callable[[Fleet], float]  # training time, never growing with a count


def row(instance: str, **changed: Any) -> dict[str, Any]:
    plain = {
        "provider": "acme",
        "instance": instance,
        "region": "east",
        "term": "on-demand",
        "device": "t4",
        "devices": 1,
        "network_gbit_per_s": 25,
        "usd_per_h": 1.0,
        "date": "2026-11-01",
        "source": "made up",
    }
    found = {**plain, **changed}
    if found["term"] == "bought":
        found.pop("usd_per_h")
    return found


def write_list(path: Path, rows: Sequence[Row]) -> str:
    lines = [",".join(COLUMNS), *(",".join(str(one.get(name, "")) for name in COLUMNS) for one in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def asked(path: Path, rows: Sequence[Row], *, dnn: Mapping[str, Any] | None = DNN, **block: Any) -> dict[str, Any]:
    """Return a question on a price list of these rows."""
    question: dict[str, Any] = {"procure": {"prices": write_list(path, rows), **block}, "families": ["all_reduce"]}
    return question if dnn is None else {"dnn": dict(dnn), **question}


def loaded(question: Mapping[str, Any]) -> Procurement:
    """Return a question, read."""
    return load_procurement(question, today=TODAY)


def answered(procurement: Procurement, *, search: Search | None = None, **wanted: Any) -> Procured:
    """Return the answer where times are stubbed: no plan is made once more."""
    unplanned: Any = SimpleNamespace(objective=inf)
    return procure(procurement, search or Search(), lambda problem, before: unplanned, **wanted)


@dataclass(frozen=True)
class Machine:
    """How fast one machine with a device trains, how many of it are of use, and what it holds."""

    rate: float
    useful: int = 99
    room: float = 1.0


@dataclass(frozen=True)
class MadeUpTimes:
    """Training times that never grow with a count: the best part of a fleet, of which mixes lose a share.

    ``serial_s`` is not shared, ``need`` must find room, ``loss`` is that of every further type.
    """

    machines: Mapping[str, Machine]
    work: float = 3600.0
    serial_s: float = 0.0
    need: float = 0.0
    loss: float = 0.0

    def __call__(self, fleet: Fleet) -> float:
        """Return the least time of any part of the fleet."""
        counts: dict[str, int] = {}
        for offer, count in zip(fleet.offers, fleet.counts, strict=True):
            counts[offer.device] = counts.get(offer.device, 0) + count
        return min(
            self._time_s({name: counts[name] for name in names})
            for number in range(1, len(counts) + 1)
            for names in combinations(counts, number)
        )

    def _time_s(self, counts: Mapping[str, int]) -> float:
        used = {name: min(count, self.machines[name].useful) for name, count in counts.items()}
        if sum(self.machines[name].room * count for name, count in counts.items()) < self.need or not sum(
            used.values()
        ):
            return inf
        rate = sum(self.machines[name].rate * count for name, count in used.items())
        return self.serial_s + self.work / rate * (1 + self.loss) ** (len(counts) - 1)


def stub(
    monkeypatch: Any, times: Times | Mapping[str, Times], ideal: Callable[[Offer], float], slack: float = 0
) -> None:
    """Let oracles answer with made-up times, which they prove but for a share ``slack``."""

    def planned(self: Oracle, fleet: Fleet, search: Search, enough_s: float) -> Trained:
        self.num_planned += 1
        seconds = (times[self.job.name] if isinstance(times, Mapping) else times)(fleet)
        return Trained(seconds=seconds, bound=seconds * (1 - slack) if seconds < inf else inf, used=fleet.counts)

    def by_count(self: Oracle, offer: Offer, weight_s: Floats, limit_s: Floats, search: Search) -> CountBounds:
        own = times[self.job.name] if isinstance(times, Mapping) else times
        taken_s = [own(Fleet(offers=(offer,), counts=(number,))) for number in range(1, len(limit_s) + 1)]
        with np.errstate(divide="ignore", invalid="ignore"):
            is_below = (weight_s > 0) & (np.array(taken_s) < limit_s)
            shares = np.nan_to_num(np.where(is_below, np.array(taken_s) / weight_s, inf), nan=inf, posinf=inf)
            least_s = np.minimum(min(float(shares.min()), 1.0) * weight_s, limit_s)
            bounds_s = np.nan_to_num((1 - slack) * least_s, nan=0.0, posinf=inf)
        named = int(shares.argmin()) + 1 if shares.min() < 1 else None
        return CountBounds(bounds_s=bounds_s, num_machines=named)

    monkeypatch.setattr(Oracle, "_planned", planned)
    monkeypatch.setattr(Oracle, "by_count", by_count)
    monkeypatch.setattr(Oracle, "ideal_rate", lambda self, offer: ideal(offer))


# -- the referee -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bill:
    """A fleet's sums."""

    fleet: tuple[tuple[str, int], ...]
    time_s: float
    cost_usd: float
    spent_usd: float
    capital_usd: float
    energy_j: float
    power_w: float
    objective: float
    parts_usd: Mapping[str, float]
    spending_usd_per_s: float
    racks: int


def every_fleet(procurement: Procurement) -> Iterator[Fleet]:
    """Yield every fleet that can be made: of one region, within the numbers of machines."""
    block = procurement.asked
    for number in range(1, block.most_types + 1):
        for offers in combinations(procurement.offers, number):
            if len({(offer.provider, offer.region) for offer in offers}) > 1:
                continue
            if number > 1 and any(offer.network_bytes_per_s is None for offer in offers):
                continue
            sides = [range(1, _most(offer, block) + 1) for offer in offers]
            for counts in product(*sides):
                fleet = Fleet(offers=offers, counts=counts)
                if _is_allowed(fleet, block):
                    yield fleet


def _most(offer: Offer, block: Any) -> int:
    most = block.most_devices // offer.devices_per_machine
    if block.machines is not None:
        most = min(most, block.machines.exactly or block.machines.at_most or most)
    most = most if offer.most is None else min(most, offer.most)
    return int(most if offer.network_bytes_per_s is not None else min(most, 1))


def _is_allowed(fleet: Fleet, block: Any) -> bool:
    """Whether the numbers of machines and the quotas hold."""
    pairs = list(zip(fleet.offers, fleet.counts, strict=True))
    for pattern, most in block.quotas.items():
        if sum(count for offer, count in pairs if _is_meant(offer, pattern)) > most:
            return False
    number, machines = sum(fleet.counts), block.machines
    if machines is None:
        return True
    if machines.exactly is not None:
        return bool(number == machines.exactly)
    return bool((machines.at_least or 0) <= number <= (machines.at_most or inf))


def _is_meant(offer: Offer, pattern: str) -> bool:
    names = (offer.name, offer.instance, f"{offer.provider}/{offer.instance}", offer.device)
    return any(fnmatchcase(name, pattern) for name in names)


def wall_time_s(training_s: float, failures_per_h: float, run: Any) -> float:
    """Return Daly's expected wall time, a given interval or none; infinite beyond floating point."""
    try:
        return inf if training_s == inf else _wall_time_s(training_s, failures_per_h, run)
    except OverflowError:
        return inf


def _wall_time_s(training_s: float, failures_per_h: float, run: Any) -> float:
    rate, work = failures_per_h / 3600, training_s + run.evaluation
    interval = run.checkpoint_interval
    write = 0.0 if interval is None else run.checkpoint
    segment = work if interval is None else min(interval, work)
    share = 0.0 if interval is None else segment / interval
    num_segments = work / segment if segment else 0.0
    start_s = expm1(rate * run.start_up) / rate if rate else run.start_up
    alive = segment + write * share
    work_s = num_segments * (exp(rate * run.restart) * expm1(rate * alive) / rate if rate else alive)
    return float(start_s + work_s)


def bill_of(procurement: Procurement, fleet: Fleet, training_s: float, stretch: float = 1.0) -> Bill:
    """Return the sums of one run on a fleet, term by term."""
    block, pairs = procurement.asked, list(zip(fleet.offers, fleet.counts, strict=True))
    own = 0.0 if block.run.mean_time_between_failures is None else 3600 / block.run.mean_time_between_failures
    failures = sum(count * (own + offer.interruptions_per_h) for offer, count in pairs)
    wall_s = wall_time_s(training_s * stretch, failures, block.run)
    price = 0.0 if block.electricity is None else block.electricity.usd_per_kwh
    pue = 1.0 if block.electricity is None else block.electricity.pue
    parts = dict.fromkeys(("rent", "reserved", "capital", "hosting", "electricity", "storage", "egress"), 0.0)
    for offer, count in pairs:
        if wall_s == inf:
            break
        if offer.term == "bought":
            worn_usd = offer.purchase_usd - (offer.resale_usd or 0.0)
            parts["capital"] += count * worn_usd * wall_s / offer.useful_life_s / block.utilisation
            parts["hosting"] += count * offer.hosting_usd_per_month * wall_s / MONTH_S / block.utilisation
            parts["electricity"] += count * (offer.power_w or 0.0) / 1000 * wall_s / 3600 * pue * price
        else:
            granules = ceil(wall_s / offer.billing_s * (1 - 1e-12)) if offer.billing_s else 0
            billed_s = granules * offer.billing_s if offer.billing_s else wall_s
            paid_s = max(billed_s, offer.least_billed_s, offer.committed_s)
            parts["reserved" if offer.committed_s else "rent"] += count * offer.usd_per_h / 3600 * paid_s
    if block.storage is not None:
        parts["storage"] = block.storage.size / 1e9 * block.storage.usd_per_gb_month * wall_s / MONTH_S
    if block.egress is not None:
        parts["egress"] = block.egress.size / 1e9 * block.egress.usd_per_gb
    cost = sum(parts.values()) if wall_s < inf else inf
    capital = sum(count * offer.purchase_usd for offer, count in pairs if offer.term == "bought")
    power = pue * sum(count * (inf if offer.power_w is None else offer.power_w) for offer, count in pairs)
    energy = power * wall_s
    time_s = wall_s + max(offer.lead_time_s or 0.0 for offer in fleet.offers)
    hours = (block.usd_per_hour_saved or 0.0) * time_s / 3600
    objectives = {"cost": cost, "time": time_s, "energy": energy, "value_of_time": cost + hours}
    return Bill(
        fleet=tuple((offer.name, count) for offer, count in pairs),
        time_s=time_s,
        cost_usd=cost,
        spent_usd=cost - parts["capital"] + capital,
        capital_usd=capital,
        energy_j=energy,
        power_w=power,
        objective=objectives[block.objective],
        parts_usd=parts,
        spending_usd_per_s=spending_usd_per_s(procurement, fleet),
        racks=racks_of(fleet, inf if block.racks is None else block.racks.power),
    )


def racks_of(fleet: Fleet, power_w: float) -> int:
    """Return the racks of bought machines, each kind its own."""
    racks = 0
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        if offer.term == "bought" and offer.power_w is not None and power_w < inf:
            racks += ceil(count / (power_w // offer.power_w))
    return racks


def spending_usd_per_s(procurement: Procurement, fleet: Fleet) -> float:
    """Return what is paid for a second while a fleet runs: rent, hosting, electricity and storage."""
    power, storage = procurement.asked.electricity, procurement.asked.storage
    usd = 0.0 if storage is None else storage.size / 1e9 * storage.usd_per_gb_month / MONTH_S
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        usd += count * (offer.usd_per_h / 3600 + offer.hosting_usd_per_month / MONTH_S)
        if offer.term == "bought" and power is not None and offer.power_w is not None:
            usd += count * offer.power_w / 1000 * power.pue * power.usd_per_kwh / 3600
    return usd


def keeps(procurement: Procurement, bill: Bill) -> bool:
    """Whether a fleet can train, and keeps all limits."""
    block = procurement.asked
    pairs = (
        (bill.time_s, block.deadline),
        (bill.spent_usd, block.budget),
        (bill.capital_usd, block.capital),
        (bill.power_w, block.power),
        (bill.spending_usd_per_s, block.budget_rate),
        (bill.racks, None if block.racks is None else block.racks.number),
    )
    return bill.time_s < inf and all(limit is None or value <= limit * (1 + 1e-12) for value, limit in pairs)


def all_bills(procurement: Procurement, times: Times, stretch: float = 1.0) -> list[Bill]:
    """Return the sums of every fleet that keeps all limits."""
    bills = [bill_of(procurement, fleet, times(fleet), stretch) for fleet in every_fleet(procurement)]
    return [bill for bill in bills if keeps(procurement, bill)]


def pareto_of(bills: Sequence[Bill]) -> list[tuple[float, float]]:
    """Return the times and costs that no other fleet beats in both."""
    points = sorted({(bill.time_s, bill.cost_usd) for bill in bills})
    found: list[tuple[float, float]] = []
    for time_s, cost in points:
        if found and time_s <= found[-1][0] * (1 + 1e-9):  # as fast, but for rounding
            found[-1] = found[-1][0], min(cost, found[-1][1])
        elif not found or cost < found[-1][1] * (1 - 1e-9):
            found.append((time_s, cost))
    return found

"""What a fleet of a document takes and costs, in plain loops: a second opinion on the product's own account.

Written from docs/money.md alone; nothing of :mod:`planner.models` is used. A machine here is a row of a fleet, as
``planner.procurement/1`` has it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.procurement.question import ProcureSpec

__all__ = ["S_PER_MONTH", "Bill", "bill_of", "done_by_s", "job_parts_s"]

S_PER_MONTH = 730 * 3600.0
_GB, _J_PER_KWH = 1e9, 3.6e6
_ROUNDING = 1e-9
_NUM_HALVINGS = 200
_SMALL, _LARGE = 1e-5, 700.0  # exponents: below, digits are lost; above, e to it is beyond floating point

Machines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Seconds, dollars, joules and watts of a fleet's work; energy and power are None where a power is unknown."""

    run_s: Mapping[str, float]
    money_usd: Mapping[str, float]
    energy_j: float | None
    power_w: float | None
    capital_usd: float
    ahead_usd: float  # that reservations take at the start for later months
    num_machines: int

    @property
    def wall_s(self) -> float:
        return sum(self.run_s.values())

    @property
    def cost_usd(self) -> float:
        return sum(self.money_usd.values())

    @property
    def spent_usd(self) -> float:
        """What is to be paid in all: the whole purchase instead of the run's share in it; of a month the first one."""
        return self.cost_usd - self.money_usd["capital"] + self.capital_usd + self.ahead_usd

    def value_of(self, asked: ProcureSpec) -> float | None:
        if asked.objective == "value_of_time":
            return self.cost_usd + (asked.usd_per_hour_saved or 0.0) * self.wall_s / 3600
        return {"cost": self.cost_usd, "time": self.wall_s, "energy": self.energy_j}[asked.objective]


def run_parts_s(asked: ProcureSpec, fleet: Machines, training_s: float) -> dict[str, float]:
    """Return the parts of the expected wall time of one run."""
    run = asked.run
    own = 0.0 if run.mean_time_between_failures is None else 1 / run.mean_time_between_failures
    given = run.mean_time_between_failures_of_device
    between_s = 54 * 24 * 3600 * 16384 / 419 if given == "llama3" else given  # Llama 3: 419 in 54 days on 16,384 GPUs
    of_device = 0.0 if between_s is None else 1 / between_s
    rate = sum(
        row["count"]
        * (own + row.get("devices_per_machine", 1) * of_device + row.get("interruptions_per_h", 0.0) / 3600)
        for row in fleet
    )
    work = training_s + run.evaluation
    written, lost = _overheads_s(asked, work, rate)
    lost += run.start_up * _excess(rate * run.start_up)
    parts = {"start_up": run.start_up, "training": training_s, "evaluation": run.evaluation}
    return {**parts, "checkpoints": written, "failures": lost}


def job_parts_s(asked: ProcureSpec, fleet: Machines, training_s: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the parts of one run of each job: on all machines, or on its part of each kind, in whole machines."""
    if asked.jobs is None:
        return {name: run_parts_s(asked, fleet, seconds) for name, seconds in training_s.items()}
    is_parted = all(job.share < 1 for job in asked.jobs)
    found = {}
    for job in asked.jobs:
        share = job.share if is_parted else 1.0
        part = [{**row, "count": math.floor(row["count"] * share + _ROUNDING)} for row in fleet]
        found[job.name] = run_parts_s(asked, part, training_s[job.name])
    return found


def _parts_s(asked: ProcureSpec, fleet: Machines, training_s: Mapping[str, float]) -> dict[str, float]:
    """Return the parts of one run, or of all runs of a month; of jobs side by side those of the longest."""
    each = job_parts_s(asked, fleet, training_s)
    if asked.jobs is None:
        return next(iter(each.values()))
    month = [{name: job.runs_per_month * part for name, part in each[job.name].items()} for job in asked.jobs]
    if all(job.share < 1 for job in asked.jobs):
        return max(month, key=lambda parts: sum(parts.values()))
    return {name: sum(parts[name] for parts in month) for name in month[0]}


def _overheads_s(asked: ProcureSpec, work: float, rate: float) -> tuple[float, float]:
    """Return the seconds of writing checkpoints, and those that failures cost, by Daly's complete expression."""
    write, given = asked.run.checkpoint, asked.run.checkpoint_interval
    if asked.run.storage_rate is not None and asked.run.checkpoint_size is not None:
        write = asked.run.checkpoint_size / asked.run.storage_rate
    without = _at(asked, work, rate, 0.0, math.inf)
    if write is None:
        return without
    if given is not None:
        return _at(asked, work, rate, write, given)
    if rate <= 0:
        return without
    best = _best_interval_s(write, rate)
    with_them = _at(asked, work, rate, write, best)
    return with_them if best < work and sum(with_them) < sum(without) else without


def _at(asked: ProcureSpec, work: float, rate: float, write: float, interval: float) -> tuple[float, float]:
    """Return both overheads for so much work between two checkpoints."""
    written = 0.0 if not write or math.isinf(interval) else write * work / interval
    segment = min(interval, work)
    alive = segment + (0.0 if not write or math.isinf(interval) else write * segment / interval)
    grown = (1 + _excess(rate * alive)) * _power(rate * asked.run.restart) - 1
    return written, (work + written) * grown if work and grown else 0.0


def _best_interval_s(write: float, rate: float) -> float:
    """Return the work between checkpoints that solves ``(1 - x) e^(x + d/M) = 1``, ``x = tau/M``, by halving."""
    low, high, ratio = 0.0, 1.0, write * rate
    for _ in range(_NUM_HALVINGS):
        x = (low + high) / 2
        low, high = (x, high) if x < 1 and math.log1p(-x) + x + ratio > 0 else (low, x)
    return (low + high) / 2 / rate


def _power(exponent: float) -> float:
    """Return e to it, infinite beyond floating point."""
    return math.exp(exponent) if exponent < _LARGE else math.inf


def _excess(z: float) -> float:
    """Return ``(e^z - 1)/z - 1``."""
    if z < _SMALL:
        return z / 2 + z * z / 6
    return math.expm1(z) / z - 1 if z < _LARGE else math.inf


def bill_of(asked: ProcureSpec, fleet: Machines, training_s: Mapping[str, float]) -> Bill:
    """Return what the work of a fleet takes and costs; ``training_s``: of each job, without a failure."""
    run_s = _parts_s(asked, fleet, training_s)
    num_runs = 1.0 if asked.jobs is None else sum(job.runs_per_month for job in asked.jobs)
    wall_s = sum(run_s.values())
    owned_s = wall_s / asked.utilisation if asked.jobs is None else S_PER_MONTH  # with what machines idle between runs
    stored_s = wall_s if asked.jobs is None else S_PER_MONTH
    if asked.jobs is None and (lead_s := max((row.get("lead_time_s") or 0.0 for row in fleet), default=0.0)):
        run_s = {"delivery": lead_s, **run_s}
    power = asked.electricity
    per_j = 0.0 if power is None else power.usd_per_kwh * power.pue / _J_PER_KWH
    money = dict.fromkeys(("rent", "reserved", "capital", "hosting", "electricity", "storage", "egress"), 0.0)
    capital = upfront = 0.0
    for row in fleet:
        count = row["count"]
        if row["term"] == "bought":
            life_s = row["useful_life_s"]
            capital += count * row["purchase_usd"]
            worn_usd = row["purchase_usd"] - (row.get("resale_usd") or 0.0)
            money["capital"] += 0.0 if life_s is None else count * worn_usd * owned_s / life_s
            money["hosting"] += count * row["hosting_usd_per_month"] * owned_s / S_PER_MONTH
            money["electricity"] += count * (row["power_w"] or math.nan) * wall_s * per_j if per_j else 0.0
        elif row["term"] == "reserved":
            months = 1.0 if asked.jobs is None else max(1.0, row["committed_s"] / S_PER_MONTH)  # that share it
            committed_s = row["committed_s"] / months
            money["reserved"] += count * row["usd_per_h"] / 3600 * max(_billed_s(row, wall_s), committed_s)
            upfront += count * (row.get("upfront_usd") or 0.0) * (1 - 1 / months)
        else:
            money["rent"] += count * row["usd_per_h"] / 3600 * _billed_s(row, wall_s)
    if asked.storage is not None:
        money["storage"] = asked.storage.size / _GB * asked.storage.usd_per_gb_month * stored_s / S_PER_MONTH
    if asked.egress is not None:
        money["egress"] = asked.egress.size / _GB * asked.egress.usd_per_gb * num_runs
    watts = [row.get("power_w") for row in fleet]
    pue = 1.0 if power is None else power.pue
    known = None if None in watts else sum(row["count"] * row["power_w"] for row in fleet) * pue
    return Bill(
        run_s=run_s,
        money_usd=money,
        energy_j=None if known is None else known * wall_s,
        power_w=known,
        capital_usd=capital,
        ahead_usd=upfront,
        num_machines=sum(row["count"] for row in fleet),
    )


def _billed_s(row: Mapping[str, Any], wall_s: float) -> float:
    """Return the wall time in whole granules, at least the least time."""
    granule = row["billing_s"]
    whole_s = (
        math.ceil(wall_s / granule * (1 - _ROUNDING)) * granule
        if granule and math.isfinite(wall_s / granule)
        else wall_s
    )
    return float(max(whole_s, row["least_billed_s"]))


def done_by_s(asked: ProcureSpec, fleet: Machines, training_s: Mapping[str, float]) -> dict[str, float]:
    """Return by when each job with a deadline is done, its runs all asked for at once, the earliest deadline first."""
    jobs = asked.jobs or []
    wall_s = {name: sum(parts.values()) for name, parts in job_parts_s(asked, fleet, training_s).items()}
    if all(job.share < 1 for job in jobs):
        return wall_s
    total, done = 0.0, {}
    for job in sorted(jobs, key=lambda one: math.inf if one.deadline is None else one.deadline):
        total += wall_s[job.name]
        done[job.name] = total
    return done

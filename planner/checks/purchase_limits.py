"""Whether a fleet keeps every limit of its question: plain comparisons of what it takes, costs and is made of."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from planner.checks.facts import holds
from planner.checks.purchase_account import S_PER_MONTH, Bill, bill_of, done_by_s
from planner.checks.report import Finding
from planner.procurement.spec import ProcurementSpec, ProcureSpec

__all__ = ["LIMITED", "Asked", "Rows", "fleet_limits"]

Rows = Sequence[Mapping[str, Any]]

LIMITED = 1e-9  # relative: a limit that is met exactly is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The question of an answer, checked, and by how much training was taken to be longer than predicted."""

    spec: ProcurementSpec
    stretch: float

    @property
    def procure(self) -> ProcureSpec:
        """What may be had, under which limits."""
        return self.spec.procure

    @property
    def shares(self) -> dict[str, float]:
        """The part of the machines that each job trains on."""
        jobs = self.procure.jobs
        return {"training": 1.0} if jobs is None else {job.name: job.share for job in jobs}

    def bill(self, fleet: Rows, training_s: Mapping[str, float], factor: float = 1.0) -> Bill:
        """Return what a fleet takes and costs, training so many times as long as predicted."""
        longer = {name: seconds * self.stretch * factor for name, seconds in training_s.items()}
        return bill_of(self.procure, fleet, longer)


def fleet_limits(asked: Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether every limit of the question is kept."""
    procure, fleet = asked.procure, choice["fleet"]
    bill = asked.bill(fleet, choice["training_s"])
    time_s = procure.deadline if procure.jobs is None else S_PER_MONTH
    limits = (
        ("budget", procure.budget, bill.spent_usd),
        ("capital", procure.capital, bill.capital_usd),
        ("deadline", time_s, bill.wall_s),
        ("power", procure.power, math.inf if bill.power_w is None else bill.power_w),
        *_job_limits(asked, choice),
    )
    for key, limit, value in limits:
        if limit is not None:
            is_ok = value <= limit * (1 + LIMITED)
            yield holds(f"{name} {key}", is_ok, f"{value:.9g} of {limit:.9g}", f"{value:.9g} exceeds {limit:.9g}")
    yield from _machines(procure, name, fleet, bill.num_machines)
    wrong = [problem for row in fleet for problem in _refusals(procure, row)]
    yield holds(f"{name} offers", not wrong, "such as may be had", "; ".join(wrong))


def _job_limits(asked: Asked, choice: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float]]:
    """Yield the deadline of each of several jobs, and by when it is done."""
    if asked.procure.jobs is not None:
        longer = {name: seconds * asked.stretch for name, seconds in choice["training_s"].items()}
        done = done_by_s(asked.procure, choice["fleet"], longer)
        for job in asked.procure.jobs:
            yield f"deadline of {job.name}", job.deadline, done[job.name]


def _machines(procure: ProcureSpec, name: str, fleet: Rows, number: int) -> Iterator[Finding]:
    """Yield whether the fleet has as many machines, types and devices as are allowed, in one place."""
    wanted = procure.machines
    least = 1 if wanted is None else wanted.exactly or wanted.at_least or 1
    most = None if wanted is None else wanted.exactly or wanted.at_most
    is_ok = least <= number <= (number if most is None else most)
    allowed = "any number" if most is None else most
    yield holds(f"{name} machines", is_ok, f"{number}", f"{number}, and {least} to {allowed} are allowed")
    is_ok = 1 <= len(fleet) <= procure.most_types and all(row["count"] >= 1 for row in fleet)
    yield holds(f"{name} types", is_ok, f"{len(fleet)}", f"{len(fleet)}, and 1 to {procure.most_types} are allowed")
    devices = max((row["count"] * row["devices_per_machine"] for row in fleet), default=0)
    wrong = f"{devices} of a type, and {procure.most_devices} are allowed"
    yield holds(f"{name} devices", devices <= procure.most_devices, f"{devices} of a type at most", wrong)
    places = {(row["provider"], row["region"]) for row in fleet}
    yield holds(
        f"{name} place", len(places) == 1, "one region", f"machines of {len(places)} regions do not train together"
    )
    tiers = {row.get("tier") for row in fleet if row["term"] == "bought"}
    wrong = f"bought machines of {len(tiers)} network tiers"
    yield holds(f"{name} network", len(tiers) <= 1, "one tier of bought machines at most", wrong)
    for pattern, most_of in procure.quotas.items():
        used = sum(row["count"] for row in fleet if _is_meant(row, [pattern]))
        yield holds(f"{name} quota {pattern}", used <= most_of, f"{used} of {most_of}", f"{used} exceeds {most_of}")


def _refusals(procure: ProcureSpec, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield why an offer may not be had."""
    if row["term"] not in procure.terms:
        yield f"{row['name']} is {row['term']}, and {', '.join(procure.terms)} is asked for"
    for key, value in (("providers", "provider"), ("regions", "region"), ("devices", "device")):
        wanted = getattr(procure, key)
        if wanted is not None and not _matches(row[value], wanted):
            yield f"{row['name']} is of other {key} than {', '.join(wanted)}"
    if procure.instances is not None and not _is_meant(row, procure.instances):
        yield f"{row['name']} is none of {', '.join(procure.instances)}"
    if procure.exclude is not None and _is_meant(row, procure.exclude):
        yield f"{row['name']} is excluded"
    if row.get("most") is not None and row["count"] > row["most"]:
        yield f"{row['count']} of {row['name']}, of which there are {row['most']}"
    if row.get("network_bytes_per_s") is None and row["count"] > 1:
        yield f"{row['count']} of {row['name']}, whose network is not known"


def _is_meant(row: Mapping[str, Any], patterns: Sequence[str]) -> bool:
    """Whether a pattern means an offer: by its name, instance, provider and instance, device, or network tier."""
    names = [row["name"], row["instance"], f"{row['provider']}/{row['instance']}", row["device"]]
    names += [row["tier"]] if row.get("tier") is not None else []
    return any(_matches(name, patterns) for name in names)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is one of some patterns."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)

"""Whether an answer of what to buy or rent is what it says, recomputed from its JSON alone, without any search.

Each job's plan is judged as any plan; time, dollars, energy and power of every fleet are the account's own
(:mod:`planner.procurement.fleet`); the fleet is held against the limits of the question. What the document cannot
show by itself is that the prices are those of the list, and that no fleet beats the bound.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from planner.answer.plan_file import is_procurement, read_plan, read_procurement
from planner.checks import checked_document, recomputed
from planner.checks.report import SAME, CheckReport, Finding, agree, agreement, holds
from planner.constraints import FLEET_LIMITS, is_within, read_range
from planner.errors import ModelError, SpecError
from planner.procurement.fleet import S_PER_MONTH, Account, Fleet, question_of
from planner.procurement.prices import Offer, PriceList, Term
from planner.procurement.question import Job, Procurement, ProcurementSpec, ProcureSpec, is_one_of, matches_offer
from planner.question.source import Source, faults_of
from planner.units import Dimension, parse

__all__ = ["check_file", "checked_procurement"]

Rows = Sequence[Mapping[str, Any]]
_NOT_CHECKED = (
    "that the prices are those of the list, and the offers there are",
    "that nothing is better than the bound, which takes a search",
    "what the table of changes and the break-even say",
)
_MARGIN = 1e-6
_LIMITED = 1e-9  # relative: a limit that is met exactly is kept
_TIE = 2 * SAME
_TYPES = ("dtype", "optimizer")  # taken by the machines, where the question leaves them open
_UNUSED = {  # what an offer on a term does not cost
    "on-demand": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "spot": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "reserved": ("purchase_usd", "hosting_usd_per_month"),
    "bought": ("usd_per_h", "committed_s"),
}


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The question of an answer, checked and as it stands, and by how much longer training was taken to be."""

    spec: ProcurementSpec
    resolved: Mapping[str, Any]
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

    @cached_property
    def procurement(self) -> Procurement:
        """The question, as the account asks it; of the list of prices nothing is known here."""
        jobs = tuple(
            Job(name=job.name, question={}, runs_per_month=job.runs_per_month, share=job.share)
            for job in self.procure.jobs or ()
        )
        return Procurement(
            asked=self.procure,
            source=Source(data={}, file="", folder=Path(), positions={}),
            jobs=jobs or (Job(name="training", question={}),),
            offers=(),
            prices=PriceList(offers=()),
            left_out={},
            families=None,
            today=date.min,
            resolved=self.resolved,
        )

    def account(self, rows: Rows) -> tuple[Account, Fleet]:
        """Return the account of a fleet of the document, and the fleet."""
        offers = tuple(_offer(row) for row in rows)
        fleet = Fleet(offers=offers, counts=tuple(row["count"] for row in rows))
        return Account(self.procurement, offers, stretch=self.stretch), fleet

    def taken(self, choice: Mapping[str, Any], longer: float = 1.0) -> "_Taken":
        """Return what a fleet of the document takes and costs, training so many times as long as is stated."""
        account, fleet = self.account(choice["fleet"])
        jobs = self.procurement.jobs
        training_s = [choice["training_s"][job.name] * longer for job in jobs]
        with np.errstate(all="ignore"):  # a document may hold any figures: what they make is compared, not trusted
            run_s = account.parts_s(fleet, training_s)
            runs = account.runs(fleet, training_s)
            wall_s = np.array([sum(run_s.values())])
            counts = np.array(fleet.counts, dtype=np.float64)[:, None]
            # Time is that of all runs; a single training's is read as such.
            criteria = account.criteria(counts, wall_s if self.procurement.is_monthly else np.array(training_s))
            money_usd = account.money(counts, wall_s)
            objective = account.objective(criteria)
        return _Taken(
            run_s=run_s,
            job_wall_s={job.name: float(run.wall_s[0]) for job, run in zip(jobs, runs, strict=True)},
            money_usd={name: float(part[0]) for name, part in money_usd.items()},
            criteria={name: float(part[0]) for name, part in criteria.items()},
            objective=float(objective[0]),
        )

    def done_by_s(self, taken: "_Taken") -> dict[str, float]:
        """Return by when each job is done, all asked for at once, the earliest deadline first; or on its own part."""
        jobs = self.procure.jobs or []
        if all(job.share < 1 for job in jobs):
            return dict(taken.job_wall_s)
        total, done = 0.0, {}
        for job in sorted(jobs, key=lambda one: math.inf if one.deadline is None else one.deadline):
            total += taken.job_wall_s[job.name]
            done[job.name] = total
        return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """What a fleet takes and costs: parts of time and money, one run of each job, and the search's criteria."""

    run_s: Mapping[str, float]
    job_wall_s: Mapping[str, float]
    money_usd: Mapping[str, float]
    criteria: Mapping[str, float]
    objective: float


def _offer(row: Mapping[str, Any]) -> Offer:
    """Return the offer of a row of a fleet."""
    given = {one.name: row[one.name] for one in fields(Offer) if row.get(one.name) is not None}
    life_s = math.inf if row.get("useful_life_s") is None else row["useful_life_s"]
    return Offer(**{**given, "term": Term(row["term"]), "date": date.min, "useful_life_s": life_s})


def check_file(path: Path) -> CheckReport:
    """Return what is right and wrong about a plan file, or about the answer to a question of a purchase.

    Raises
    ------
    SpecError
        If the file holds no plan, or a question that cannot be asked.
    """
    if is_procurement(path):
        return checked_procurement(read_procurement(path), path)
    return checked_document(read_plan(path), path)


def checked_procurement(document: Mapping[str, Any], path: Path) -> CheckReport:
    """Return what is right and wrong about a document of the form of ``planner.procurement/1``.

    Raises
    ------
    SpecError
        If its question is none.
    """
    try:
        spec = ProcurementSpec.model_validate(document["problem"])
    except ValidationError as error:
        source = Source(data=document["problem"], file=str(path), folder=Path(), positions={})
        raise SpecError.of(faults_of(error, source, ProcurementSpec)) from None
    choice = document["choice"]
    asked = _Asked(spec=spec, resolved=document["problem"], stretch=float(document["stretch"]))
    headline = ", ".join(f"{row['count']} x {row['instance']}" for row in choice["fleet"])
    if set(choice["training_s"]) != set(asked.shares) or set(choice["plans"]) != set(asked.shares):
        text = f"the question's jobs are {', '.join(asked.shares)}; there are plans of {', '.join(choice['plans'])}"
        return _report(headline, [Finding(name="jobs", is_ok=False, text=text)])
    try:
        return _report(headline, list(_findings(asked, document, path)))
    except (ArithmeticError, ModelError, ValueError) as error:
        text = f"its figures cannot be computed with: {error}"
        return _report(headline, [Finding(name="figures", is_ok=False, text=text)])


def _findings(asked: _Asked, document: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Yield everything that was looked at."""
    choice = document["choice"]
    yield from _certificate(asked, document)
    yield from _robust(asked, document)
    yield from _plans(asked, choice, path)
    yield from _figures(asked, "choice", choice)
    yield from _limits(asked, "choice", choice)
    yield from _margin(asked, document)
    yield from _others(asked, document)
    yield from _offers(document)
    yield from _counts(document)


def _report(headline: str, findings: Sequence[Finding]) -> CheckReport:
    """Return the report."""
    return CheckReport(family="procurement", headline=headline, findings=tuple(findings), not_checked=_NOT_CHECKED)


def _robust(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether a training that is longer than its plan is one that was asked for."""
    if asked.stretch == 1:
        return
    error = asked.procure.error
    is_ok = asked.stretch > 1 and (error is None or agree(asked.stretch, 1 + error))
    text = f"training is counted {asked.stretch:.6g} times as long as predicted"
    yield holds("robust", is_ok, text, f"{text}; that is not the error of the question")


def _certificate(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether bound, gap and status belong together."""
    stated, bounds = document["objective"], document["certificate"]["bounds_by_types"]
    value, bound = stated["value"], stated["bound"]
    yield holds(
        "goal",
        stated["name"] == asked.procure.objective,
        f"{stated['name']}, as the question asks",
        f"the answer minimises {stated['name']}; the question asks for {asked.procure.objective}",
    )
    yield agreement("objective", [("value", value, document["choice"]["objective"])])
    yield holds(
        "bound", bound <= value * (1 + SAME), f"{bound:.9g} <= {value:.9g}", f"{bound:.9g} is above {value:.9g}"
    )
    yield agreement("gap", [("gap", stated["gap"], (value - bound) / value if value else 0.0)])
    is_proven = bound >= value * (1 - SAME)
    wrong = f"{document['status']}, with a bound of {bound:.9g} below {value:.9g}"
    yield holds("status", (document["status"] == "optimal") == is_proven, document["status"], wrong)
    least = min([value, *(one for one in bounds.values() if one is not None)])
    wrong = f"the bounds by the number of types leave {least:.9g}, and {bound:.9g} is stated"
    is_least = agree(bound, least) and all(one is None or one <= value * (1 + SAME) for one in bounds.values())
    yield holds("bounds_by_types", is_least, f"none is below {bound:.9g}", wrong)


# -- the plans -------------------------------------------------------------------------------------------------------


def _plans(asked: _Asked, choice: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Yield whether each job's plan is right, is of this training on these machines, and takes what is stated."""
    for name, plan in choice["plans"].items():
        found = checked_document(read_plan(plan), path)
        for fault in found.faults:
            yield Finding(name=f"plans.{name}.{fault.name}", is_ok=False, text=fault.text, values=fault.values)
        if found.is_ok:
            text = f"{found.family} on {found.headline}: all {len(found.findings)} checks pass"
            yield Finding(name=f"plans.{name}", is_ok=True, text=text)
        objective = plan["objective"]
        is_time = objective["name"] == "training_time_s"
        yield holds(f"plans.{name} goal", is_time, "training time", f"it minimises {objective['name']}")
        yield agreement(f"training_s.{name}", [(name, choice["training_s"][name], objective["value"])])
        yield _same_training(asked, name, plan)
        yield _same_machines(asked, name, choice["fleet"], plan)


def _same_training(asked: _Asked, name: str, plan: Mapping[str, Any]) -> Finding:
    """Return whether a plan trains what was asked for: all plain figures of the two questions that both give."""
    jobs = asked.procure.jobs or []
    given = next((job.dnn for job in jobs if job.name == name), asked.spec.dnn)
    try:
        planned = type(given).model_validate(plan["problem"].get("dnn")) if given is not None else None
    except ValidationError as error:
        return Finding(name=f"plans.{name} training", is_ok=False, text=str(error).splitlines()[0])
    wanted = given.model_dump(exclude_unset=True) if given is not None else {}
    there = planned.model_dump(exclude_unset=True) if planned is not None else {}
    wrong = [
        f"{key} is {there.get(key)}, and {value} is asked for"
        for key, value in wanted.items()
        if (key in there or isinstance(value, int | float)) and there.get(key) != value
    ]
    return holds(f"plans.{name} training", not wrong, "as the question has it", "; ".join(wrong))


def _same_machines(asked: _Asked, name: str, fleet: Rows, plan: Mapping[str, Any]) -> Finding:
    """Return whether a plan's machines are of the fleet, or of the job's share of it: all of them, or fewer."""
    share = asked.shares[name]
    here: dict[tuple[Any, ...], int] = {}
    for row in fleet:
        rate = _rounded(row.get("network_bytes_per_s"))
        key = row["device"], row["devices_per_machine"], rate, None if rate is None else _rounded(row["latency_s"])
        here[key] = here.get(key, 0) + math.floor(row["count"] * share + _LIMITED)
    there: dict[tuple[Any, ...], int] = {}
    for group in plan["problem"].get("cluster", {}).get("machines", ()):
        device = group["device"] if isinstance(group["device"], str) else group["device"]["name"]
        rate = None if group.get("network") is None else _rounded(parse(str(group["network"]), Dimension.RATE))
        waits = None if group.get("latency") is None else _rounded(parse(str(group["latency"]), Dimension.TIME))
        key = device, group.get("devices", 1), rate, waits
        there[key] = there.get(key, 0) + group.get("count", 1)
    is_ok = bool(there) and all(count <= here.get(key, 0) for key, count in there.items())
    return holds(f"plans.{name} machines", is_ok, "those of the fleet", f"the plan has {there}, the fleet {here}")


def _rounded(rate: float | None) -> float | None:
    """Return a rate with the digits that text keeps."""
    return None if rate is None else float(f"{rate:.9g}")


# -- time, money and limits ------------------------------------------------------------------------------------------


def _figures(asked: _Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the figures of a fleet are those that its trainings and its offers make."""
    taken = asked.taken(choice)
    for key, found in (
        ("breakdown_s", taken.run_s),
        ("breakdown_usd", taken.money_usd),
        ("job_wall_s", taken.job_wall_s),
    ):
        stated = choice[key]
        pairs = [(part, stated.get(part, math.nan), found.get(part, math.nan)) for part in {**found, **stated}]
        yield agreement(f"{name}.{key}", pairs)
    figures = {
        "wall_time_s": "time",
        "cost_usd": "cost",
        "spent_usd": "spent",
        "capital_usd": "capital",
        "energy_j": "energy",
        "power_w": "power",
    }
    pairs = [(key, choice[key], taken.criteria[criterion]) for key, criterion in figures.items()]
    yield agreement(f"{name} figures", [*pairs, ("objective", choice["objective"], taken.objective)])
    for key, whole in (("breakdown_s", "wall_time_s"), ("breakdown_usd", "cost_usd")):
        total = sum(choice[key].values())
        wrong = f"to {total:.12g}, not to {choice[whole]:.12g}"
        yield holds(f"{name}.{key} sums up", agree(total, choice[whole]), f"to {total:.9g}", wrong)


def _limits(asked: _Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether every limit of the question is kept."""
    procure, fleet, taken = asked.procure, choice["fleet"], asked.taken(choice)
    used = taken.criteria
    given: dict[str, float | None] = {one.key: getattr(procure, one.key) for one in FLEET_LIMITS}
    if procure.jobs is not None:
        given["deadline"] = S_PER_MONTH
    limits = [(one.key, given[one.key], used[one.criterion]) for one in FLEET_LIMITS]
    done = asked.done_by_s(taken)
    limits += [(f"deadline of {job.name}", job.deadline, done[job.name]) for job in procure.jobs or ()]
    for key, limit, value in limits:
        if limit is not None:
            yield holds(
                f"{name} {key}",
                is_within(value, limit),
                f"{value:.9g} of {limit:.9g}",
                f"{value:.9g} exceeds {limit:.9g}",
            )
    number = sum(row["count"] for row in fleet)
    wanted = read_range(None if procure.machines is None else procure.machines.model_dump())
    wrong = f"{number}, and {wanted.least} to {'any number' if wanted.most is None else wanted.most} are allowed"
    yield holds(f"{name} machines", number in wanted, f"{number}", wrong)
    is_ok = 1 <= len(fleet) <= procure.most_types and all(row["count"] >= 1 for row in fleet)
    yield holds(f"{name} types", is_ok, f"{len(fleet)}", f"{len(fleet)}, and 1 to {procure.most_types} are allowed")
    devices = max((row["count"] * row["devices_per_machine"] for row in fleet), default=0)
    wrong = f"{devices} of a type, and {procure.most_devices} are allowed"
    yield holds(f"{name} devices", devices <= procure.most_devices, f"{devices} of a type at most", wrong)
    places = {(row["provider"], row["region"]) for row in fleet}
    wrong = f"machines of {len(places)} regions do not train together"
    yield holds(f"{name} place", len(places) == 1, "one region", wrong)
    tiers = {row.get("tier") for row in fleet if row["term"] == "bought"}
    wrong = f"bought machines of {len(tiers)} network tiers"
    yield holds(f"{name} network", len(tiers) <= 1, "one tier of bought machines at most", wrong)
    for pattern, most_of in procure.quotas.items():
        used_of = sum(row["count"] for row in fleet if matches_offer(_offer(row), [pattern]))
        wrong = f"{used_of} exceeds {most_of}"
        yield holds(f"{name} quota {pattern}", used_of <= most_of, f"{used_of} of {most_of}", wrong)
    refusals = [problem for row in fleet for problem in _refusals(procure, row)]
    yield holds(f"{name} offers", not refusals, "such as may be had", "; ".join(refusals))


def _refusals(procure: ProcureSpec, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield why an offer may not be had."""
    offer = _offer(row)
    if row["term"] not in procure.terms:
        yield f"{row['name']} is {row['term']}, and {', '.join(procure.terms)} is asked for"
    for key, value in (("providers", "provider"), ("regions", "region"), ("devices", "device")):
        wanted = getattr(procure, key)
        if wanted is not None and not is_one_of(row[value], wanted):
            yield f"{row['name']} is of other {key} than {', '.join(wanted)}"
    if procure.instances is not None and not matches_offer(offer, procure.instances):
        yield f"{row['name']} is none of {', '.join(procure.instances)}"
    if procure.exclude is not None and matches_offer(offer, procure.exclude):
        yield f"{row['name']} is excluded"
    if row.get("most") is not None and row["count"] > row["most"]:
        yield f"{row['count']} of {row['name']}, of which there are {row['most']}"
    if row.get("network_bytes_per_s") is None and row["count"] > 1:
        yield f"{row['count']} of {row['name']}, whose network is not known"


def _margin(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the deadlines hold up to the stated margin, and no longer; of several jobs, and the month, too."""
    margin, choice, procure = document["margin"], document["choice"], asked.procure
    if margin is None or (procure.jobs is None and procure.deadline is None):
        yield holds("margin", margin is None, "none", f"{margin} is stated, and there is no deadline")
        return

    def rest(longer: float) -> float:
        """Return the largest share of a deadline that is used, with training so many times as long as predicted."""
        taken = asked.taken(choice, longer)
        used = taken.criteria["time"] / (procure.deadline or S_PER_MONTH)
        done = asked.done_by_s(taken)
        return max([used, *(done[job.name] / job.deadline for job in procure.jobs or () if job.deadline)])

    ends = [rest(1 + margin + more) for more in (-_MARGIN, _MARGIN)]
    is_ok = ends[0] <= 1 + _LIMITED and ends[1] > 1 - _LIMITED
    wrong = f"with training {margin:+.2%} longer a run takes {ends[1]:.9g} times as long as it may"
    yield holds("margin", is_ok, f"{margin:+.2%}", wrong)


# -- other fleets ----------------------------------------------------------------------------------------------------


def _others(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether other fleets are as stated, none better than the answer, and points of the trade-off beat none."""
    bound, value = document["objective"]["bound"], document["objective"]["value"]
    lists = (("alternatives", document["alternatives"]), ("pareto", _points(document)))
    for name, rows in lists:
        for index, row in enumerate(rows):
            if set(row["training_s"]) != set(asked.shares):
                yield Finding(name=f"{name}.{index}", is_ok=False, text="its jobs are not those of the question")
                continue
            found = [*_figures(asked, f"{name}.{index}", row), *_limits(asked, f"{name}.{index}", row)]
            for job, plan in row.get("plans", {}).items():
                anew = _planned_anew(asked, document, row, job, plan)
                found += [replace(one, name=f"{name}.{index} plan of {job}{one.name}") for one in anew]
            yield from (one for one in found if not one.is_ok)
            if row["objective"] < bound * (1 - SAME):
                text = f"{row['objective']:.9g} is below the bound, {bound:.9g}"
                yield Finding(name=f"{name}.{index} bound", is_ok=False, text=text)
            elif row["objective"] < value * (1 - _TIE):
                text = f"{row['objective']:.9g} is better than the answer, {value:.9g}"
                yield Finding(name=f"{name}.{index} ranking", is_ok=False, text=text)
        if rows:
            yield Finding(name=name, is_ok=True, text=f"{len(rows)} recomputed")
    points = _points(document)
    wrong = [
        f"point {index} is no cheaper than point {index - 1}, and no faster"
        for index in range(1, len(points))
        if not (
            points[index]["cost_usd"] < points[index - 1]["cost_usd"]
            and points[index]["wall_time_s"] > points[index - 1]["wall_time_s"]
        )
    ]
    if points:
        yield holds("pareto order", not wrong, "each is slower and cheaper than the one before", "; ".join(wrong))


def _planned_anew(
    asked: _Asked, document: Mapping[str, Any], row: Mapping[str, Any], job: str, plan: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong about the plan of a job on another fleet, whose question is that of the answer's plan."""
    objective, bound = plan["objective"], plan["bound"]
    yield agreement("", [(job, objective, row["training_s"].get(job, math.nan))])
    if job not in asked.shares:
        return
    is_ok = 0 <= bound <= objective * (1 + SAME) and (plan["status"] == "optimal") == agree(bound, objective)
    wrong = f"{plan['status']}, with a bound of {bound:.9g} of {objective:.9g}"
    yield holds(" bound", is_ok, plan["status"], wrong)
    chosen = document["choice"]["plans"][job]["problem"]
    given = next((one.dnn for one in asked.procure.jobs or [] if one.name == job), asked.spec.dnn)
    stated = {} if given is None else given.model_dump(exclude_unset=True)
    # What the answer's own devices made of the network is another fleet's own.
    dnn = {key: part for key, part in chosen["dnn"].items() if key in stated or key not in _TYPES}
    account, fleet = asked.account(row["fleet"])
    part = account.part_of(fleet, next(one for one in asked.procurement.jobs if one.name == job))
    question = question_of(asked.procurement, {**chosen, "dnn": dnn}, part, [plan["family"]])
    for fault in recomputed(question, plan["family"], plan["configuration"], objective):
        yield replace(fault, name=f" {fault.name}")


def _offers(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the offers have figures that a list could have, and the same wherever one of them stands."""
    known: dict[str, Mapping[str, Any]] = {}
    faults = []
    for one in (document["choice"], *document["alternatives"], *_points(document)):
        for row in one["fleet"]:
            offer = {key: part for key, part in row.items() if key != "count"}
            if known.setdefault(row["name"], offer) != offer:
                faults.append(f"{row['name']} is stated in two ways")
            negative = [key for key, part in offer.items() if isinstance(part, int | float) and part < 0]
            faults += [f"{key} of {row['name']} is {offer[key]}" for key in negative]
            unused = [key for key in _UNUSED[row["term"]] if offer[key]]
            faults += [f"{row['name']} is {row['term']}, and its {key} is {offer[key]}" for key in unused]
            if row["devices_per_machine"] < 1:
                faults.append(f"{row['name']} has {row['devices_per_machine']} devices")
    yield holds("offers", not faults, f"{len(known)}, each the same wherever it stands", "; ".join(faults[:4]))


def _counts(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the numbers of what was searched can be such, and the gap of the trade-off is what it may be."""
    certificate, prices, pareto = document["certificate"], document["prices"], document["pareto"]
    numbers = {name: certificate[name] for name in ("num_offers", "num_markets", "num_planned")}
    numbers |= {f"prices.{name}": part for name, part in prices.items() if isinstance(part, int | float)}
    numbers |= {f"prices.left_out.{name}": part for name, part in (prices.get("left_out") or {}).items()}
    faults = [f"{name} is {number}" for name, number in numbers.items() if number < 0]
    if certificate["num_offers"] != prices.get("asked", certificate["num_offers"]):
        faults.append(f"{certificate['num_offers']} offers were searched, and {prices['asked']} were asked for")
    if pareto is not None:
        gap = pareto["gap"]
        if gap is not None and (gap < 0 or (pareto["status"] == "optimal" and gap > _TIE)):
            faults.append(f"the trade-off is {pareto['status']} with a gap of {gap:.6g}")
    yield holds("counts", not faults, "as they may be", "; ".join(faults[:4]))


def _points(document: Mapping[str, Any]) -> Rows:
    """Return the points of the trade-off, if it was asked for."""
    rows: Rows = [] if document["pareto"] is None else document["pareto"]["points"]
    return rows

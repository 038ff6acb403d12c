"""Whether an answer of what to buy or rent is what it says, recomputed from its JSON alone, without any search.

Each job's plan is judged as any plan; time, dollars, energy and power of every fleet are the account's own
(:mod:`planner.procurement.fleet`); the fleet is held against the limits of the question. What the document cannot
show by itself is that the prices are those of the list, and that no fleet beats the bound.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from planner.answer.plan_file import is_procurement, read_plan, read_procurement
from planner.checks import SAME, CheckReport, Finding, agree, agreement, checked_document, holds, recomputed
from planner.constraints import FLEET_LIMITS, is_within
from planner.errors import ModelError, SpecError
from planner.frozen import frozen
from planner.models.money import S_PER_MONTH
from planner.procurement.fleet import Account, Fleet, FleetUsage, carbon_g, question_of
from planner.procurement.prices import Offer, PriceList, Term
from planner.procurement.question import FROM_MACHINES, Job, Procurement, ProcurementSpec, ProcureSpec, refusals
from planner.question.source import Source, faults_of
from planner.question.spec import DnnSpec
from planner.units import Dimension, parse

Rows = Sequence[Mapping[str, Any]]
_NOT_CHECKED = (
    "that the prices are those of the list, and the offers there are",
    "that nothing is better than the bound, which takes a search",
    "what the table of changes and the break-even say",
    "how slow training may be at the pessimistic end of an error that is not the fleet's own",
)
_MARGIN = 1e-6
_LIMITED = 1e-9  # relative: a limit that is met exactly is kept
_TIE = 2 * SAME
_UNUSED = {  # what an offer on a term does not cost
    "on-demand": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "spot": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "reserved": ("purchase_usd", "hosting_usd_per_month"),
    "bought": ("usd_per_h", "committed_s"),
}


@frozen
class _Asked:
    """The question of an answer: as it stands, and as the account asks it; of the list of prices nothing is known here.

    ``stretch``: by how much longer training was taken to be.
    """

    spec: ProcurementSpec
    procurement: Procurement
    stretch: float

    @classmethod
    def of(cls, document: Mapping[str, Any], path: Path) -> "_Asked":
        """Return the question of a document; raise SpecError where it is none."""
        source = Source(data=document["problem"], file=str(path), folder=Path(), positions={})
        try:
            spec = ProcurementSpec.model_validate(document["problem"])
        except ValidationError as error:
            raise SpecError.of(faults_of(error, source, ProcurementSpec)) from None
        jobs = tuple(
            Job(
                name=job.name,
                question={},
                runs_per_month=job.runs_per_month,
                deadline_s=math.inf if job.deadline is None else job.deadline,
                share=job.share,
            )
            for job in spec.procure.jobs or ()
        )
        procurement = Procurement(
            asked=spec.procure,
            source=source,
            jobs=jobs or (Job(name="training", question={}),),
            offers=(),
            prices=PriceList(offers=()),
            left_out={},
            families=None,
            today=date.min,
            resolved=document["problem"],
        )
        return cls(spec=spec, procurement=procurement, stretch=float(document["stretch"]))

    @property
    def procure(self) -> ProcureSpec:
        """What may be had, under which limits."""
        return self.spec.procure

    @property
    def jobs(self) -> dict[str, Job]:
        """What is trained."""
        return {job.name: job for job in self.procurement.jobs}

    def dnn_of(self, name: str) -> DnnSpec | None:
        """Return the network that a job asks for."""
        return next((job.dnn for job in self.procure.jobs or () if job.name == name), self.spec.dnn)

    def account(self, rows: Rows) -> tuple[Account, Fleet]:
        """Return the account of a fleet of the document, and the fleet."""
        offers = []
        for row in rows:
            given = {one.name: row[one.name] for one in fields(Offer) if row.get(one.name) is not None}
            offers.append(Offer(**{**given, "term": Term(row["term"]), "date": date.min}))
        fleet = Fleet(offers=tuple(offers), counts=tuple(row["count"] for row in rows))
        return Account(self.procurement, fleet.offers, stretch=self.stretch), fleet

    def usage(self, choice: Mapping[str, Any], longer: float = 1.0) -> FleetUsage:
        """Return what a fleet of the document takes and costs, training so many times as long as is stated."""
        account, fleet = self.account(choice["fleet"])
        with np.errstate(all="ignore"):  # a document may hold any figures: what they make is compared, not trusted
            return account.usage(fleet, [choice["training_s"][name] * longer for name in self.jobs])


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
    asked, choice = _Asked.of(document, path), document["choice"]
    headline = ", ".join(f"{row['count']} x {row['instance']}" for row in choice["fleet"])
    if set(choice["training_s"]) != set(asked.jobs) or set(choice["plans"]) != set(asked.jobs):
        text = f"the question's jobs are {', '.join(asked.jobs)}; there are plans of {', '.join(choice['plans'])}"
        findings = [Finding(name="jobs", is_ok=False, text=text)]
    else:
        try:
            findings = list(_findings(asked, document, path))
        except (ArithmeticError, ModelError, ValueError) as error:
            text = f"its figures cannot be computed with: {error}"
            findings = [Finding(name="figures", is_ok=False, text=text)]
    return CheckReport(family="procurement", headline=headline, findings=tuple(findings), not_checked=_NOT_CHECKED)


def _findings(asked: _Asked, document: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Yield everything that was looked at."""
    choice = document["choice"]
    yield from _certificate(asked, document)
    if asked.stretch != 1:
        error = asked.procure.error
        is_ok = asked.stretch > 1 and (error is None or agree(asked.stretch, 1 + error))
        text = f"training is counted {asked.stretch:.6g} times as long as predicted"
        yield holds("robust", is_ok, text, f"{text}; that is not the error of the question")
    yield from _plans(asked, choice, path)
    yield from _figures(asked, "choice", choice)
    yield from _limits(asked, "choice", choice)
    yield from _margin(asked, document)
    yield from _risk(asked, document)
    yield from _others(asked, document)
    yield from _offers(document)
    yield from _counts(document)


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
    given = asked.dnn_of(name)
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


def _same_machines(asked: _Asked, name: str, rows: Rows, plan: Mapping[str, Any]) -> Finding:
    """Return whether a plan's machines are of the fleet, or of the job's share of it: all of them, or fewer."""

    def rounded(rate: float | None) -> float | None:
        """Return a rate with the digits that text keeps."""
        return None if rate is None else float(f"{rate:.9g}")

    account, fleet = asked.account(rows)
    here: dict[tuple[Any, ...], int] = {}
    for offer, count in zip(fleet.offers, account.part_of(fleet, asked.jobs[name]).counts, strict=True):
        rate = rounded(offer.network_bytes_per_s)
        key = offer.device, offer.devices_per_machine, rate, None if rate is None else rounded(offer.latency_s)
        here[key] = here.get(key, 0) + count
    there: dict[tuple[Any, ...], int] = {}
    limit = (plan["problem"].get("constraints") or {}).get("machines")
    most = (limit.get("at_most") if isinstance(limit, Mapping) else None) or math.inf  # of whole racks
    for group in plan["problem"].get("cluster", {}).get("machines", ()):
        device = group["device"] if isinstance(group["device"], str) else group["device"]["name"]
        network, latency = group.get("network"), group.get("latency")
        rate = None if network is None else rounded(parse(str(network), Dimension.RATE))
        wait_s = None if latency is None else rounded(parse(str(latency), Dimension.TIME))
        key = device, group.get("devices", 1), rate, wait_s
        there[key] = there.get(key, 0) + min(group.get("count", 1), most)
    is_ok = bool(there) and all(count <= here.get(key, 0) for key, count in there.items())
    return holds(f"plans.{name} machines", is_ok, "those of the fleet", f"the plan has {there}, the fleet {here}")


# -- time, money and limits ------------------------------------------------------------------------------------------


def _figures(asked: _Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the figures of a fleet are those that its trainings and its offers make."""
    usage = asked.usage(choice)
    parts = {"breakdown_s": usage.run_s, "breakdown_usd": usage.money_usd, "job_wall_s": usage.wall_s}
    for key, computed in parts.items():
        stated = choice[key]
        pairs = [(part, stated.get(part, math.nan), computed.get(part, math.nan)) for part in {**computed, **stated}]
        yield agreement(f"{name}.{key}", pairs)
    figures = {
        "wall_time_s": "time",
        "cost_usd": "cost",
        "spent_usd": "spent",
        "capital_usd": "capital",
        "energy_j": "energy",
        "power_w": "power",
        "objective": "objective",
    }
    yield agreement(f"{name} figures", [(key, choice[key], usage.criteria[one]) for key, one in figures.items()])
    _, fleet = asked.account(choice["fleet"])
    carbon = carbon_g(asked.procure, fleet, usage.criteria["energy"])
    carbon = None if carbon is None or not math.isfinite(carbon) else carbon  # of unknown power
    upfront = sum(row["count"] * (row.get("upfront_usd") or 0.0) for row in choice["fleet"])
    besides = [("carbon_g", choice.get("carbon_g") or 0.0, carbon or 0.0)]
    besides.append(("upfront_usd", choice.get("upfront_usd") or 0.0, upfront))
    yield agreement(f"{name} besides", besides)
    worth_usd = usage.criteria["capital"] - usage.money_usd["capital"]
    yield agreement(f"{name} worth", [("worth_usd", choice.get("worth_usd", worth_usd), worth_usd)])
    for key, whole in (("breakdown_s", "wall_time_s"), ("breakdown_usd", "cost_usd")):
        total = sum(choice[key].values())
        wrong = f"to {total:.12g}, not to {choice[whole]:.12g}"
        yield holds(f"{name}.{key} sums up", agree(total, choice[whole]), f"to {total:.9g}", wrong)


def _limits(asked: _Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether every limit of the question is kept."""
    procure, rows = asked.procure, choice["fleet"]
    account, fleet = asked.account(rows)
    usage, limits = asked.usage(choice), account.limits
    keys = {limit.criterion: limit.key for limit in FLEET_LIMITS} | {one: one for one in (*account.quotas, "racks")}
    used = [(key, limits[criterion], usage.criteria[criterion]) for criterion, key in keys.items()]
    used += [
        (f"deadline of {job.name}", job.deadline_s, usage.done_s[job.name])
        for job in asked.jobs.values()
        if procure.jobs
    ]
    for key, limit, value in used:
        if limit < math.inf:
            wrong = f"{value:.9g} exceeds {limit:.9g}"
            yield holds(f"{name} {key}", is_within(value, limit), f"{value:.9g} of {limit:.9g}", wrong)
    number, wanted = fleet.num_machines, procure.num_machines
    wrong = f"{number}, and {wanted.least} to {'any number' if wanted.most is None else wanted.most} are allowed"
    yield holds(f"{name} machines", number in wanted, f"{number}", wrong)
    is_ok = 1 <= len(rows) <= procure.most_types and all(count >= 1 for count in fleet.counts)
    yield holds(f"{name} types", is_ok, f"{len(rows)}", f"{len(rows)}, and 1 to {procure.most_types} are allowed")
    devices = max((row["count"] * row["devices_per_machine"] for row in rows), default=0)
    wrong = f"{devices} of a type, and {procure.most_devices} are allowed"
    yield holds(f"{name} devices", devices <= procure.most_devices, f"{devices} of a type at most", wrong)
    places = {(offer.provider, offer.region) for offer in fleet.offers}
    wrong = f"machines of {len(places)} regions do not train together"
    yield holds(f"{name} place", len(places) == 1, "one region", wrong)
    tiers = {offer.tier for offer in fleet.offers if offer.is_bought}
    wrong = f"bought machines of {len(tiers)} network tiers"
    yield holds(f"{name} network", len(tiers) <= 1, "one tier of bought machines at most", wrong)
    faults = []
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        faults += [f"{offer.name} is {why}" for why in refusals(procure, offer)]
        if offer.most is not None and count > offer.most:
            faults.append(f"{count} of {offer.name}, of which there are {offer.most}")
        if offer.network_bytes_per_s is None and count > 1:
            faults.append(f"{count} of {offer.name}, whose network is not known")
    yield holds(f"{name} offers", not faults, "such as may be had", "; ".join(faults))


def _risk(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the pessimistic end is what training so long comes to, and so long as the error says."""
    risk, choice = document.get("risk"), document["choice"]  # answers of before have none
    if risk is None:
        return
    predicted, error = replace(asked, stretch=1.0), choice["error"]
    usage = predicted.usage({**choice, "training_s": risk["training_s"]})
    pairs = [
        ("wall_s", risk["wall_s"], sum(usage.run_s.values())),
        ("cost_usd", risk["cost_usd"], usage.criteria["cost"]),
    ]
    if error is not None:
        longer = max(1 + max(0.0, error["high"]), document["stretch"])
        pairs += [(name, risk["training_s"][name], longer * seconds) for name, seconds in choice["training_s"].items()]
    yield agreement("risk", pairs)


def _margin(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the deadlines hold up to the stated margin, and no longer; of several jobs, and the month, too."""
    margin, choice = document["margin"], document["choice"]
    limit_s = asked.account(choice["fleet"])[0].limits["time"]
    if margin is None or limit_s == math.inf:
        yield holds("margin", margin is None, "none", f"{margin} is stated, and there is no deadline")
        return

    def rest(longer: float) -> float:
        """Return the largest share of a deadline that is used, with training so many times as long as predicted."""
        usage = asked.usage(choice, longer)
        jobs = [usage.done_s[job.name] / job.deadline_s for job in asked.jobs.values() if job.deadline_s]
        return max([usage.criteria["time"] / (limit_s or S_PER_MONTH), *jobs])

    ends = [rest(1 + margin + more) for more in (-_MARGIN, _MARGIN)]
    is_ok = ends[0] <= 1 + _LIMITED and ends[1] > 1 - _LIMITED
    wrong = f"with training {margin:+.2%} longer a run takes {ends[1]:.9g} times as long as it may"
    yield holds("margin", is_ok, f"{margin:+.2%}", wrong)


# -- other fleets ----------------------------------------------------------------------------------------------------


def _others(asked: _Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether other fleets are as stated, none better than the answer, and points of the trade-off beat none."""
    bound, value = document["objective"]["bound"], document["objective"]["value"]
    lists = (
        ("alternatives", document["alternatives"]),
        ("pareto", _points(document)),
        ("by_deadline", document.get("by_deadline", ())),  # answers of before have none
    )
    open_limits = [one.key for one in FLEET_LIMITS if one.criterion in ("time", "spent")]
    for name, rows in lists:
        for index, row in enumerate(rows):
            if set(row["training_s"]) != set(asked.jobs):
                yield Finding(name=f"{name}.{index}", is_ok=False, text="its jobs are not those of the question")
                continue
            found, limits = list(_figures(asked, f"{name}.{index}", row)), list(_limits(asked, f"{name}.{index}", row))
            is_beyond = name == "by_deadline" and not all(one.is_ok for one in limits)
            if is_beyond:  # another deadline, or another budget: all else is kept
                limits = [one for one in limits if one.name.rpartition(" ")[2] not in open_limits]
            found += limits
            for job, plan in row.get("plans", {}).items():
                anew = _planned_anew(asked, document, row, job, plan)
                found += [replace(one, name=f"{name}.{index} plan of {job}{one.name}") for one in anew]
            yield from (one for one in found if not one.is_ok)
            if is_beyond:
                continue
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
    asked: _Asked, document: Mapping[str, Any], row: Mapping[str, Any], name: str, plan: Mapping[str, Any]
) -> Iterator[Finding]:
    """Yield what is wrong about the plan of a job on another fleet, whose question is that of the answer's plan."""
    objective, bound = plan["objective"], plan["bound"]
    yield agreement("", [(name, objective, row["training_s"].get(name, math.nan))])
    if name not in asked.jobs:
        return
    is_ok = 0 <= bound <= objective * (1 + SAME) and (plan["status"] == "optimal") == agree(bound, objective)
    wrong = f"{plan['status']}, with a bound of {bound:.9g} of {objective:.9g}"
    yield holds(" bound", is_ok, plan["status"], wrong)
    chosen, given = document["choice"]["plans"][name]["problem"], asked.dnn_of(name)
    stated = {} if given is None else given.model_dump(exclude_unset=True)
    # What the answer's own devices made of the network is another fleet's own.
    dnn = {key: part for key, part in chosen["dnn"].items() if key in stated or key not in FROM_MACHINES}
    account, fleet = asked.account(row["fleet"])
    part = account.part_of(fleet, asked.jobs[name])
    question = question_of(asked.procurement, {**chosen, "dnn": dnn}, part, [plan["family"]])
    for fault in recomputed(question, plan["family"], plan["configuration"], objective):
        yield replace(fault, name=f" {fault.name}")


def _offers(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the offers have figures that a list could have, and the same wherever one of them stands."""
    known: dict[str, Mapping[str, Any]] = {}
    faults = []
    others = (*document["alternatives"], *_points(document), *document.get("by_deadline", ()))
    for one in (document["choice"], *others):
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

"""Whether an answer of what to buy or rent is what it says: time and money recomputed from its JSON alone.

Each job's plan is judged as any plan; the fleet against the limits of the question; wall time, dollars, energy and
power by :mod:`planner.checks.purchase_account`, in plain loops. What the document cannot show by itself is that the
prices are those of the list, and that no fleet beats the bound.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.checks.facts import holds
from planner.checks.purchase_account import S_PER_MONTH, done_by_s, job_parts_s
from planner.checks.purchase_limits import LIMITED, Asked, Rows, fleet_limits
from planner.checks.report import SAME, CheckReport, Finding, agree, agreement
from planner.errors import SpecError
from planner.procurement.spec import ProcurementSpec
from planner.spec.source import Source, faults_of
from planner.units import Dimension, format_exact, parse

__all__ = ["checked_procurement"]

Checked = Callable[[Mapping[str, Any]], CheckReport]  # a plan's document
# A question, a family with the block of its configuration, and the stated objective: what is wrong about them.
Recomputed = Callable[[Mapping[str, Any], str, Mapping[str, Any], float], list[Finding]]
_NOT_CHECKED = (
    "that the prices are those of the list, and the offers there are",
    "that nothing is better than the bound, which takes a search",
    "what the table of changes and the break-even say",
)
_MARGIN = 1e-6
_TIE = 2 * SAME
_TYPES = ("dtype", "optimizer")  # taken by the machines, where the question leaves them open
_UNUSED = {  # what an offer on a term does not cost
    "on-demand": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "spot": ("committed_s", "purchase_usd", "hosting_usd_per_month"),
    "reserved": ("purchase_usd", "hosting_usd_per_month"),
    "bought": ("usd_per_h", "committed_s"),
}


def checked_procurement(
    document: Mapping[str, Any], file: str, checked: Checked, recomputed: Recomputed
) -> CheckReport:
    """Return what is right and wrong about a document of the form of ``planner.procurement/1``.

    Raises
    ------
    SpecError
        If its question is none.
    """
    try:
        spec = ProcurementSpec.model_validate(document["problem"])
    except ValidationError as error:
        source = Source(data=document["problem"], file=file, folder=Path(), positions={})
        raise SpecError.of(faults_of(error, source, ProcurementSpec)) from None
    choice = document["choice"]
    asked = Asked(spec=spec, stretch=float(document["stretch"]))
    headline = ", ".join(f"{row['count']} x {row['instance']}" for row in choice["fleet"])
    if set(choice["training_s"]) != set(asked.shares) or set(choice["plans"]) != set(asked.shares):
        text = f"the question's jobs are {', '.join(asked.shares)}; there are plans of {', '.join(choice['plans'])}"
        return _report(headline, [Finding(name="jobs", is_ok=False, text=text)])
    try:
        return _report(headline, list(_findings(asked, document, checked, recomputed)))
    except ArithmeticError as error:
        text = f"its figures cannot be computed with: {error}"
        return _report(headline, [Finding(name="figures", is_ok=False, text=text)])


def _findings(asked: Asked, document: Mapping[str, Any], checked: Checked, recomputed: Recomputed) -> Iterator[Finding]:
    """Yield everything that was looked at."""
    choice = document["choice"]
    for part in (
        _certificate(asked, document),
        _robust(asked, document),
        _plans(asked, choice, checked),
        _figures(asked, "choice", choice),
        fleet_limits(asked, "choice", choice),
        _margin(asked, document),
        _others(asked, document, recomputed),
        _offers(document),
        _counts(document),
    ):
        yield from part


def _report(headline: str, findings: Sequence[Finding]) -> CheckReport:
    """Return the report."""
    return CheckReport(family="procurement", headline=headline, findings=tuple(findings), not_checked=_NOT_CHECKED)


def _robust(asked: Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether a training that is longer than its plan is one that was asked for."""
    if asked.stretch == 1:
        return
    error = asked.procure.error
    is_ok = asked.stretch > 1 and (error is None or agree(asked.stretch, 1 + error))
    text = f"training is counted {asked.stretch:.6g} times as long as predicted"
    yield holds("robust", is_ok, text, f"{text}; that is not the error of the question")


def _certificate(asked: Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
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


def _plans(asked: Asked, choice: Mapping[str, Any], checked: Checked) -> Iterator[Finding]:
    """Yield whether each job's plan is right, is of this training on these machines, and takes what is stated."""
    for name, plan in choice["plans"].items():
        found = checked(plan)
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


def _same_training(asked: Asked, name: str, plan: Mapping[str, Any]) -> Finding:
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


def _same_machines(asked: Asked, name: str, fleet: Rows, plan: Mapping[str, Any]) -> Finding:
    """Return whether a plan's machines are of the fleet, or of the job's share of it: all of them, or fewer."""
    share = asked.shares[name]
    here: dict[tuple[Any, ...], int] = {}
    for row in fleet:
        rate = _rounded(row.get("network_bytes_per_s"))
        key = row["device"], row["devices_per_machine"], rate, None if rate is None else _rounded(row["latency_s"])
        here[key] = here.get(key, 0) + math.floor(row["count"] * share + LIMITED)
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


def _figures(asked: Asked, name: str, choice: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the figures of a fleet are those that its trainings and its offers make."""
    bill = asked.bill(choice["fleet"], choice["training_s"])
    for key, found in (("breakdown_s", bill.run_s), ("breakdown_usd", bill.money_usd)):
        pairs = [
            (part, choice[key].get(part, math.nan), found.get(part, math.nan)) for part in {**found, **choice[key]}
        ]
        yield agreement(f"{name}.{key}", pairs)
    yield agreement(
        f"{name} figures",
        [
            ("wall_time_s", choice["wall_time_s"], bill.wall_s),
            ("cost_usd", choice["cost_usd"], bill.cost_usd),
            ("spent_usd", choice["spent_usd"], bill.spent_usd),
            ("capital_usd", choice["capital_usd"], bill.capital_usd),
            ("energy_j", choice["energy_j"], bill.energy_j),
            ("power_w", choice["power_w"], bill.power_w),
            ("objective", choice["objective"], bill.value_of(asked.procure)),
        ],
    )
    one_run = {job: seconds * asked.stretch for job, seconds in choice["training_s"].items()}
    runs = job_parts_s(asked.procure, choice["fleet"], one_run)
    wall_s = {job: sum(parts.values()) for job, parts in runs.items()}
    stated = choice["job_wall_s"]
    pairs = [(job, stated.get(job, math.nan), wall_s.get(job, math.nan)) for job in {**wall_s, **stated}]
    yield agreement(f"{name}.job_wall_s", pairs)
    for key, whole in (("breakdown_s", "wall_time_s"), ("breakdown_usd", "cost_usd")):
        total = sum(choice[key].values())
        wrong = f"to {total:.12g}, not to {choice[whole]:.12g}"
        yield holds(f"{name}.{key} sums up", agree(total, choice[whole]), f"to {total:.9g}", wrong)


def _margin(asked: Asked, document: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield whether the deadlines hold up to the stated margin, and no longer; of several jobs, and the month, too."""
    margin, choice, procure = document["margin"], document["choice"], asked.procure
    if margin is None or (procure.jobs is None and procure.deadline is None):
        yield holds("margin", margin is None, "none", f"{margin} is stated, and there is no deadline")
        return

    def rest(longer: float) -> float:
        """Return the largest share of a deadline that is used, with training so many times as long as predicted."""
        used = asked.bill(choice["fleet"], choice["training_s"], longer).wall_s / (procure.deadline or S_PER_MONTH)
        if procure.jobs is None:
            return used
        seconds = {name: part * asked.stretch * longer for name, part in choice["training_s"].items()}
        done = done_by_s(procure, choice["fleet"], seconds)
        return max([used, *(done[job.name] / job.deadline for job in procure.jobs if job.deadline)])

    ends = [rest(1 + margin + more) for more in (-_MARGIN, _MARGIN)]
    is_ok = ends[0] <= 1 + LIMITED and ends[1] > 1 - LIMITED
    wrong = f"with training {margin:+.2%} longer a run takes {ends[1]:.9g} times as long as it may"
    yield holds("margin", is_ok, f"{margin:+.2%}", wrong)


# -- other fleets ----------------------------------------------------------------------------------------------------


def _others(asked: Asked, document: Mapping[str, Any], recomputed: Recomputed) -> Iterator[Finding]:
    """Yield whether other fleets are as stated, none better than the answer, and points of the trade-off beat none."""
    bound, value = document["objective"]["bound"], document["objective"]["value"]
    lists = (("alternatives", document["alternatives"]), ("pareto", _points(document)))
    for name, rows in lists:
        for index, row in enumerate(rows):
            if set(row["training_s"]) != set(asked.shares):
                yield Finding(name=f"{name}.{index}", is_ok=False, text="its jobs are not those of the question")
                continue
            found = [*_figures(asked, f"{name}.{index}", row), *fleet_limits(asked, f"{name}.{index}", row)]
            found += [
                agreement(
                    f"{name}.{index} plan of {job}", [(job, plan["objective"], row["training_s"].get(job, math.nan))]
                )
                for job, plan in row.get("plans", {}).items()
            ]
            for job, plan in row.get("plans", {}).items():
                if job in asked.shares:
                    found += _planned_anew(asked, f"{name}.{index} plan of {job}", document, job, row, plan, recomputed)
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
    asked: Asked,
    name: str,
    document: Mapping[str, Any],
    job: str,
    row: Mapping[str, Any],
    plan: Mapping[str, Any],
    recomputed: Recomputed,
) -> Iterator[Finding]:
    """Yield what is wrong about the plan of a job on another fleet, whose question is that of the answer's plan."""
    objective, bound = plan["objective"], plan["bound"]
    is_ok = 0 <= bound <= objective * (1 + SAME) and (plan["status"] == "optimal") == agree(bound, objective)
    wrong = f"{plan['status']}, with a bound of {bound:.9g} of {objective:.9g}"
    yield holds(f"{name} bound", is_ok, plan["status"], wrong)
    chosen = document["choice"]["plans"][job]["problem"]
    given = next((one.dnn for one in asked.procure.jobs or [] if one.name == job), asked.spec.dnn)
    stated = {} if given is None else given.model_dump(exclude_unset=True)
    # What the answer's own devices made of the network is another fleet's own.
    dnn = {key: part for key, part in chosen["dnn"].items() if key in stated or key not in _TYPES}
    devices = {
        one["device"]["name"]: one["device"] for one in chosen["cluster"]["machines"] if isinstance(one["device"], dict)
    }
    custom = {one["name"]: one for one in document["problem"]["procure"].get("custom_devices") or ()}
    machines = [
        _machines_of(one, math.floor(one["count"] * asked.shares[job] + LIMITED), {**devices, **custom})
        for one in row["fleet"]
    ]
    machines = [one for one in machines if one["count"] > 0]
    if len({one["name"] for one in machines}) < len(machines):  # one instance on two terms
        kept = [one for one in row["fleet"] if math.floor(one["count"] * asked.shares[job] + LIMITED) > 0]
        for machine, one in zip(machines, kept, strict=True):
            machine["name"] = f"{one['instance']} {one['term']}"
    question = {**chosen, "dnn": dnn, "cluster": {"name": "fleet", "machines": machines}, "families": [plan["family"]]}
    faults = recomputed(question, plan["family"], plan["configuration"], objective)
    yield from (replace(fault, name=f"{name} {fault.name}") for fault in faults)


def _machines_of(row: Mapping[str, Any], count: int, devices: Mapping[str, Any]) -> dict[str, Any]:
    """Return machines of an offer, as a question has them."""
    found = {
        "name": row["instance"],
        "count": count,
        "device": devices.get(row["device"], row["device"]),
        "devices": row["devices_per_machine"],
    }
    if row.get("inside") is not None and row["devices_per_machine"] > 1:
        found["inside"] = row["inside"]
    if row.get("network_bytes_per_s") is not None:
        found["network"] = format_exact(row["network_bytes_per_s"], Dimension.RATE)
        found["latency"] = format_exact(row["latency_s"], Dimension.TIME)
    return found


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

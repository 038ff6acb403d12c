"""What the question of a purchase is answered with: a fleet, what its run takes and costs, and what is proven.

First the answer as data; then its words: what it rests on, what its reader should mind before paying, what binds; and
last the document ``planner.procurement/1``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from planner.constraints import FLEET_LIMITS, is_within
from planner.frozen import frozen
from planner.models.money import S_PER_H
from planner.names import OF_TRANSFORMERS
from planner.plan import Plan
from planner.procurement.fleet import CRITERIA, Fleet
from planner.procurement.prices import OLD_DAYS, Term
from planner.procurement.question import Procurement
from planner.procurement.search import Fleets
from planner.shown import Recorded, document_of
from planner.solution import Status, gap_of
from planner.units import Dimension, format_human, parse
from planner.words import joined, percent_words, term_words, usd_words

SOONER, LITTLE_SOONER, LATER = 0.6, 0.85, 2.0  # of the answer's time: other ends that are told of
MUCH_DEARER = 4.0  # times the answer's cost: so much for a much earlier end, and one a little earlier is told of
NEAR = 0.01  # share of a time, or of a cost


@frozen
class Choice:
    """A fleet and what training on it takes.

    Attributes
    ----------
    fleet, objective
        The machines; and what the question minimises, of them.
    training_s
        Of each job, by its name: the time of its plan.
    wall_s
        Of each job, by its name: start-up, evaluation, checkpoints and failures included.
    run_s
        The parts of the wall time of all jobs together, which they sum to; of a month where jobs share the machines.
    money_usd
        The parts of the cost, which they sum to; of the run, or of a month.
    energy_j, power_w
        Electricity of the run, or of a month, and what the machines draw; None where unknown.
    capital_usd, spent_usd
        What is bought; and what has to be paid in all, the whole purchase instead of the run's share in it; of a month
        the first one's, with all that reservations take at the start.
    plans
        By the job's name.
    error
        Measured / predicted - 1 of such plans, its least and its largest, where that is known for all of them.
    unmeasured
        Devices of the fleet on which no training step was measured.
    carbon_g
        CO2 of the electricity, where its intensity and the energy are known.
    """

    fleet: Fleet
    objective: float
    training_s: Mapping[str, float]
    wall_s: Mapping[str, float]
    run_s: Mapping[str, float]
    money_usd: Mapping[str, float]
    energy_j: float | None
    power_w: float | None
    capital_usd: float
    spent_usd: float
    plans: Mapping[str, Plan]
    error: tuple[float, float] | None = None
    unmeasured: tuple[str, ...] = ()
    carbon_g: float | None = None

    @property
    def worth_usd(self) -> float:
        """What is bought, less the run's share in it (a month's): its worth afterwards, by straight-line wear."""
        return self.capital_usd - self.money_usd.get("capital", 0.0)

    @property
    def training_parts_s(self) -> dict[str, float]:
        """Where the time of training goes, of the terms of an iteration of the plans; of one job, without failures.

        Empty where jobs share the machines, each with its own terms.
        """
        if len(self.plans) != 1 or "training" not in self.run_s:
            return {}
        (plan,) = self.plans.values()
        terms, whole_s = plan.prediction.breakdown_s, plan.prediction.iteration_time_s
        return {term: self.run_s["training"] * seconds / whole_s for term, seconds in terms.items()} if whole_s else {}

    @property
    def total_wall_s(self) -> float:
        """The sum of the parts."""
        return sum(self.run_s.values())

    @property
    def upfront_usd(self) -> float:
        """What of the rent is paid at the start, of what is reserved."""
        each = zip(self.fleet.offers, self.fleet.counts, strict=True)
        return sum(count * (offer.upfront_usd or 0.0) for offer, count in each)

    @property
    def at_once_usd(self) -> float:
        """What is paid at the start: all that is bought, and what reservations take then."""
        return self.capital_usd + self.upfront_usd

    @property
    def cost_usd(self) -> float:
        """The sum of the parts."""
        return sum(self.money_usd.values())

    @property
    def key_assumptions(self) -> list[str]:
        """The assumptions that change the plans of the jobs, with their effect, each once; whose, where not of all."""
        jobs_of: dict[str, list[str]] = {}
        for name, plan in self.plans.items():
            for line in plan.key_assumptions:
                jobs_of.setdefault(line, []).append(name)
        return [
            line if len(names) == len(self.plans) else f"{joined(names)}: {line}" for line, names in jobs_of.items()
        ]


@frozen
class Risk:
    """What a fleet comes to at the pessimistic end of the predictions' error.

    Attributes
    ----------
    training_s
        Of each job, by its name: what its training takes there.
    origin
        Whose error that is, in words.
    wall_s, cost_usd
        Of all jobs together: how long they take there, and what they cost.
    missed
        Limits that are missed there: what each comes to, and the limit.
    """

    training_s: Mapping[str, float]
    origin: str
    wall_s: float
    cost_usd: float
    missed: tuple[str, ...]


@frozen
class Certificate:
    """What was proven, over what.

    Attributes
    ----------
    status, objective, bound
        What was proven; what the chosen fleet comes to, and what no fleet beats.
    bounds
        By the most types of machines in a fleet: what no fleet of so many types beats.
    domain
        Over what, in words.
    num_offers, num_markets, num_planned
        Offers that could be had, sets of them that were searched, fleets that were planned.
    """

    status: Status
    objective: float
    bound: float
    bounds: Mapping[int, float]
    domain: tuple[str, ...]
    num_offers: int
    num_markets: int
    num_planned: int

    @property
    def gap(self) -> float:
        """Share of the objective that is not proven."""
        return gap_of(self.objective, self.bound)


@frozen
class Tradeoff:
    """A point of the trade of time against money; ``is_tie``: closer to the one before than the known error."""

    choice: Choice
    is_tie: bool = False


@frozen
class ParetoSet:
    """The fleets that none beats in time and money; ``gap``: by what factor less 1 one that is left might beat them."""

    points: tuple[Tradeoff, ...]
    status: Status
    gap: float


@frozen
class WhatIf:
    """What one change does: the best fleet then, and whether it is another one."""

    change: str
    fleet: Fleet | None
    objective: float
    changes_decision: bool
    words: str = ""


@frozen
class BreakEven:
    """Renting against buying the same machine.

    ``hours_per_month``: of use, from which on buying costs less; None: never. ``rows``: hours, rent and ownership in
    dollars a month. ``payback_months``: of use around the clock, after which the rent has come to what buying takes;
    None: not in the machine's life. ``curve``: months, and dollars paid by then, rented and bought. ``committed_h``: of
    rent, which are left out. ``note``: what else to know about it.
    """

    rented: str
    bought: str
    hours_per_month: float | None
    rows: tuple[tuple[float, float, float], ...]
    committed_h: float = 0.0
    note: str = ""
    payback_months: float | None = None
    curve: tuple[tuple[float, float, float], ...] = ()

    @property
    def words(self) -> str:
        """What to know about it."""
        commitment = f"the commitment to {self.committed_h:,.0f} h of rent is left out" if self.committed_h else ""
        return "; ".join(filter(None, (commitment, self.note)))


@frozen
class Procured(Recorded):
    """What to buy or rent, and how sure that is.

    Attributes
    ----------
    objective_name
        What is minimised: ``cost``, ``time``, ``energy`` or ``value_of_time``.
    choice
        The best fleet that was found.
    certificate
        What is proven of it.
    explanation
        What binds, and why others lost.
    alternatives
        Fleets that lost, each with the reason.
    by_deadline
        Of the fleets that were planned those that none of them beats in time and money, fastest first, with which limit
        on these each would miss; of one training.
    margin
        Share by which training may take longer until a deadline is missed; None where nothing misses one.
    risk
        What the choice comes to at the pessimistic end; None where no such end is known.
    stretch
        What training was taken to take over what is predicted.
    break_even
        Renting against buying, of machines that can be had both ways.
    pareto
        The fleets that none beats in time and money, where they were asked for.
    what_if
        What single changes do to the decision.
    assumptions, warnings, not_modelled
        What was taken to hold, what to know, and what no figure here counts.
    prices, problem
        Where prices are from; and the resolved question, so that a document of the answer needs no other file.
    """

    objective_name: str
    choice: Choice
    certificate: Certificate
    explanation: tuple[str, ...]
    alternatives: tuple[tuple[Choice, str], ...]
    by_deadline: tuple[tuple[Choice, str], ...]
    margin: float | None
    risk: Risk | None
    stretch: float
    break_even: tuple[BreakEven, ...]
    pareto: ParetoSet | None
    what_if: tuple[WhatIf, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    prices: Mapping[str, Any]
    problem: Mapping[str, Any]

    def __repr__(self) -> str:
        """Return what a prompt shows: the fleet, its time and cost, and the proof; :meth:`to_dict` has all of it."""
        hours, proof = self.choice.total_wall_s / 3600, self.certificate
        value = f"{hours:.4g} h, {self.choice.cost_usd:,.2f} USD"
        gap = f", gap {proof.gap:.1%}" * bool(proof.gap)
        return f"<Procured: {self.choice.fleet.headline}, {value}, {proof.status.value}{gap}>"

    @property
    def sooner(self) -> tuple[Choice, str] | None:
        """The cheapest of ``by_deadline`` in a good half of the answer's time, else in a little less than that time."""
        best, much = self.choice, MUCH_DEARER * self.choice.cost_usd
        for share, most_usd in ((SOONER, much), (LITTLE_SOONER, np.inf)):
            least_s = share * best.total_wall_s
            rows = [row for row in self.by_deadline if is_within(row[0].total_wall_s, least_s)]
            if rows := [row for row in rows if is_within(row[0].cost_usd, most_usd)]:
                return min(rows, key=lambda row: row[0].cost_usd)
        return None

    @property
    def later(self) -> tuple[Choice, str] | None:
        """The cheapest of ``by_deadline`` in twice the answer's time, where that saves something."""
        best = self.choice
        rows = [row for row in self.by_deadline if row[0].total_wall_s > best.total_wall_s]
        rows = [row for row in rows if is_within(row[0].total_wall_s, LATER * best.total_wall_s)]
        rows = [row for row in rows if row[0].cost_usd < best.cost_usd * (1 - NEAR)]
        return min(rows, key=lambda row: row[0].cost_usd, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the document ``planner.procurement/1``; each chosen plan is a whole ``planner.plan/1`` in it."""
        certificate, pareto = self.certificate, self.pareto
        return {
            "schema": "planner.procurement/1",
            "status": certificate.status.value,
            "problem": dict(self.problem),
            "objective": {
                "name": self.objective_name,
                "value": certificate.objective,
                "bound": certificate.bound,
                "gap": certificate.gap,
            },
            "choice": {**_choice(self.choice), "plans": {n: p.to_dict() for n, p in self.choice.plans.items()}},
            "certificate": {
                "bounds_by_types": {str(number): bound for number, bound in certificate.bounds.items()},
                **document_of(certificate, "domain", "num_offers", "num_markets", "num_planned"),
            },
            "margin": self.margin,
            "risk": None if self.risk is None else asdict(self.risk),
            **document_of(self, "stretch", "explanation"),
            **{
                key: [{**_choice(choice), "plans": _plans(choice), "words": words} for choice, words in rows]
                for key, rows in (("alternatives", self.alternatives), ("by_deadline", self.by_deadline))
            },
            "break_even": [
                {
                    **document_of(row, "rented", "bought", "hours_per_month"),
                    "rows": [{"hours": hours, "rent_usd": rent, "buy_usd": buy} for hours, rent, buy in row.rows],
                    "payback_months": row.payback_months,
                    "curve": [{"months": months, "rent_usd": rent, "buy_usd": buy} for months, rent, buy in row.curve],
                    "words": row.words,
                }
                for row in self.break_even
            ],
            "pareto": None
            if pareto is None
            else {
                "status": pareto.status.value,
                "gap": pareto.gap,
                "points": [
                    {**_choice(point.choice), "is_tie": point.is_tie, "plans": _plans(point.choice)}
                    for point in pareto.points
                ],
            },
            "what_if": [
                {**document_of(row, "change"), "fleet": None if row.fleet is None else _fleet(row.fleet)}
                | document_of(row, "objective", "changes_decision", "words")
                for row in self.what_if
            ],
            "assumptions": [*self.choice.key_assumptions, *self.assumptions],
            **document_of(self, "warnings", "not_modelled", "prices"),
        }

    def to_records(self) -> list[dict[str, object]]:
        """Return a row of each fleet that the answer names: the choice, runners-up, and trades of time for money."""
        rows = [("choice", self.choice), *(("alternative", choice) for choice, _ in self.alternatives)]
        rows += [("pareto", point.choice) for point in (self.pareto.points if self.pareto else ())]
        return [
            {
                "kind": kind,
                "fleet": choice.fleet.headline,
                "num_devices": choice.fleet.num_devices,
                "objective_name": self.objective_name,
                "objective": choice.objective,
                "cost_usd": choice.cost_usd,
                "spent_usd": choice.spent_usd,
                "wall_time_s": choice.total_wall_s,
                "energy_j": choice.energy_j,
                "family": joined(list(dict.fromkeys(plan.family for plan in choice.plans.values()))),
                "plans": joined([plan.configuration.headline for plan in choice.plans.values()]),
                **{f"breakdown_usd.{part}": usd for part, usd in choice.money_usd.items()},
                **{f"breakdown_s.{part}": seconds for part, seconds in choice.run_s.items()},
            }
            for kind, choice in rows
        ]


# --- In words: what an answer rests on, what its reader should mind before paying, and what binds

LIMITS = {  # how a criterion is called, and in what it is counted
    "cost": ("cost", Dimension.MONEY),
    "value_of_time": ("cost with the value of its time", Dimension.MONEY),
    "energy": ("energy", Dimension.ENERGY),
    **{limit.criterion: (limit.key.replace("_", " "), limit.dimension) for limit in FLEET_LIMITS},
}
_SHORT_S = 60.0  # of billing, which no run feels
_CHEAP = 0.2  # of the price on demand; spot machines usually cost 0.3 to 0.6 of it
_LEAST_SHARE, _MOST_TERMS = 0.005, 4  # of a training's terms that are told
_CLOSE = 0.05  # of a limit: nearer to it, it binds


def rate_unit(procurement: Procurement) -> str:
    """Return in what the question counts money for a time: an hour where it has no such budget."""
    block = procurement.resolved.get("procure") or {}
    budgets = block.get("budget")
    given = [block.get("budget_rate"), *(budgets if isinstance(budgets, list) else [budgets])]
    return next((f"USD/{str(one).rpartition('/')[2].strip()}" for one in given if "/" in str(one)), "USD/h")


def amount(value: float, name: str, per: str = "USD/h") -> str:
    """Return a criterion's value for reading; ``per``: in what money for a time is counted."""
    if name not in LIMITS:
        return f"{value:.0f}"
    dimension = LIMITS[name][1]
    if dimension is Dimension.MONEY_RATE:
        return f"{value / parse(f'1 {per}', dimension):,.2f} {per}"
    return usd_words(value) if dimension is Dimension.MONEY else format_human(value, dimension)


def enough(value: float, name: str, per: str = "USD/h") -> str:
    """Return a limit for reading, rounded up: whoever types it in is allowed the value."""
    shown = value
    while parse((text := amount(shown, name, per)).replace(",", ""), LIMITS[name][1]) < value:
        shown = max(shown * 1.0005, shown + (0.005 if LIMITS[name][1] is Dimension.MONEY else 0.0))
    return text


def begins_anew(fleets: Fleets) -> bool:
    """Whether machines that may be had fail, or are taken away, and nothing says what a checkpoint takes."""
    run = fleets.procurement.asked.run
    fails = run.mean_time_between_failures is not None or run.device_failures_s is not None
    return run.checkpoint_s is None and (fails or any(offer.interruptions_per_h for offer in fleets.offers))


def assumptions_of(fleets: Fleets) -> list[str]:
    """Return what was assumed of the run, of the network's numbers and of the error."""
    run, jobs = fleets.procurement.asked.run, fleets.procurement.jobs
    rates = fleets.procurement.asked.rates
    lines = [f"1 {code.upper()} is {rate:g} USD (procure.rates)" for code, rate in rates.items()]
    if run.checkpoint_size is not None and run.storage_rate is not None and run.checkpoint_s is not None:
        size, rate = format_human(run.checkpoint_size, Dimension.DATA), format_human(run.storage_rate, Dimension.RATE)
        lines.append(f"a checkpoint is {size}, written at {rate} while training stands still (procure.run)")
    if run.mean_time_between_failures_of_device == "llama3":
        lines.append("devices fail as published of Llama 3: 419 times in 54 days on 16,384 GPUs (arXiv:2407.21783)")
    if begins_anew(fleets):
        lines.append(
            "no checkpoints: training begins anew after every failure (procure.run.storage_rate, or checkpoint)"
        )
    if run.mean_time_between_failures is None and run.device_failures_s is None:
        lines.append("no machine fails (procure.run.mean_time_between_failures)")
    if not run.start_up:
        lines.append("machines start at once (procure.run.start_up)")
    if any(offer.is_bought for offer in fleets.offers) and not fleets.procurement.is_monthly:
        used = f"{percent_words(fleets.procurement.asked.utilisation)} of its life"
        lines.append(f"what is bought trains {used}, this training and others (procure.utilisation)")
    machine = Fleet(offers=fleets.offers[:1], counts=(1,))
    open_types = [
        oracle for job, oracle in zip(jobs, fleets.oracles, strict=True) if "dtype" not in job.question["dnn"]
    ]
    if any(oracle.problem(machine, has_pins=False).training.dtype == "fp32" for oracle in open_types):
        lines.append("numbers of 32 bits (dnn.dtype: bf16 or fp16 uses what most devices are bought for)")
    if fleets.stretch != 1:
        longer = percent_words(fleets.stretch - 1)
        lines.append(f"training takes {longer} longer than predicted in time, cost and tables (--robust)")
    if any(oracle.calibration.get("pessimistic") for oracle in fleets.oracles):
        lines.append("every device computes as slowly as the band of its seconds allows (calibration.pessimistic)")
    return lines


def warnings_of(fleets: Fleets, choice: Choice) -> tuple[str, ...]:
    """Return what speaks against relying on an answer, that of its plans included, each once."""
    procurement, offers = fleets.procurement, choice.fleet.offers
    lines = []
    if number := fleets.num_contradictions:
        lines.append(f"{number} bounds of plans on more machines were beaten by plans on fewer; none is relied on")
    oldest = min(offer.date for offer in offers)
    if (age := (procurement.today - oldest).days) > OLD_DAYS:
        lines.append(f"a price is of {oldest.isoformat()}, {age} days old; ask for today's before buying")
    if any(offer.term is Term.SPOT and not offer.interruptions_per_h for offer in offers):
        lines.append("spot machines are taken never to be taken away (procure.run.mean_time_between_interruptions)")
    listed = {
        (offer.provider, offer.instance, offer.region): offer.usd_per_h
        for offer in procurement.prices.offers
        if offer.term is Term.ON_DEMAND
    }
    for offer in offers:
        usual = listed.get((offer.provider, offer.instance, offer.region))
        if offer.term is Term.SPOT and usual and offer.usd_per_h < _CHEAP * usual:
            share = offer.usd_per_h / usual
            lines.append(f"{offer.instance} is listed at {share:.0%} of its price on demand: see what it costs today")
    granules_usd = sum(  # where each run of a month is billed in granules, which the sum of the month leaves out
        count * offer.usd_per_h * offer.billing_s / S_PER_H
        for offer, count in zip(offers, choice.fleet.counts, strict=True)
        if offer.billing_s > _SHORT_S
    )
    if procurement.is_monthly and granules_usd:
        most = usd_words(granules_usd * sum(job.runs_per_month for job in procurement.jobs))
        lines.append(f"machines are billed in long granules: up to {most} a month more")
    of_plans = [warning for plan in choice.plans.values() for warning in (*plan.cautions, *plan.warnings)]
    return (*lines, *dict.fromkeys(of_plans))


_MOVED = "layers dealt out evenly to chunks of a device: single ones are moved near a fleet's best layout, unproven"


def domain_of(fleets: Fleets) -> tuple[str, ...]:
    """Return over what a fleet is proven to be best."""
    asked = fleets.procurement.asked
    types = "one type" if asked.most_types == 1 else f"up to {asked.most_types} types"
    number = len(fleets.offers)
    return (
        f"{number} offer{'s' * (number != 1)}, fleets of {types} of machines of one region, up to {asked.most_devices} "
        f"devices of a type",
        f"trainings by {' or '.join(fleets.families)}, on the global batch of the question",
        *([_MOVED] if OF_TRANSFORMERS in fleets.families else []),
    )


def reasons_of(fleets: Fleets, choice: Choice) -> tuple[str, ...]:
    """Return where a training's time goes, by the terms of its plan, and which limits are near."""
    account, per, lines = fleets.account, rate_unit(fleets.procurement), []
    for name, plan in choice.plans.items():
        whole_s = plan.prediction.iteration_time_s
        terms = [(term, seconds / whole_s) for term, seconds in plan.prediction.breakdown_s.items() if whole_s]
        told = sorted(((share, term) for term, share in terms if share > _LEAST_SHARE), reverse=True)[:_MOST_TERMS]
        shares = joined([f"{100 * share:.1f} % {term_words(term)}" for share, term in told])
        predicted = " as predicted, without --robust" * (fleets.stretch != 1)
        words = f"training takes {format_human(choice.training_s[name], Dimension.TIME)}{predicted}: {shares}"
        lines.append(words if len(choice.plans) == 1 else f"{name}: {words}")
    used = account.usage(choice.fleet, list(choice.training_s.values())).criteria
    for name in CRITERIA:
        limit, value = account.limits[name], used[name]
        if np.isfinite(limit) and name in LIMITS:
            near = "binds" if value > limit * (1 - _CLOSE) else "holds"
            called = "month" if name == "time" and fleets.procurement.is_monthly else LIMITS[name][0]
            lines.append(f"the {called} {near}: {amount(value, name, per)} of {amount(limit, name, per)}")
    return (*lines, *_too_dear_to_buy(fleets))


def _too_dear_to_buy(fleets: Fleets) -> Iterator[str]:
    """Yield that no machine to buy is within the limits on money, where buying was asked for and none is.

    Every fleet that buys pays for at least one machine, so the cheapest one bounds them all.
    """
    bought = [offer for offer in fleets.procurement.offers if offer.is_bought]
    if not bought:
        return
    least = min(bought, key=lambda one: (one.purchase_usd, one.name))
    name = min(("spent", "capital"), key=lambda one: fleets.account.limits[one])
    if not is_within(least.purchase_usd, fleets.account.limits[name]):
        price = amount(least.purchase_usd, name)
        yield f"no machine to buy is within the {LIMITS[name][0]}: the cheapest, {least.instance}, costs {price}"


# --- ``planner.procurement/1``: the answer as plain data, seconds, joules, watts and dollars as the keys say


def _fleet(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the rows of a fleet: how many of which offer, as it stands in the list."""
    rows = []
    for offer, count in zip(fleet.offers, fleet.counts, strict=True):
        row = {key: value for key, value in asdict(offer).items() if value is not None}
        rows.append({"count": count, **row, "term": offer.term.value, "date": offer.date.isoformat()})
    return rows


def _choice(choice: Choice) -> dict[str, Any]:
    """Return a choice without its plans."""
    return {
        "fleet": _fleet(choice.fleet),
        **document_of(choice, "objective", "cost_usd", "spent_usd"),
        "breakdown_usd": dict(choice.money_usd),
        "wall_time_s": choice.total_wall_s,
        "breakdown_s": dict(choice.run_s),
        "training_s": dict(choice.training_s),
        "job_wall_s": dict(choice.wall_s),
        **document_of(choice, "energy_j", "power_w", "capital_usd", "worth_usd", "unmeasured"),
        **({} if choice.carbon_g is None else {"carbon_g": choice.carbon_g}),
        **({} if not choice.upfront_usd else {"upfront_usd": choice.upfront_usd}),
        "error": None if choice.error is None else {"low": choice.error[0], "high": choice.error[1]},
    }


def _plans(choice: Choice) -> dict[str, dict[str, Any]]:
    """Return how each job trains on a fleet that is not the answer: its family and configuration, and their proof."""
    names = ("status", "objective", "bound", "family", "configuration")
    return {job: document_of(plan, *names) for job, plan in choice.plans.items()}

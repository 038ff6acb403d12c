"""An answer as text for a terminal: what to have, whether that is proven, what it takes and costs, and what else."""

from collections.abc import Callable, Mapping, Sequence
from math import inf

from planner.procurement.answer import BreakEven, Certificate, Choice, ParetoSet, Procured
from planner.procurement.notes import key_assumptions_of
from planner.procurement.words import amount, break_even_words
from planner.report import assumption_lines, table
from planner.solution import SAME, Status
from planner.units import Dimension, format_human
from planner.words import SEARCH_SPACE, percent_words, time_words, usd_words

__all__ = ["procured_text"]

_GOALS = {"cost": "cost", "time": "time", "energy": "energy", "value_of_time": "cost"}
_WIDTH = 60  # of the drawn trade-off
_MOST_POINTS = 24
_MANY_TIMES = 10  # from there on a ratio is told as such, not in percent
_WORDS = {"start_up": "start-up", "failures": "failures and restarts", "capital": "share in what is bought"}


def procured_text(found: Procured) -> str:
    """Return an answer as text, without colour."""
    choice = found.choice
    lines = [
        f"{'Buy or rent' if choice.capital_usd else 'Rent'}: {choice.fleet.headline}",
        _verdict(found),
        "",
        *_fleet_lines(choice),
        "",
        f"  {_time_and_cost(found)}{_besides(choice)}",
        f"  {_margin(found)}",
        "",
        *assumption_lines(key_assumptions_of(choice)),
        *_breakdown("Where the time goes", choice.run_s, time_words),
        *_breakdown("Where the money goes", choice.money_usd, usd_words),
        "",
        *_plan_lines(choice),
        "",
        "Why",
        *(f"  {line}" for line in found.explanation),
        "",
        *_alternative_lines(found),
        *_pareto_lines(found.pareto),
        *_what_if_lines(found),
        *_break_even_lines(found.break_even),
        *_notes(found),
    ]
    return "\n".join(lines)


def _objective(value: float, name: str) -> str:
    """Return an objective for reading."""
    return amount(value, _GOALS[name]) + (" with the value of its time" if name == "value_of_time" else "")


def _verdict(found: Procured) -> str:
    """Return what is proven."""
    one: Certificate = found.certificate
    name = found.objective_name
    if one.status is Status.OPTIMAL:
        return f"Proven optimal within {SEARCH_SPACE}: {_objective(one.objective, name)}."
    proven = [number for number, bound in one.bounds.items() if one.objective - bound <= SAME * one.objective]
    among = f" Among fleets of {max(proven)} type{'s' * (max(proven) > 1)} it is proven." if proven else ""
    return (
        f"Best found, not proven: {_objective(one.objective, name)}; none has less than "
        f"{_objective(one.bound, name)} (gap {percent_words(one.gap)}).{among}"
    )


def _fleet_lines(choice: Choice) -> list[str]:
    """Return the shopping list."""
    rows = [
        {
            "count": count,
            "machine": offer.instance,
            "terms": ", ".join(filter(None, (offer.term.value, offer.tier))),
            "from": f"{offer.provider} {offer.region}",
            "devices": f"{offer.devices_per_machine} x {offer.device}",
            "USD each": f"{offer.purchase_usd:,.0f}" if offer.purchase_usd else f"{offer.usd_per_h:,.4g}/h",
            "price of": offer.date.isoformat(),
        }
        for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)
    ]
    return [f"  {line}" for line in table(rows).splitlines()]


def _time_and_cost(found: Procured) -> str:
    """Return what a run takes and costs, or what the jobs of a month do."""
    time, cost = time_words(found.choice.total_wall_s), usd_words(found.choice.cost_usd)
    return f"{time} of work a month, cost {cost} a month" if _is_monthly(found) else f"wall time {time}, cost {cost}"


def _is_monthly(found: Procured) -> bool:
    """Whether several jobs share the machines month after month."""
    return found.problem["procure"].get("jobs") is not None if found.problem.get("procure") else False


def _besides(choice: Choice) -> str:
    """Return what is bought, energy and power, where they are known."""
    parts = [f"; {usd_words(choice.spent_usd)} to pay in all"] if choice.capital_usd else []
    if choice.energy_j is not None and choice.power_w is not None:
        energy, power = format_human(choice.energy_j, Dimension.ENERGY), format_human(choice.power_w, Dimension.POWER)
        parts.append(f"; {energy} at {power}")
    return "".join(parts)


def _margin(found: Procured) -> str:
    """Return how wrong the prediction may be, and is known to be."""
    error = found.choice.error
    band = "not measured for such plans" if error is None else f"{error[0]:+.0%} to {error[1]:+.0%}"
    if found.margin is None:
        return f"known error of the training time: {band}"
    what = "all jobs are in time" if _is_monthly(found) else "the deadline holds"
    many = f"until training takes {1 + found.margin:,.0f} times as long as predicted"
    margin = f"for errors up to {found.margin:+.0%}" if 1 + found.margin < _MANY_TIMES else many
    return f"{what} {margin}; the known error of the training time: {band}"


def _breakdown(title: str, parts: Mapping[str, float], shown: Callable[[float], str]) -> list[str]:
    """Return the parts of a sum that are not 0, with their shares."""
    total = sum(parts.values())
    return [
        title,
        *(
            f"  {_WORDS.get(name, name):24} {shown(value):>14}  {value / total:6.1%}"
            for name, value in parts.items()
            if total and value > 1e-6 * total
        ),
    ]


def _plan_lines(choice: Choice) -> list[str]:
    """Return the plan of each job in a line."""
    lines = ["Train by"]
    for name, plan in choice.plans.items():
        what = "" if len(choice.plans) == 1 else f"{name}: "
        status = "proven" if plan.status is Status.OPTIMAL else f"gap {plan.gap:.2%}"
        lines.append(f"  {what}{plan.family} on {plan.configuration.headline}, {time_words(plan.objective)} ({status})")
    if len(choice.plans) > 1:
        return [*lines, "  the whole plans stand in --json and --out; `planner check` reads them"]
    return [*lines, "  the whole plan stands in --json and --out; `planner explain` and `planner check` read it"]


def _alternative_lines(found: Procured) -> list[str]:
    """Return the best fleets of other offers."""
    if not found.alternatives:
        return []
    best = found.choice.objective
    lines = ["Alternatives considered"]
    for choice, words in found.alternatives:
        ratio = choice.objective / best if best else 1.0
        loss = f"{ratio - 1:+.1%}" if ratio < _MANY_TIMES else f"x {ratio:,.0f}"
        cost = f"{choice.cost_usd:>12,.2f} USD {time_words(choice.total_wall_s):>9}"
        lines.append(f"  {choice.fleet.headline[:44]:44} {cost} {loss:>8}  {words}".rstrip())
    return [*lines, ""]


def _pareto_lines(found: ParetoSet | None) -> list[str]:
    """Return the trade-off of time against money: drawn, and as a table."""
    if found is None:
        return []
    points = found.points
    if not points:
        return ["Time against money: none was found in time; raise --time-limit", ""]
    proven = "proven: no fleet beats any of them in both"
    if found.status is not Status.OPTIMAL:
        proven = f"not proven; {_left(found.gap)}"
    title = f"Time against money, {_number(len(points), 'fleet')}, {proven}"
    lines = [f"{title}; * is a tie with the one above, by the known error"]
    most = max(one.choice.cost_usd for one in points)
    shown = list(points)
    if len(shown) > _MOST_POINTS:
        step = (len(shown) - 1) / (_MOST_POINTS - 1)
        shown = [points[round(index * step)] for index in range(_MOST_POINTS)]
    for one in shown:
        choice = one.choice
        bar = "#" * max(1, round(_WIDTH * choice.cost_usd / most / 2))
        tie = "*" if one.is_tie else " "
        cost = f"{time_words(choice.total_wall_s):>9}{tie} {choice.cost_usd:>12,.2f} USD"
        lines.append(f"  {cost} {bar:{_WIDTH // 2}} {choice.fleet.headline}")
    if len(shown) < len(points):
        lines.append(f"  {len(points) - len(shown)} more stand in --json")
    return [*lines, ""]


def _left(gap: float) -> str:
    """Return by how much fleets that were not looked at may beat those that were."""
    if gap == inf:
        return "how much better what was left may be is not known"
    many = f"what was left may be up to {1 + gap:,.0f} times better in both"
    return many if gap > 1 else f"what was left may be better by {gap:.1%} in both at most"


def _number(number: int, what: str) -> str:
    """Return a number of things."""
    return f"{number} {what}{'s' * (number != 1)}"


def _what_if_lines(found: Procured) -> list[str]:
    """Return which changes change the decision."""
    if not found.what_if:
        return []
    types = len(found.choice.fleet.offers)
    lines = [f"What if (fleets of up to {_number(types, 'type')})"]
    for one in found.what_if:
        if one.fleet is None:
            lines.append(f"  {one.change:36} {one.words}")
            continue
        decision = f"then {one.fleet.headline}" if one.changes_decision else "the same fleet"
        words = f" ({one.words})" if one.words else ""
        lines.append(f"  {one.change:36} {_objective(one.objective, found.objective_name):>16}  {decision}{words}")
    return [*lines, ""]


def _break_even_lines(rows: Sequence[BreakEven]) -> list[str]:
    """Return from when on buying costs less."""
    lines = []
    for one in rows:
        words = f"; {one.words}" if one.words else ""
        lines.append(f"Rent {one.rented} or buy {one.bought}: {break_even_words(one.hours_per_month)}{words}")
        months = [
            {"hours a month": hours, "rent USD": round(rent, 2), "buy USD": round(buy, 2)}
            for hours, rent, buy in one.rows
        ]
        lines += [f"  {line}" for line in table(months).splitlines()]
    return [*lines, ""] if lines else []


def _notes(found: Procured) -> list[str]:
    """Return assumptions, warnings, what is left out, and over what it was proven."""
    prices = found.prices
    offers, unusable = _number(prices["offers"], "offer"), _number(prices["unusable"], "row")
    listed = f"prices of {prices['oldest']} or later, {offers} ({unusable} unusable)"
    left_out = [f"{_number(number, 'offer')} {why} left out" for why, number in prices["left_out"].items()]
    one = found.certificate
    work = f"{_number(one.num_markets, 'set')} of offers, {_number(one.num_planned, 'fleet')} planned"
    searched = (*one.domain, work, *left_out)
    parts = (
        ("Prices", (listed,)),
        ("Also assumed", found.assumptions),
        ("Not modelled", found.not_modelled),
        ("Search space", searched),
    )
    warned = ["Warnings", *(f"  {line}." for line in found.warnings)] if found.warnings else []
    return warned + [f"{title}: {'; '.join(lines)}." for title, lines in parts if lines]

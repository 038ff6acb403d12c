"""What else was weighed for a purchase: other fleets, time against money, what if, rent or buy, and what is proven."""

from collections.abc import Sequence
from math import inf

from planner.page import figures
from planner.page.parts import Block, Bullets, Figure, Section, Table, Text, few, thinned
from planner.page.proof import History, certificate_figure, history_figures
from planner.page.words import many, time, usd
from planner.procurement.answer import BreakEven, ParetoSet, Procured
from planner.procurement.words import amount, break_even_words
from planner.solution import Status

__all__ = [
    "History",
    "alternatives_section",
    "break_even_section",
    "certificate_section",
    "pareto_section",
    "prices_section",
    "value_of",
    "what_if_section",
]

_GOALS = {"cost": "cost", "time": "time", "energy": "energy", "value_of_time": "cost"}
_UNITS = {"cost": "usd", "time": "s", "energy": "J", "value_of_time": "usd"}
_AXES = {"cost": "USD", "time": "s", "energy": "J", "value_of_time": "USD"}
_MOST_POINTS = 200
_MOST_ROWS = 100
_MOST_BARS = 30
_MUCH = 10  # times as good as the first fleet: beyond, an axis from 0 shows nothing of the end


def value_of(value: float, name: str) -> str:
    """Return an objective for reading."""
    return amount(value, _GOALS[name]) + (" with the value of its time" if name == "value_of_time" else "")


def alternatives_section(found: Procured) -> Section | None:
    """Return the best fleets of other offers."""
    if not found.alternatives:
        return None
    best, name = found.choice, found.objective_name
    shown = found.alternatives[:_MOST_BARS]
    rows = [("this fleet", best.objective, value_of(best.objective, name))]
    rows += [(one.fleet.headline, one.objective, value_of(one.objective, name)) for one, _ in shown]
    data, layout = figures.bars(rows, title=_GOALS[name], unit=_AXES[name], marked=0)
    is_cost = _UNITS[name] == "usd" and name != "value_of_time"
    columns = ("fleet", *(() if is_cost else (_GOALS[name],)), "cost", "wall time", "more", "what to know")
    table = Table(
        caption="Alternatives considered",
        columns=columns,
        rows=[
            (
                one.fleet.headline,
                *(() if is_cost else (value_of(one.objective, name),)),
                usd(one.cost_usd),
                time(one.total_wall_s),
                "" if one is best or not best.objective else f"{one.objective / best.objective - 1:+.1%}",
                words,
            )
            for one, words in ((best, "this fleet"), *found.alternatives[:_MOST_ROWS])
        ],
        numbers=range(1, len(columns) - 1),
        marked=(0,),
    )
    alt = f"Bars of this fleet and of {many(len(shown), 'other')}, by {_GOALS[name]}."
    figure = Figure(caption="This fleet against others", alt=alt, data=data, layout=layout, table=None)
    return Section(name="alternatives", title="Alternatives, and why they lost", blocks=[figure, table])


def pareto_section(found: ParetoSet | None) -> Section | None:
    """Return the trade-off of time against money."""
    if found is None:
        return None
    title = "Time against money"
    if not found.points:
        return Section(name="pareto", title=title, blocks=[Text("None was found in time; raise --time-limit.")])
    shown = thinned(found.points, _MOST_POINTS)
    longest_s = max(one.choice.total_wall_s for one in shown)
    by, unit = figures.scale_of(longest_s, "s")
    rows = [
        (
            one.choice.total_wall_s / by,
            one.choice.cost_usd,
            f"{one.choice.fleet.headline}: {time(one.choice.total_wall_s)}, {usd(one.choice.cost_usd)}",
        )
        for one in shown
    ]
    is_wide = rows[-1][0] > 20 * rows[0][0] > 0
    data, layout = figures.points(
        {"fleets": rows},
        x_title=f"wall time ({unit})",
        y_title="cost (USD)",
        lines=("fleets",),
        log_x=is_wide,
        steps=True,
    )
    table = Table(
        caption=f"{title}: fleets that none beats in both",
        columns=("wall time", "cost", "tie", "fleet"),
        rows=[
            (
                time(one.choice.total_wall_s),
                usd(one.choice.cost_usd),
                "tie" if one.is_tie else "",
                one.choice.fleet.headline,
            )
            for one in shown
        ],
        numbers=(0, 1),
        note=few(len(found.points), len(shown), "fleets", "--json has all of them"),
    )
    proven = (
        "Proven: no fleet beats any of them in both."
        if found.status is Status.OPTIMAL
        else f"Not proven; {_left(found.gap)}."
    )
    ties = " A tie is closer to the one before than the known error." if any(one.is_tie for one in shown) else ""
    alt = (
        f"Points of wall time against cost of {many(len(shown), 'fleet')}, from "
        f"{time(shown[0].choice.total_wall_s)} to {time(longest_s)}."
    )
    figure = Figure(caption=title, alt=alt, data=data, layout=layout, table=None)
    return Section(name="pareto", title=title, blocks=[Text(proven + ties), figure, table])


def _left(gap: float) -> str:
    """Return by how much fleets that were not looked at may beat those that were."""
    if gap >= _MUCH:
        return "how much better what was left may be is hardly known yet: raise --time-limit"
    return f"what was left may be better by {gap:.1%} in both at most"


def what_if_section(found: Procured) -> Section | None:
    """Return which changes change the decision."""
    if not found.what_if:
        return None
    name = found.objective_name
    rows = [
        (
            one.change,
            "" if one.fleet is None else value_of(one.objective, name),
            one.words
            if one.fleet is None
            else f"then {one.fleet.headline}"
            if one.changes_decision
            else "the same fleet",
            "" if one.fleet is None else one.words,
        )
        for one in found.what_if
    ]
    marked = [index for index, one in enumerate(found.what_if) if one.changes_decision]
    columns = ("change", _GOALS[name], "decision", "what to know")
    table = Table(caption="What if", columns=columns, rows=rows, numbers=(1,), marked=marked)
    known = [one for one in found.what_if if one.fleet is not None]
    if not known:
        return Section(name="what-if", title="What if", blocks=[table])
    bars = [("as it is", found.choice.objective, value_of(found.choice.objective, name))]
    bars += [(one.change, one.objective, value_of(one.objective, name)) for one in known]
    data, layout = figures.bars(bars, title=_GOALS[name], unit=_AXES[name], marked=0)
    alt = (
        f"Bars of the {_GOALS[name]} after each of {many(len(known), 'change')}; "
        f"{len(marked)} of them change the decision."
    )
    figure = Figure(caption=f"The {_GOALS[name]} after each change", alt=alt, data=data, layout=layout, table=None)
    return Section(name="what-if", title="What if", blocks=[figure, table])


def break_even_section(rows: Sequence[BreakEven]) -> Section | None:
    """Return from when on buying costs less than renting."""
    if not rows:
        return None
    blocks: list[Block] = []
    for one in rows:
        when = break_even_words(one.hours_per_month)
        words = f" ({one.words})" if one.words else ""
        blocks.append(Text(f"Rent {one.rented} or buy {one.bought}: {when}{words}."))
        series = {
            "rent": [(hours, rent, f"{hours:g} h: rent {usd(rent)}") for hours, rent, _ in one.rows],
            "buy": [(hours, buy, f"{hours:g} h: own {usd(buy)}") for hours, _, buy in one.rows],
        }
        data, layout = figures.points(
            series, x_title="hours of use a month", y_title="USD a month", lines=("rent", "buy")
        )
        table = Table(
            caption="Rent and ownership by hours of use",
            columns=("hours a month", "rent", "buy"),
            rows=[(f"{hours:g}", usd(rent), usd(buy)) for hours, rent, buy in one.rows],
            numbers=(0, 1, 2),
        )
        alt = f"Lines of rent and ownership by hours of use a month; {when}."
        blocks.append(Figure(caption="Rent or buy", alt=alt, data=data, layout=layout, table=table))
    return Section(name="rent-or-buy", title="Rent or buy", blocks=blocks)


def certificate_section(found: Procured, history: History) -> Section:
    """Return the proof."""
    one, name = found.certificate, found.objective_name
    facts = [
        ("status", one.status.value),
        ("objective", value_of(one.objective, name)),
        ("bound: no fleet has less", value_of(one.bound, name)),
        ("gap", f"{one.gap:.2%}"),
        *(
            (f"bound for fleets of up to {many(number, 'type')}", value_of(bound, name))
            for number, bound in one.bounds.items()
        ),
        ("offers", f"{one.num_offers:,}"),
        ("sets of offers", f"{one.num_markets:,}"),
        ("fleets planned", f"{one.num_planned:,}"),
    ]
    unit = _UNITS[name]
    blocks: list[Block] = [
        *certificate_figure(one.objective, one.bound, unit, axis=_AXES[name]),
        *history_figures(
            [(bound, best, number) for bound, best, number in history if best < inf],
            lambda value: value_of(value, name),
            goal=_GOALS[name],
            axis=_AXES[name],
            best="best fleet",
            step="fleets planned",
        ),
    ]
    blocks.append(Table(caption="Certificate", columns=("what", "value"), rows=facts))
    if one.domain:
        blocks += [Text("Search space:"), Bullets(lines=one.domain)]
    return Section(name="certificate", title="What is proven", blocks=blocks)


def prices_section(found: Procured) -> Section:
    """Return the prices used, with their dates."""
    told = found.prices
    rows = [
        (str(name).replace("_", " "), _listed(value)) for name, value in told.items() if not isinstance(value, dict)
    ]
    rows += [(f"left out: {why}", f"{number:,}") for why, number in told.get("left_out", {}).items()]
    dates = sorted({offer.date.isoformat() for offer in found.choice.fleet.offers})
    rows.append(("prices of the chosen fleet are of", ", ".join(dates)))
    table = Table(caption="Price lists", columns=("what", "value"), rows=rows)
    return Section(name="prices", title="Prices used", blocks=[table])


def _listed(value: object) -> str:
    """Return a value, those of a list with commas between them."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

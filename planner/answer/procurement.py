"""The answer to what to buy or rent: the fleet, its money and time, alternatives, what if, and the prices used."""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, timedelta
from functools import partial
from math import ceil, floor, inf
from typing import TYPE_CHECKING

from planner.answer.charts import scale_of
from planner.answer.parts import (
    Commands,
    History,
    bullet_blocks,
    certificate_chart,
    history_charts,
    notes,
    origin,
    shares_chart,
    shares_of,
)
from planner.answer.plan import plan_blocks, time_blocks
from planner.answer.text import bullets, table
from planner.plan import Plan
from planner.sections import Answer, Bars, Block, PlanView, Points, Section, Table, Text, Tiles
from planner.solution import SAME, Status
from planner.units import Dimension, format_human, parse
from planner.words import (
    SEARCH_SPACE,
    capitalised,
    few,
    joined,
    many,
    objective_words,
    percent_words,
    thinned,
    time_words,
    usd_words,
)

if TYPE_CHECKING:
    from planner.procurement.answer import BreakEven, Choice, ParetoSet, Procured
    from planner.procurement.fleet import Fleet

ViewOf = Callable[[Plan], PlanView | None]
_GOALS = {"value_of_time": "cost"}  # what an objective is in, where its name does not say so
_UNITS = {"cost": "usd", "time": "s", "energy": "J"}
_MOST_BARS = 30
_MOST_ROWS = 100
_MOST_DRAWN = 3  # jobs whose plans are drawn
_MOST_POINTS, _MOST_LINES = 200, 24  # of the trade-off: on a page, on a terminal
_WIDTH = 30  # of its bars on a terminal
_LEAST_POINTS = 3  # of a curve
_H_S, _DAY_S = (parse(one, Dimension.TIME) for one in ("1 h", "1 d"))
_MOST_DAYS = 36_500  # of an end that has a date
_MANY_TIMES = 10  # from there on a ratio is told as such, not in percent
_WHOLE = "--json has all of them"


def procurement_answer(found: "Procured", view_of: ViewOf, *, history: History = (), commands: Commands = ()) -> Answer:
    """Return a purchase as an answer.

    Parameters
    ----------
    view_of
        What the families show of a job's plan: :func:`planner.planning.view_again`.
    history
        Bound, incumbent and number of fleets planned, as the search told them.
    commands
        That give the answer again, each as its arguments.
    """
    choice, one, names = found.choice, found.certificate, _networks(found)
    is_bought = [bool(offer.purchase_usd) for offer in choice.fleet.offers]
    verb = "Buy" if all(is_bought) else "Buy and rent" if any(is_bought) else "Rent"
    what, time = joined(names), time_words(choice.total_wall_s)
    is_monthly = (found.problem.get("procure") or {}).get("jobs") is not None
    takes = f"the trainings take {time} a month" if is_monthly else f"training {what} takes {time}"
    pays = f"{usd_words(choice.cost_usd)}{' a month' * is_monthly}"
    if choice.at_once_usd:
        pays = f"{usd_words(choice.at_once_usd)} at once, and {pays} count for {'them' if is_monthly else 'it'}"
    margin, verdict = _margin(found, is_monthly=is_monthly), _verdict(found)
    risk = f"{_error(found)}; at worst {_at_worst(found, is_monthly=is_monthly)}"
    page = {"Also assumed": found.assumptions, "Not modelled": found.not_modelled}

    def summary() -> list[Block]:
        first = Table(caption="The answer", columns=("what", "it comes to"), rows=_first_rows(found, is_monthly))
        return [_tiles(choice), first, *bullet_blocks("Assumptions", choice.key_assumptions)]

    sections = [
        Section(name="summary", title="In short", lines=bullets("Assumptions", choice.key_assumptions), blocks=summary),
        *([_pareto(found.pareto)] if found.pareto is not None else _by_deadline(found)),
        Section(name="fleet", title="The fleet", blocks=partial(_fleet, choice)),
        Section(
            name="time",
            title="Where the time goes",
            lines=[
                *_part_lines("Where the time goes", _times(choice), "s"),
                *_part_lines("Where the money goes", choice.money_usd, "usd"),
            ],
            blocks=partial(_parts, "Where the time goes", _times(choice), "time", "s"),
        ),
        Section(
            name="money",
            title="Where the money goes",
            blocks=partial(_parts, "Where the money goes", choice.money_usd, "cost", "usd"),
        ),
        Section(
            name="plans", title="How to train on it", lines=_plan_lines(choice), blocks=partial(_plans, choice, view_of)
        ),
        *_drawn(choice, view_of),
        Section(
            name="why",
            title="Why",
            lines=["Why", *(f"  {line}" for line in found.explanation)],
            blocks=lambda: bullet_blocks("What binds", found.explanation),
        ),
        Section(
            name="alternatives",
            title="Alternatives considered",
            lines=_alternative_lines(found),
            blocks=partial(_alternatives, found),
        ),
        Section(name="what-if", title="What if", lines=_what_if_lines(found), blocks=partial(_what_if, found)),
        Section(
            name="rent-or-buy",
            title="Rent or buy",
            lines=[line for row in found.break_even for line in _break_even_lines(row)],
            blocks=lambda: [block for row in found.break_even for block in _break_even(row)],
        ),
        Section(name="certificate", title="What is proven", blocks=partial(_certificate, found, history)),
        Section(
            name="accuracy",
            title="How wrong it may be",
            blocks=lambda: [Text(f"{capitalised('; '.join([*margin, risk]))}.")],
        ),
        Section(name="prices", title="Prices used", blocks=partial(_prices, found)),
        notes(found.warnings, page, {"Prices": [_prices_words(found)], **page, "Search space": _searched_words(found)}),
        origin(found.problem, commands),
    ]
    return Answer(
        title=f"What to buy or rent to train {what}",
        answer=f"{verb} {_named(choice.fleet)}: {takes}, {pays}.",
        verdict=verdict,
        mark="proven" if one.status is Status.OPTIMAL else "open",
        opening=[
            f"{verb}: {choice.fleet.headline}",
            verdict,
            "",
            *(f"  {line}" for line in table(_fleet_rows(choice)).splitlines()),
            "",
            *(f"  {name:14} {words}" for name, words in _first_rows(found, is_monthly)),
        ],
        minded=[
            row for row in _first_rows(found, is_monthly) if row not in _tiles(choice).tiles and row[0] != "energy"
        ],
        sections=sections,
    )


def _networks(found: "Procured") -> list[str]:
    """Return what is trained: the networks by their names, or by where they come from."""
    jobs = (found.problem.get("procure") or {}).get("jobs")
    blocks = [one["dnn"] for one in jobs or ()] or [found.problem.get("dnn") or {}]
    keys = ("name", "zoo", "huggingface", "onnx", "profile", "trace", "torch")
    return [next((str(block[key]) for key in keys if block.get(key)), "the network") for block in blocks]


def _value(value: float, name: str) -> str:
    words = objective_words(value, _UNITS[_GOALS.get(name, name)])
    return f"{words} with the value of its time" if name == "value_of_time" else words


def _axis(name: str) -> str:
    """Return the unit of an objective, as an axis has it."""
    return _UNITS[_GOALS.get(name, name)].replace("usd", "USD")


def _verdict(found: "Procured") -> str:
    one, name = found.certificate, found.objective_name
    if one.status is Status.OPTIMAL:
        return f"Proven optimal within {SEARCH_SPACE}: {_value(one.objective, name)}."
    proven = [number for number, bound in one.bounds.items() if one.objective - bound <= SAME * one.objective]
    among = f" Among fleets of {many(max(proven), 'type')} it is proven." if proven else ""
    return (
        f"Best found, not proven: {_value(one.objective, name)}; none has less than "
        f"{_value(one.bound, name)} (gap {percent_words(one.gap)}).{among}"
    )


def _first_rows(found: "Procured", is_monthly: bool) -> list[tuple[str, str]]:
    """Return what a buyer reads before signing: money, time, margin, risk, and what is next best; a line each."""
    choice, running_usd = found.choice, found.choice.spent_usd - found.choice.at_once_usd
    a_month = " a month" * is_monthly
    rows = []
    if choice.capital_usd:
        while_used = f", and {usd_words(running_usd)} {'a month' if is_monthly else 'while it runs'}"
        rows.append(("to pay", f"{usd_words(choice.at_once_usd)} at once{while_used * (running_usd > 0)}"))
        worth = f"what is bought is worth {usd_words(choice.worth_usd)} afterwards, by straight-line wear"
        counts = f"count for {'a month of these trainings' if is_monthly else 'this training'}; {worth}"
        rows.append(("cost", f"{usd_words(choice.cost_usd)} {counts}"))
        rows += [("worth it", words) for words in _worth_it(found)]
    else:
        if choice.upfront_usd:
            part = "a part of their rent until they end" if is_monthly else "a part of the cost"
            rows.append(("to pay", f"{usd_words(choice.upfront_usd)} at once, for reservations, {part}"))
        rows.append(("cost", f"{usd_words(choice.cost_usd)}{a_month}"))
    for offer in choice.fleet.offers:
        if offer.committed_s:
            counts = "a month of them counts here" if is_monthly else "the cost holds them all"
            words = f"to {offer.committed_s / _H_S:,.0f} h of each {offer.instance}, used or not; {counts}"
            rows.append(("commits", words))
    rows.append(("time", f"{time_words(choice.total_wall_s)} of work a month" if is_monthly else _time(found)))
    if choice.energy_j is not None and choice.power_w is not None:
        energy, power = format_human(choice.energy_j, Dimension.ENERGY), format_human(choice.power_w, Dimension.POWER)
        carbon = "" if choice.carbon_g is None else f"; {choice.carbon_g / 1e6:,.3g} t of CO2"
        rows.append(("energy", f"{energy} at {power}{carbon}"))
    rows += [("margin", words) for words in _margin(found, is_monthly=is_monthly)]
    rows += [("risk", _error(found)), ("at worst", _at_worst(found, is_monthly=is_monthly))]
    return rows + _next_rows(found) + _deadline_rows(found)


def _worth_it(found: "Procured") -> list[str]:
    """Return from how much use on a purchase costs less than rent, of the first kind of machine that is bought."""
    bought = {offer.name for offer in found.choice.fleet.offers if offer.purchase_usd}
    for row in found.break_even:
        if row.bought in bought:
            if row.hours_per_month is None:
                return [f"never within a month of use: renting {row.rented} costs less"]
            often = f"{row.hours_per_month:,.0f} h a month or more, all their life"
            note = f" ({row.words})" * bool(row.committed_h)
            return [f"if the machines are used {often}; for less, renting {row.rented} costs less{note}"]
    return []


def _cash(choice: "Choice") -> str:
    """Return what has to be paid at once."""
    return f"{usd_words(choice.at_once_usd)} to pay at once" if choice.at_once_usd else ""


def _time(found: "Procured") -> str:
    """Return when one training is done, before its deadline."""
    wall_s, words = found.choice.total_wall_s, time_words(found.choice.total_wall_s)
    if found.stretch != 1:
        words += f", with training {percent_words(found.stretch - 1)} longer than predicted"
    if _DAY_S <= wall_s < _MOST_DAYS * _DAY_S:
        today = date.fromisoformat(found.prices["today"])
        words += f", done by {today + timedelta(days=ceil(wall_s / _DAY_S))} if ordered on {today}"
    deadline = (found.problem.get("procure") or {}).get("deadline")
    if deadline is None:
        return words
    deadline_s = parse(deadline, Dimension.TIME)
    return f"{words}, {time_words(deadline_s - wall_s)} before the deadline of {time_words(deadline_s)}"


def _margin(found: "Procured", *, is_monthly: bool) -> list[str]:
    """Return how wrong the prediction may be until it misses a deadline, if there is one."""
    if found.margin is None:
        return []
    what = "all jobs are in time" if is_monthly else "the deadline holds"
    if 1 + found.margin < _MANY_TIMES:
        return [f"{what} for errors up to {percent_words(found.margin, is_signed=True)}"]
    return [f"{what} until training takes {floor(1 + found.margin):,} times as long as predicted"]


def _error(found: "Procured") -> str:
    """Return how wrong the prediction is known to be."""
    error = found.choice.error
    if error is None:
        return "no training like this one was measured"
    band = " to ".join(percent_words(end, is_signed=True) for end in error)
    is_given = (found.problem.get("procure") or {}).get("error") is not None
    if found.choice.unmeasured:
        whose = "the error of the question" if is_given else "errors elsewhere"
        return f"training steps were not measured on {joined(found.choice.unmeasured)}; {whose}: {band}"
    return f"{'the error of the question' if is_given else 'expected error of the training time'}: {band}"


def _at_worst(found: "Procured", *, is_monthly: bool) -> str:
    """Return what the fleet comes to where training is as slow as it may be."""
    if (risk := found.risk) is None:
        return "no pessimistic end is known"
    then = f"{time_words(risk.wall_s)} and {usd_words(risk.cost_usd)}{' a month' * is_monthly}"
    kept = f"misses the {joined(risk.missed)}" if risk.missed else "keeps all limits"
    longer = max(seconds / found.choice.training_s[name] - 1 for name, seconds in risk.training_s.items())
    if longer <= SAME:  # every device is taken to be as slow already
        return f"{then}, and {kept}: as it is counted, by {risk.origin}"
    most = "up to " * (len(risk.training_s) > 1)
    return f"{then}, and {kept}: training {most}{percent_words(longer, is_signed=True)}, {risk.origin}"


def _next_rows(found: "Procured") -> list[tuple[str, str]]:
    """Return the next best fleet of other devices, and the next one whose devices were measured."""
    if not found.alternatives:
        return []
    rows = {"next best": found.alternatives[0]}
    measured = next((row for row in found.alternatives if not row[0].unmeasured), None)
    if measured is not None and measured is not rows["next best"]:
        rows["next measured"] = measured
    own = [*dict.fromkeys(str(offer.device) for offer in found.choice.fleet.offers)]
    known = [one for one, missed in found.by_deadline if not missed and one is not found.choice]
    is_another = any(one.objective < found.alternatives[0][0].objective for one in known)  # of the choice's devices
    return [
        (
            name,
            f"{_named(one.fleet)}: {usd_words(one.cost_usd)}, {time_words(one.total_wall_s)} "
            f"({_loss(one, found.choice)} of the {found.objective_name.replace('_', ' ')}{_beside(one, found)}"
            + f", without {joined(own)}" * is_another
            + ")"
            + f"; {_cash(one)}" * bool(one.at_once_usd)
            + f"; {joined(one.unmeasured)} not measured" * bool(one.unmeasured)
            + f"; {note}" * note.startswith("or less"),
        )
        for name, (one, note) in rows.items()
    ]


def _deadline_rows(found: "Procured") -> list[tuple[str, str]]:
    """Return what an earlier and a later end would cost."""
    best, rows = found.choice, []
    for name, row in (("sooner", found.sooner), ("later", found.later)):
        if row is None:
            continue
        one, missed = row
        apart = time_words(abs(one.total_wall_s - best.total_wall_s))
        more = _more(one.cost_usd, best.cost_usd)
        words = f"{_named(one.fleet)}: {apart} {name} for {usd_words(one.cost_usd)} ({more})"
        rows.append((name, ", ".join(filter(None, (words, missed, _cash(one))))))
    return rows


# --- The fleet, and what its run takes


def _tiles(choice: "Choice") -> Tiles:
    """Return the figures that are read first."""
    rows = [("wall time", time_words(choice.total_wall_s)), ("cost", usd_words(choice.cost_usd))]
    rows += [("to pay in all", usd_words(choice.spent_usd))] if choice.capital_usd else []
    rows += [("machines", f"{choice.fleet.num_machines:,}"), ("devices", f"{choice.fleet.num_devices:,}")]
    rows += [("energy", format_human(choice.energy_j, Dimension.ENERGY))] if choice.energy_j is not None else []
    rows += [("power", format_human(choice.power_w, Dimension.POWER))] if choice.power_w is not None else []
    return Tiles(rows)


def _fleet_rows(choice: "Choice") -> list[dict[str, object]]:
    return [
        {
            "count": count,
            "machine": offer.instance,
            "terms": ", ".join(filter(None, (offer.term.value, offer.tier))),
            "from": offer.seller,
            "devices": f"{offer.devices_per_machine} x {offer.device}",
            "USD each": f"{offer.purchase_usd:,.0f}" if offer.purchase_usd else f"{offer.usd_per_h:,.4g}/h",
            "price of": offer.date.isoformat(),
        }
        for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)
    ]


def _fleet(choice: "Choice") -> list[Block]:
    """Return the shopping list with the sources of its prices."""
    rows = [
        (*map(str, row.values()), offer.source)
        for row, offer in zip(_fleet_rows(choice), choice.fleet.offers, strict=True)
    ]
    columns = (*_fleet_rows(choice)[0], "source")
    return [Table(caption="The fleet", columns=columns, rows=rows, numbers=(0, 5))]


def _times(choice: "Choice") -> dict[str, float]:
    """Return where the wall time goes: training by the terms of its plan, then what comes beside it."""
    training = choice.training_parts_s
    return {**training, **{name: value for name, value in choice.run_s.items() if not training or name != "training"}}


def _part_lines(title: str, parts: Mapping[str, float], unit: str) -> list[str]:
    """Return the parts of a sum with their shares, for a terminal."""
    rows = shares_of(parts)
    return [
        title,
        *(f"  {name:32} {objective_words(value, unit):>14}  {100 * share:5.1f} %" for name, value, share in rows),
    ]


def _parts(caption: str, parts: Mapping[str, float], title: str, unit: str) -> list[Block]:
    whole, shares = f"{caption}, in all {objective_words(sum(parts.values()), unit)}", shares_of(parts)
    if len(shares) == 1:
        return [Text(f"{whole}: {shares[0].name}.")]
    return [shares_chart(caption, shares, title, unit, (whole, "part", "amount", "share"))]


def _plan_lines(choice: "Choice") -> list[str]:
    lines = ["Train by"]
    for name, plan in choice.plans.items():
        what = "" if len(choice.plans) == 1 else f"{name}: "
        status = "proven" if plan.status is Status.OPTIMAL else f"gap {percent_words(plan.gap)}"
        lines.append(f"  {what}{plan.family} on {plan.configuration.headline}, {time_words(plan.objective)} ({status})")
    if len(choice.plans) > 1:
        return [*lines, "  the whole plans stand in --json and --out; `planner check` reads them"]
    return [*lines, "  the whole plan stands in --json and --out; `planner explain` and `planner check` read it"]


def _plans(choice: "Choice", view_of: ViewOf) -> list[Block]:
    rows = [
        (
            name,
            view.words if (view := view_of(plan)) is not None else plan.family,
            plan.configuration.headline,
            objective_words(plan.objective, plan.goal.unit),
            "proven" if plan.status is Status.OPTIMAL else f"gap {percent_words(plan.gap)}",
        )
        for name, plan in choice.plans.items()
    ]
    columns = ("job", "by", "on", "training takes", "proof")
    note = "The whole plans stand in the file of --out; planner explain and planner check read it."
    return [Table(caption="Training on this fleet", columns=columns, rows=rows, numbers=(3,), note=note)]


def _drawn(choice: "Choice", view_of: ViewOf) -> list[Section]:
    """Return what runs where on the fleet, and where an iteration's time goes, of the first jobs."""

    def blocks(plan: Plan) -> list[Block]:
        if (view := view_of(plan)) is None:
            return []
        return [*plan_blocks(plan, view, has_timeline=False), *time_blocks(plan.prediction)]

    return [
        Section(
            name=f"plan-{index}",
            title="What runs where" if len(choice.plans) == 1 else f"What runs where: {name}",
            blocks=partial(blocks, plan),
        )
        for index, (name, plan) in enumerate(list(choice.plans.items())[:_MOST_DRAWN], start=1)
    ]


# --- What else was weighed: other fleets, time against money, what if, rent or buy


def _loss(choice: "Choice", best: "Choice") -> str:
    """Return how much more of the objective a fleet takes."""
    return _more(choice.objective, best.objective)


def _beside(choice: "Choice", found: "Procured") -> str:
    """Return the objective of a fleet where neither its cost nor its time is that."""
    name = found.objective_name
    return "" if name in ("cost", "time") else f", {_value(choice.objective, name)}"


def _more(value: float, best: float) -> str:
    """Return how much more a value is than the answer's."""
    ratio = value / best if best else 1.0
    return percent_words(ratio - 1, is_signed=True) if ratio < _MANY_TIMES else f"x {ratio:,.0f}"


def _named(fleet: "Fleet") -> str:
    """Return a fleet and where it comes from: machines of one name are sold in several regions."""
    return f"{fleet.headline} from {fleet.sellers}"


def _alternative_lines(found: "Procured") -> list[str]:
    """Return the best fleets of other offers, for a terminal."""
    lines = []
    for choice, words in found.alternatives:
        cost = f"{choice.cost_usd:>12,.2f} USD {time_words(choice.total_wall_s):>9}"
        note = "; ".join(filter(None, (f"from {choice.fleet.sellers}{_beside(choice, found)}", words)))
        lines.append(f"  {choice.fleet.headline[:44]:44} {cost} {_loss(choice, found.choice):>9}  {note}")
    return ["Alternatives considered", *lines] if lines else []


def _alternatives(found: "Procured") -> list[Block]:
    """Return the best fleets of other offers."""
    if not found.alternatives:
        return []
    best, name = found.choice, found.objective_name
    goal = _GOALS.get(name, name)
    rows = [
        (
            choice.fleet.headline,
            choice.fleet.sellers,
            _value(choice.objective, name),
            usd_words(choice.cost_usd),
            time_words(choice.total_wall_s),
            "" if choice is best else _loss(choice, best),
            words,
        )
        for choice, words in [(best, "this fleet"), *found.alternatives]
    ]
    drawn = found.alternatives[:_MOST_BARS]
    chart = Bars(
        caption="This fleet against others",
        alt=f"Bars of this fleet and of {many(len(drawn), 'other')}, by {goal}.",
        rows=[
            ("this fleet", best.objective, _value(best.objective, name)),
            *((_named(one.fleet), one.objective, _value(one.objective, name)) for one, _ in drawn),
        ],
        title=goal,
        unit=_axis(name),
        marked=0,
    )
    listed = Table(
        caption="Alternatives considered",
        columns=("fleet", "from", "" if name == "cost" else goal, "cost", "wall time", "more", "what to know"),
        rows=[(*row[:2], "" if name == "cost" else row[2], *row[3:]) for row in rows[: _MOST_ROWS + 1]],
        numbers=range(2, 6),
        marked=(0,),
    )
    return [chart, listed]


def _pareto(found: "ParetoSet") -> Section:
    """Return the trade-off of time against money."""
    title, points = "Time against money", found.points
    if not points:
        none = "none was found in time; raise --time-limit"
        lines = [f"{title}: {none}"]
        return Section(name="pareto", title=title, lines=lines, blocks=lambda: [Text(f"{capitalised(none)}.")])
    proven = "proven: no fleet beats any of them in both"
    if found.status is not Status.OPTIMAL:
        left = "how much better what was left may be is not known"
        if found.gap <= 1:
            left = f"what was left may be better by {percent_words(found.gap)} in both at most"
        elif found.gap < inf:
            left = f"what was left may be up to {1 + found.gap:,.0f} times better in both"
        proven = f"not proven; {left}"
    most = max(one.choice.cost_usd for one in points)
    lines = [f"{title}, {many(len(points), 'fleet')}, {proven}; * is a tie with the one above, by the expected error"]
    for one in thinned(points, _MOST_LINES):
        choice = one.choice
        bar = "#" * max(1, round(_WIDTH * choice.cost_usd / most))
        cost = f"{time_words(choice.total_wall_s):>9}{'*' if one.is_tie else ' '} {choice.cost_usd:>12,.2f} USD"
        lines.append(f"  {cost} {bar:{_WIDTH}} {_named(choice.fleet)}")
    if len(points) > _MOST_LINES:
        lines.append(f"  {len(points) - _MOST_LINES} more stand in --json")
    return Section(name="pareto", title=title, lines=lines, blocks=partial(_pareto_blocks, found, title, proven))


def _pareto_blocks(found: "ParetoSet", title: str, proven: str) -> list[Block]:
    """Return the trade-off as points and as a table."""
    shown = [(one.choice, one.is_tie) for one in thinned(found.points, _MOST_POINTS)]
    chart = _time_and_money(title, [choice for choice, _ in shown])
    listed = Table(
        caption=f"{title}: fleets that none beats in both",
        columns=("wall time", "cost", "tie", "fleet", "from"),
        rows=[
            (
                time_words(choice.total_wall_s),
                usd_words(choice.cost_usd),
                "tie" * is_tie,
                choice.fleet.headline,
                choice.fleet.sellers,
            )
            for choice, is_tie in shown
        ],
        numbers=(0, 1),
        note=few(len(found.points), len(shown), "fleets", _WHOLE),
    )
    ties = " A tie is closer to the one before than the expected error." if any(is_tie for _, is_tie in shown) else ""
    drawn = [chart] if len(shown) > 1 else []
    return [
        Text(f"{capitalised(proven)}.{ties} As a curve: the least cost of a training that is done by then."),
        *drawn,
        listed,
    ]


def _time_and_money(title: str, choices: Sequence["Choice"]) -> Points:
    """Return fleets as points of time and money, fastest first, with the least cost of what is done by then."""
    longest_s = max(choice.total_wall_s for choice in choices)
    by, unit = scale_of(longest_s, "s")
    rows = [
        (
            choice.total_wall_s / by,
            choice.cost_usd,
            f"{_named(choice.fleet)}: {time_words(choice.total_wall_s)}, {usd_words(choice.cost_usd)}",
        )
        for choice in choices
    ]
    return Points(
        caption=title,
        alt=f"Points of wall time against cost of {many(len(rows), 'fleet')}, from "
        f"{time_words(choices[0].total_wall_s)} to {time_words(longest_s)}.",
        series={"fleets": rows},
        titles=(f"wall time ({unit})", "cost (USD)"),
        lines=("fleets",),
        is_log=(rows[-1][0] > 20 * rows[0][0] > 0, False),
        has_steps=True,
    )


def _by_deadline(found: "Procured") -> list[Section]:
    """Return what other deadlines would cost, of the fleets that were planned."""
    title, shown = "Cost over deadline", thinned(found.by_deadline, _MOST_POINTS)
    if len(shown) < _LEAST_POINTS:
        return []

    def blocks() -> list[Block]:
        lines = [f"{capitalised(name)}: {words}." for name, words in _deadline_rows(found)]
        about = "All of these were planned, and none beats another in both. Fleets that were not planned may cost less."
        listed = Table(
            caption=f"{title}: what was planned",
            columns=("wall time", "cost", "fleet", "from", "what to know"),
            rows=[
                (
                    time_words(one.total_wall_s),
                    usd_words(one.cost_usd),
                    one.fleet.headline,
                    one.fleet.sellers,
                    ", ".join(filter(None, ("this fleet" * (one is found.choice), missed, _cash(one)))),
                )
                for one, missed in shown
            ],
            numbers=(0, 1),
            marked=[index for index, (one, _) in enumerate(shown) if one is found.choice],
            note=few(len(found.by_deadline), len(shown), "fleets", _WHOLE),
        )
        return [Text(" ".join([*lines, about])), _time_and_money(title, [one for one, _ in shown]), listed]

    return [Section(name="by-deadline", title=title, blocks=blocks)]


def _what_if_rows(found: "Procured") -> list[tuple[str, str, str, str]]:
    """Return each change, the objective after it, what to do then, and what to know of it."""
    return [
        (one.change, "", one.words, "")
        if one.fleet is None
        else (
            one.change,
            _value(one.objective, found.objective_name),
            f"then {_named(one.fleet)}" if one.changes_decision else "the same fleet",
            one.words,
        )
        for one in found.what_if
    ]


def _what_if_lines(found: "Procured") -> list[str]:
    """Return which changes change the decision, for a terminal."""
    lines = [f"What if (fleets of up to {many(len(found.choice.fleet.offers), 'type')})"]
    for change, value, decision, words in _what_if_rows(found):
        known = f"{value:>16}  " if value else ""
        lines.append(f"  {change:36} {known}{decision}{f' ({words})' if words else ''}")
    return lines if found.what_if else []


def _what_if(found: "Procured") -> list[Block]:
    """Return which changes change the decision."""
    if not found.what_if:
        return []
    name, known = found.objective_name, [one for one in found.what_if if one.fleet is not None]
    goal, marked = _GOALS.get(name, name), [index for index, one in enumerate(found.what_if) if one.changes_decision]
    listed = Table(
        caption="What if",
        columns=("change", goal, "decision", "what to know"),
        rows=_what_if_rows(found),
        numbers=(1,),
        marked=marked,
    )
    if not known:
        return [listed]
    bars = [("as it is", found.choice.objective), *((one.change, one.objective) for one in known)]
    chart = Bars(
        caption=f"The {goal} after each change",
        alt=f"Bars of the {goal} after each of {many(len(known), 'change')}; {len(marked)} of them change the "
        "decision.",
        rows=[(change, value, _value(value, name)) for change, value in bars],
        title=goal,
        unit=_axis(name),
        marked=0,
    )
    return [chart, listed]


def _break_even_words(one: "BreakEven") -> str:
    """Return from how much use on buying costs less than renting."""
    if one.hours_per_month is None:
        return "renting costs less for any use within a month"
    return f"buying costs less from {one.hours_per_month:,.0f} h of use a month on"


def _payback_words(one: "BreakEven") -> str:
    """Return after how long of use around the clock a purchase has paid off, in cash."""
    if one.payback_months is None:
        return "used around the clock, the rent of its whole life comes to less than what buying takes"
    return f"used around the clock, the rent has come to what buying takes after {one.payback_months:,.1f} months"


def _break_even_lines(one: "BreakEven") -> list[str]:
    """Return from when on buying costs less, for a terminal."""
    words = f"; {one.words}" if one.words else ""
    months = [
        {"hours a month": hours, f"{'rent USD':>12}": f"{rent:12,.2f}", f"{'buy USD':>12}": f"{buy:12,.2f}"}
        for hours, rent, buy in one.rows
    ]
    head = f"Rent {one.rented} or buy {one.bought}: {_break_even_words(one)}{words}"
    return [head, f"  {_payback_words(one)}", *(f"  {line}" for line in table(months).splitlines())]


def _break_even(one: "BreakEven") -> list[Block]:
    """Return from when on buying costs less."""
    when, words = _break_even_words(one), f" ({one.words})" if one.words else ""
    chart = _rent_and_buy(
        one.rows,
        ("Rent or buy", "Rent and ownership by hours of use"),
        f"Lines of rent and ownership by hours of use a month; {when}.",
        ("hours of use a month", "USD a month"),
        ("hours a month", "{:g} h: rent {}", "{:g} h: own {}"),
    )
    return [Text(f"Rent {one.rented} or buy {one.bought}: {when}{words}."), chart, *_paid(one)]


def _rent_and_buy(
    rows: Sequence[tuple[float, float, float]],
    captions: tuple[str, str],
    alt: str,
    titles: tuple[str, str],
    words: tuple[str, str, str],
) -> Points:
    """Return rows of use, rent and purchase as two lines and as a table.

    ``captions``: of the plot and of its table. ``words``: what the use is counted in, and of a point of each line.
    """
    counted, of_rent, of_buy = words
    return Points(
        caption=captions[0],
        alt=alt,
        series={
            "rent": [(use, rent, of_rent.format(use, usd_words(rent))) for use, rent, _ in rows],
            "buy": [(use, buy, of_buy.format(use, usd_words(buy))) for use, _, buy in rows],
        },
        titles=titles,
        lines=("rent", "buy"),
        table=Table(
            caption=captions[1],
            columns=(counted, "rent", "buy"),
            rows=[(f"{use:g}", usd_words(rent), usd_words(buy)) for use, rent, buy in rows],
            numbers=(0, 1, 2),
        ),
    )


def _paid(one: "BreakEven") -> list[Block]:
    """Return what was paid by when, rented and bought, as a curve over the machine's life."""
    if not one.curve:
        return []
    then = _payback_words(one)
    chart = _rent_and_buy(
        one.curve,
        ("Paid by then", "Paid by month, used around the clock"),
        f"Lines of the money paid by month, rented and bought; {then}.",
        ("months of use around the clock", "USD paid in all"),
        ("months", "{:g} months: {} of rent", "{:g} months: {}, bought"),
    )
    return [Text(f"{capitalised(then)}."), chart]


# --- What is proven, and by which prices


def _certificate(found: "Procured", history: History) -> list[Block]:
    one, name = found.certificate, found.objective_name
    goal = _GOALS.get(name, name)
    facts = [
        ("status", one.status.value),
        ("objective", _value(one.objective, name)),
        ("bound: no fleet has less", _value(one.bound, name)),
        ("gap", percent_words(one.gap)),
        *((f"bound for fleets of up to {many(n, 'type')}", _value(bound, name)) for n, bound in one.bounds.items()),
        ("offers", f"{one.num_offers:,}"),
        ("sets of offers", f"{one.num_markets:,}"),
        ("fleets planned", f"{one.num_planned:,}"),
    ]
    return [
        *certificate_chart(one.objective, one.bound, _UNITS[goal], axis=_axis(name)),
        *history_charts(
            [row for row in history if row[1] < inf],
            lambda value: _value(value, name),
            goal=goal,
            axis=_axis(name),
            best="best fleet",
            step="fleets planned",
        ),
        Table(caption="Certificate", columns=("what", "value"), rows=facts),
        *bullet_blocks("Search space", one.domain),
    ]


def _prices(found: "Procured") -> list[Block]:
    """Return the prices used, with their dates."""
    told = found.prices
    rows = [
        (str(name).replace("_", " "), ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value))
        for name, value in told.items()
        if not isinstance(value, dict)
    ]
    rows += [(f"left out: {why}", f"{number:,}") for why, number in told.get("left_out", {}).items()]
    dates = sorted({offer.date.isoformat() for offer in found.choice.fleet.offers})
    rows.append(("prices of the chosen fleet are of", ", ".join(dates)))
    return [Table(caption="Price lists", columns=("what", "value"), rows=rows)]


def _prices_words(found: "Procured") -> str:
    """Return in words from when the prices are, and how many."""
    prices = found.prices
    number = many(prices["offers"], "offer")
    return f"prices of {prices['oldest']} or later, {number} ({many(prices['unusable'], 'row')} unusable)"


def _searched_words(found: "Procured") -> list[str]:
    """Return over what the fleet was proven to be best, and what it took."""
    one = found.certificate
    planned = (
        f"{many(one.num_planned, 'fleet')} planned" if one.num_planned else "all their numbers of machines at once"
    )
    work = f"{many(one.num_markets, 'set')} of offers, {planned}"
    left_out = [f"{many(number, 'offer')} {why} left out" for why, number in found.prices["left_out"].items()]
    return [*one.domain, work, *left_out]

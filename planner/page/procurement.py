"""The page of a purchase: the fleet, its money, time against money, what if, and the prices used."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.api import load
from planner.errors import PlannerError
from planner.networks import asked, network_of
from planner.page import figures
from planner.page.costs import time_section
from planner.page.origin import origin_section
from planner.page.parts import Block, Bullets, Figure, Page, Section, Table, Text, Tile, Tiles
from planner.page.procurement_choices import (
    History,
    alternatives_section,
    break_even_section,
    certificate_section,
    pareto_section,
    prices_section,
    value_of,
    what_if_section,
)
from planner.page.proof import notes_section
from planner.page.schedule import plan_section
from planner.page.told import Told
from planner.page.words import family_words, joined, many, objective, term, time, usd
from planner.procurement.answer import Choice, Procured
from planner.procurement.notes import key_assumptions_of
from planner.solution import Status
from planner.units import Dimension, format_human
from planner.words import SEARCH_SPACE

__all__ = ["procurement_page_of"]

_MOST_DRAWN = 3  # jobs whose plans are drawn


def procurement_page_of(found: Procured, *, history: History = (), commands: Sequence[Sequence[str]] = ()) -> Page:
    """Return the page of a purchase; ``history``: bound, incumbent and number of fleets, as the search told them."""
    choice = found.choice
    told = key_assumptions_of(choice)
    assumed: list[Block] = [Text("Assumptions:"), Bullets(lines=told)] if told else []
    sections = [
        Section(
            name="summary",
            title="In short",
            blocks=[
                _tiles(found),
                *assumed,
                Text("Why:"),
                Bullets(lines=found.explanation),
            ],
        ),
        _fleet(choice),
        _money(choice),
        _time(choice),
        _plans(choice),
        *_drawn(choice),
        alternatives_section(found),
        pareto_section(found.pareto),
        what_if_section(found),
        break_even_section(found.break_even),
        certificate_section(found, history),
        Section(name="accuracy", title="How wrong it may be", blocks=_margin(found)),
        prices_section(found),
        notes_section(
            {"Warnings": found.warnings, "Also assumed": found.assumptions, "Not modelled": found.not_modelled}
        ),
        origin_section(found.problem, commands),
    ]
    return Page(
        title=f"What to buy or rent to train {joined(_networks(found))}",
        answer=_answer(found),
        verdict=_verdict(found),
        mark="proven" if found.certificate.status is Status.OPTIMAL else "open",
        sections=[section for section in sections if section is not None],
    )


def _answer(found: Procured) -> str:
    """Return the answer in one sentence."""
    choice = found.choice
    bought = [bool(offer.purchase_usd) for offer in choice.fleet.offers]
    verb = "Buy" if all(bought) else "Buy and rent" if any(bought) else "Rent"
    sellers = joined(list(dict.fromkeys(f"{one.provider} {one.region}".strip() for one in choice.fleet.offers)))
    what = "the trainings take" if _is_monthly(found) else f"training {joined(_networks(found))} takes"
    time_words = f"{time(choice.total_wall_s)} and {usd(choice.cost_usd)}{' a month' if _is_monthly(found) else ''}"
    return f"{verb} {choice.fleet.headline} from {sellers}: {what} {time_words}."


def _networks(found: Procured) -> list[str]:
    """Return what is trained: the names of the networks."""
    asked = found.problem.get("procure") or {}
    blocks = [one["dnn"] for one in asked.get("jobs") or ()] or [found.problem.get("dnn") or {}]
    return [_network(block) for block in blocks]


def _network(block: Mapping[str, Any]) -> str:
    """Return a network by its name, or by where it comes from."""
    named = (block.get(key) for key in ("name", "zoo", "huggingface", "onnx", "profile", "trace", "torch"))
    return next((str(one) for one in named if one), "the network")


def _is_monthly(found: Procured) -> bool:
    """Whether several jobs share the machines month after month."""
    asked = found.problem.get("procure")
    return asked is not None and asked.get("jobs") is not None


def _verdict(found: Procured) -> str:
    """Return what is proven."""
    one = found.certificate
    if one.status is Status.OPTIMAL:
        return f"Proven optimal within {SEARCH_SPACE}: {value_of(one.objective, found.objective_name)}."
    least = value_of(one.bound, found.objective_name)
    return f"The best that was found, not proven: no fleet has less than {least} (gap {one.gap:.2%})."


def _tiles(found: Procured) -> Tiles:
    """Return the figures that are read first."""
    choice = found.choice
    rows = [("wall time", time(choice.total_wall_s)), ("cost", usd(choice.cost_usd))]
    rows += [("to pay in all", usd(choice.spent_usd))] if choice.capital_usd else []
    rows += [("machines", f"{choice.fleet.num_machines:,}"), ("devices", f"{choice.fleet.num_devices:,}")]
    rows += [("energy", format_human(choice.energy_j, Dimension.ENERGY))] if choice.energy_j is not None else []
    rows += [("power", format_human(choice.power_w, Dimension.POWER))] if choice.power_w is not None else []
    return Tiles(tiles=[Tile(label=label, value=value) for label, value in rows])


def _margin(found: Procured) -> list[Block]:
    """Return how wrong the prediction may be."""
    error = found.choice.error
    band = "not measured for such plans" if error is None else f"{error[0]:+.0%} to {error[1]:+.0%}"
    words = (
        ""
        if found.margin is None
        else f"The deadline holds until training takes {1 + found.margin:.3g} times as long as predicted. "
    )
    return [Text(f"{words}Known error of the training time: {band}.")]


def _fleet(choice: Choice) -> Section:
    """Return the shopping list."""
    rows = [
        (
            offer.instance,
            f"{count:,}",
            ", ".join(filter(None, (offer.term.value, offer.tier))),
            f"{offer.provider} {offer.region}",
            f"{offer.devices_per_machine} x {offer.device}",
            f"{offer.purchase_usd:,.0f} USD" if offer.purchase_usd else f"{offer.usd_per_h:,.4g} USD/h",
            offer.date.isoformat(),
            offer.source,
        )
        for offer, count in zip(choice.fleet.offers, choice.fleet.counts, strict=True)
    ]
    columns = ("machine", "count", "terms", "from", "devices", "price of one", "as of", "source")
    table = Table(caption="The fleet", columns=columns, rows=rows, numbers=(1, 5))
    return Section(name="fleet", title="The fleet", blocks=[table])


def _money(choice: Choice) -> Section:
    """Return where the money goes."""
    figure = _parts_figure("Where the money goes", choice.money_usd, "usd", "USD")
    return Section(name="money", title="Where the money goes", blocks=[figure])


def _time(choice: Choice) -> Section:
    """Return where the time goes."""
    return Section(
        name="time", title="Where the time goes", blocks=[_parts_figure("Where the time goes", choice.run_s, "s", "s")]
    )


def _parts_figure(caption: str, parts: Mapping[str, float], unit: str, axis: str) -> Figure:
    """Return the parts of a sum as bars."""
    total = sum(parts.values())
    rows = [(term(name), value) for name, value in parts.items() if total and value > 1e-6 * total]
    texts = [f"{objective(value, unit)}, {value / total:.1%}" for _, value in rows]
    bars = [(name, value, text) for (name, value), text in zip(rows, texts, strict=True)]
    data, layout = figures.bars(bars, title="time" if unit == "s" else "cost", unit=axis)
    table = Table(
        caption=f"{caption}, in all {objective(total, unit)}",
        columns=("part", "amount", "share"),
        rows=[(name, objective(value, unit), f"{value / total:.1%}") for name, value in rows],
        numbers=(1, 2),
    )
    alt = f"Bars of {many(len(rows), 'part')} that add up to {objective(total, unit)}."
    return Figure(caption=caption, alt=alt, data=data, layout=layout, table=table)


def _drawn(choice: Choice) -> list[Section]:
    """Return what runs where on the fleet, and where an iteration's time goes, of the first jobs."""
    found = []
    for index, (name, plan) in enumerate(list(choice.plans.items())[:_MOST_DRAWN], start=1):
        try:
            problem = network_of(asked(load(plan.problem)), plan.substitutions)
        except PlannerError:  # a question that is not whole in its plan is not drawn
            continue
        told = Told(problem=problem, family=plan.family, configuration=plan.configuration, prediction=plan.prediction)
        blocks = [*plan_section(told, None).blocks, *time_section(told).blocks]
        title = "What runs where" if len(choice.plans) == 1 else f"What runs where: {name}"
        found.append(Section(name=f"plan-{index}", title=title, blocks=blocks))
    return found


def _plans(choice: Choice) -> Section:
    """Return the plan of each job."""
    rows = [
        (
            name,
            family_words(plan.family),
            plan.configuration.headline,
            objective(plan.objective, plan.goal.unit),
            "proven" if plan.status is Status.OPTIMAL else f"gap {plan.gap:.2%}",
        )
        for name, plan in choice.plans.items()
    ]
    columns = ("job", "by", "on", "training takes", "proof")
    note = "The whole plans stand in the file of --out; planner explain and planner check read it."
    table = Table(caption="Training on this fleet", columns=columns, rows=rows, numbers=(3,), note=note)
    return Section(name="plans", title="How to train on it", blocks=[table])

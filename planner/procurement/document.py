"""``planner.procurement/1``: the answer as plain data, seconds, joules, watts and dollars as the keys say."""

from dataclasses import asdict
from typing import Any

from planner.documents import plan_document
from planner.procurement.answer import Choice, ParetoSet, Procured, Tradeoff, WhatIf
from planner.procurement.fleet import Fleet
from planner.procurement.notes import key_assumptions_of

__all__ = ["procurement_document"]


def procurement_document(found: Procured) -> dict[str, Any]:
    """Return the document of an answer; each chosen plan is a whole ``planner.plan/1`` in it."""
    certificate = found.certificate
    return {
        "schema": "planner.procurement/1",
        "status": certificate.status.value,
        "problem": dict(found.problem),
        "objective": {
            "name": found.objective_name,
            "value": certificate.objective,
            "bound": certificate.bound,
            "gap": certificate.gap,
        },
        "choice": {**_choice(found.choice), "plans": {n: plan_document(p) for n, p in found.choice.plans.items()}},
        "certificate": {
            "bounds_by_types": {str(number): bound for number, bound in certificate.bounds.items()},
            "domain": list(certificate.domain),
            "num_offers": certificate.num_offers,
            "num_markets": certificate.num_markets,
            "num_planned": certificate.num_planned,
        },
        "margin": found.margin,
        "stretch": found.stretch,
        "explanation": list(found.explanation),
        "alternatives": [
            {**_choice(choice), "plans": _plans(choice), "words": words} for choice, words in found.alternatives
        ],
        "break_even": [
            {
                "rented": one.rented,
                "bought": one.bought,
                "hours_per_month": one.hours_per_month,
                "rows": [{"hours": hours, "rent_usd": rent, "buy_usd": buy} for hours, rent, buy in one.rows],
                "words": one.words,
            }
            for one in found.break_even
        ],
        "pareto": None if found.pareto is None else _pareto(found.pareto),
        "what_if": [_what_if(one) for one in found.what_if],
        "assumptions": [*key_assumptions_of(found.choice), *found.assumptions],
        "warnings": list(found.warnings),
        "not_modelled": list(found.not_modelled),
        "prices": dict(found.prices),
    }


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
        "objective": choice.objective,
        "cost_usd": choice.cost_usd,
        "spent_usd": choice.spent_usd,
        "breakdown_usd": dict(choice.money_usd),
        "wall_time_s": choice.total_wall_s,
        "breakdown_s": dict(choice.run_s),
        "training_s": dict(choice.training_s),
        "job_wall_s": dict(choice.wall_s),
        "energy_j": choice.energy_j,
        "power_w": choice.power_w,
        "capital_usd": choice.capital_usd,
        "error": None if choice.error is None else {"low": choice.error[0], "high": choice.error[1]},
    }


def _pareto(found: ParetoSet) -> dict[str, Any]:
    """Return the trade-off of time against money, and what is proven of it."""
    return {"status": found.status.value, "gap": found.gap, "points": [_tradeoff(one) for one in found.points]}


def _tradeoff(one: Tradeoff) -> dict[str, Any]:
    """Return a point of the trade-off, its plans by their family and configuration."""
    return {**_choice(one.choice), "is_tie": one.is_tie, "plans": _plans(one.choice)}


def _plans(choice: Choice) -> dict[str, dict[str, Any]]:
    """Return how each job trains on a fleet that is not the answer: its family and configuration, and their proof."""
    return {
        name: {
            "status": plan.status.value,
            "objective": plan.objective,
            "bound": plan.bound,
            "family": plan.family,
            "configuration": plan.configuration.to_document(),
        }
        for name, plan in choice.plans.items()
    }


def _what_if(one: WhatIf) -> dict[str, Any]:
    """Return what a change does."""
    return {
        "change": one.change,
        "fleet": None if one.fleet is None else _fleet(one.fleet),
        "objective": one.objective,
        "changes_decision": one.changes_decision,
        "words": one.words,
    }

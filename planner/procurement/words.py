"""What binds a fleet, and over what it was proven, in words."""

import numpy as np

from planner.procurement.account import CRITERIA, fleet_counts
from planner.procurement.answer import Choice
from planner.procurement.search import Fleets
from planner.units import Dimension, format_human, parse
from planner.words import usd_words

__all__ = ["LIMITS", "amount", "break_even_words", "domain_of", "enough", "reasons_of"]

LIMITS = {  # how a limit is called, and in what it is counted
    "cost": ("cost", Dimension.MONEY),
    "spent": ("budget", Dimension.MONEY),
    "time": ("deadline", Dimension.TIME),
    "energy": ("energy", Dimension.ENERGY),
    "power": ("power", Dimension.POWER),
    "capital": ("capital", Dimension.MONEY),
}
_ALL = 0.9995  # of a training; what is beyond reads as all of it
_CLOSE = 0.05  # of a limit: nearer to it, it is told


def amount(value: float, name: str) -> str:
    """Return a criterion's value for reading."""
    if name not in LIMITS:
        return f"{value:.0f}"
    dimension = LIMITS[name][1]
    return usd_words(value) if dimension is Dimension.MONEY else format_human(value, dimension)


def enough(value: float, name: str) -> str:
    """Return a limit for reading, rounded up: whoever types it in is allowed the value."""
    shown = value
    while parse((text := amount(shown, name)).replace(",", ""), LIMITS[name][1]) < value:
        shown = max(shown * 1.0005, shown + (0.005 if LIMITS[name][1] is Dimension.MONEY else 0.0))
    return text


def domain_of(fleets: Fleets) -> tuple[str, ...]:
    """Return over what a fleet is proven to be best."""
    asked = fleets.procurement.asked
    types = "one type" if asked.most_types == 1 else f"up to {asked.most_types} types"
    number = len(fleets.offers)
    return (
        f"{number} offer{'s' * (number != 1)}, fleets of {types} of machines of one region, up to {asked.most_devices} "
        f"devices of a type",
        f"trainings by {' or '.join(fleets.families)}, on the global batch of the question",
    )


def break_even_words(hours_per_month: float | None) -> str:
    """Return from how much use on buying costs less than renting."""
    if hours_per_month is None:
        return "renting costs less for any use within a month"
    return f"buying costs less from {hours_per_month:,.0f} h of use a month on"


def _computing_words(seconds: float, least_s: float) -> str:
    """Return how much of a training is computing, the rest communication and waiting."""
    total, share = format_human(seconds, Dimension.TIME), least_s / seconds
    if share > _ALL:
        return f"communication costs nothing here: all {total} are computing"
    return f"training takes {total}, of which {format_human(least_s, Dimension.TIME)} ({share:.0%}) are computing"


def reasons_of(fleets: Fleets, choice: Choice) -> tuple[str, ...]:
    """Return what a fleet's devices do, and which limits are near."""
    found = []
    ideal_s = [
        1 / sum(count * oracle.ideal_rate(offer) for offer, count in zip(fleet.offers, fleet.counts, strict=True))
        for oracle in fleets.oracles
        for fleet in [fleets.part_of(choice.fleet, oracle.job)]
    ]
    for (name, seconds), least_s in zip(choice.training_s.items(), ideal_s, strict=True):
        what = "" if len(ideal_s) == 1 else f"{name}: "
        found.append(f"{what}{_computing_words(seconds, least_s)}")
    counts = fleet_counts(choice.fleet, fleets.offers)
    work_s = np.array([fleets.work_s(choice.fleet, list(choice.training_s.values()))])
    criteria = fleets.account.criteria(counts, work_s)
    for name in CRITERIA:
        limit, value = fleets.account.limits[name], float(criteria[name][0])
        if np.isfinite(limit) and name in LIMITS:
            near = "binds" if value > limit * (1 - _CLOSE) else "holds"
            called = "month" if name == "time" and fleets.procurement.is_monthly else LIMITS[name][0]
            found.append(f"the {called} {near}: {amount(value, name)} of {amount(limit, name)}")
    return tuple(found)

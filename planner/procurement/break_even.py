"""Rent or buy: from how many hours of use a month on a machine is worth its price."""

from collections.abc import Iterator
from math import isfinite

from planner.models.money import H_PER_MONTH
from planner.models.months import break_even_h_per_month, months_of_use
from planner.procurement.account import price_of, rates_of
from planner.procurement.answer import BreakEven, Choice
from planner.procurement.offer import Offer, Term
from planner.procurement.search import Fleets

__all__ = ["break_evens"]

_HOURS = (50.0, 100.0, 200.0, 400.0, H_PER_MONTH)


def break_evens(fleets: Fleets, choice: Choice) -> tuple[BreakEven, ...]:
    """Return, for every kind of machine that was chosen, renting it against buying one with as many of its devices.

    The cheapest counterpart in the list of prices counts, asked for or not, at the prices of the question.
    """
    found = []
    for offer in choice.fleet.offers:
        other = _counterpart(fleets, offer)
        if other is not None:
            rented, bought = (other, offer) if offer.term is Term.BOUGHT else (offer, other)
            found.append(_of(fleets, rented, bought, None if bought is other else choice.total_wall_s / 3600))
    return tuple(found)


def _counterpart(fleets: Fleets, offer: Offer) -> Offer | None:
    """Return the cheapest offer of as many equal devices that is bought where this one is rented, or rented.

    A machine to buy whose power is not known has no counterpart's price where electricity is to be paid.
    """
    is_bought = offer.term is Term.BOUGHT
    pays_power = fleets.procurement.asked.electricity is not None
    alike = [
        one
        for one in fleets.procurement.priced
        if (one.device, one.devices_per_machine) == (offer.device, offer.devices_per_machine)
        and (one.term is Term.BOUGHT) is not is_bought
        and one.term is not Term.SPOT
        and not (one.term is Term.BOUGHT and pays_power and one.power_w is None)
    ]
    return min(alike, key=lambda one: (one.usd_per_h, one.purchase_usd, one.name), default=None)


def _of(fleets: Fleets, rented: Offer, bought: Offer, used_h: float | None) -> BreakEven:
    """Return the break-even of two offers of the same machine; ``used_h``: of the bought one, where it was chosen."""
    rates = rates_of(fleets.procurement)
    one, other = price_of(rented), price_of(bought)
    hours = float(break_even_h_per_month(one, other, rates))
    return BreakEven(
        rented=rented.name,
        bought=bought.name,
        hours_per_month=hours if isfinite(hours) else None,
        rows=tuple((month.use_h, month.rent_usd, month.buy_usd) for month in months_of_use(_HOURS, one, other, rates)),
        words="; ".join(_words(fleets, rented, hours, used_h)),
    )


def _words(fleets: Fleets, rented: Offer, hours: float, used_h: float | None) -> Iterator[str]:
    """Yield what the figures leave out, and that a bought machine is used too little to be worth its price."""
    if rented.committed_s:
        yield f"the commitment to {rented.committed_s / 3600:,.0f} h of rent is left out"
    if used_h is None or used_h >= hours:
        return
    if fleets.procurement.is_monthly:
        yield f"this month uses it {used_h:,.1f} h; the whole month of it is counted"
    else:
        yield f"this run uses it {used_h:,.1f} h; its share of {used_h:,.1f} h is counted as if it were always in use"

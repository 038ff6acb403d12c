"""Rent or buy: from how many hours of use a month on a machine is worth its price."""

from math import isfinite

from planner.models.money import H_PER_MONTH, break_even_h_per_month, months_of_use
from planner.procurement.account import price_of, rates_of
from planner.procurement.answer import BreakEven, Choice
from planner.procurement.offer import Offer, Term
from planner.procurement.search import Fleets

__all__ = ["break_evens"]

_HOURS = (50.0, 100.0, 200.0, 400.0, H_PER_MONTH)


def break_evens(fleets: Fleets, choice: Choice) -> tuple[BreakEven, ...]:
    """Return, for every kind of machine that was chosen, renting it against buying one with as many of its devices.

    The cheapest counterpart in the list of prices counts, asked for or not.
    """
    found = []
    for offer in choice.fleet.offers:
        other = _counterpart(fleets, offer)
        if other is not None:
            rented, bought = (other, offer) if offer.term is Term.BOUGHT else (offer, other)
            found.append(_of(fleets, rented, bought))
    return tuple(found)


def _counterpart(fleets: Fleets, offer: Offer) -> Offer | None:
    """Return the cheapest offer of as many equal devices that is bought where this one is rented, or rented."""
    is_bought = offer.term is Term.BOUGHT
    alike = [
        one
        for one in fleets.procurement.prices.offers
        if (one.device, one.devices_per_machine) == (offer.device, offer.devices_per_machine)
        and (one.term is Term.BOUGHT) is not is_bought
        and one.term is not Term.SPOT
    ]
    return min(alike, key=lambda one: (one.usd_per_h, one.purchase_usd, one.name), default=None)


def _of(fleets: Fleets, rented: Offer, bought: Offer) -> BreakEven:
    """Return the break-even of two offers of the same machine."""
    rates = rates_of(fleets.procurement)
    one, other = price_of(rented), price_of(bought)
    hours = float(break_even_h_per_month(one, other, rates))
    return BreakEven(
        rented=rented.name,
        bought=bought.name,
        hours_per_month=hours if isfinite(hours) else None,
        rows=tuple((month.use_h, month.rent_usd, month.buy_usd) for month in months_of_use(_HOURS, one, other, rates)),
    )

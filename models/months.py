"""A machine month by month: rented by the hour, or bought and kept; from how many hours of use on it pays to buy."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isclose
from typing import Literal

import numpy as np

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.money import (
    H_PER_MONTH,
    J_PER_KWH,
    S_PER_H,
    S_PER_MONTH,
    MachinePrices,
    Rates,
    rent_usd_per_h,
)

__all__ = ["Month", "break_even_h_per_month", "months_of_use"]

_ROUNDING = 1e-12  # relative: two months that differ by less cost the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Month:
    """A machine rented or bought, for so many hours of use a month."""

    use_h: float
    rent_usd: float
    buy_usd: float

    @property
    def cheaper(self) -> Literal["rent", "buy", "same"]:
        """Which of the two costs less; the same within rounding."""
        if isclose(self.rent_usd, self.buy_usd, rel_tol=_ROUNDING):
            return "same"
        return "rent" if self.rent_usd < self.buy_usd else "buy"


def break_even_h_per_month(rented: MachinePrices, bought: MachinePrices, rates: Rates) -> Floats:
    """Return the hours of use a month from which on it costs no more to buy a machine than to rent one.

    Element by element; infinite where renting costs less even for a whole month's 730 hours ("never").

    Raises
    ------
    ModelError
        If the bought machine's power is unknown, and electricity costs something.

    Notes
    -----
    ``fixed / (rent - running)``: a bought machine ages and is hosted whether it is used or not, and draws power only
    while it is. Hours are hours of the same work: where the two are not equally fast, give the rent for as much work as
    the bought machine does in an hour. Billing granules and commitments are left out.

    >>> bought = MachinePrices(is_bought=True, purchase_usd=43800, useful_life_s=5 * 8760 * 3600, power_w=1000)
    >>> float(break_even_h_per_month(MachinePrices(usd_per_h=4), bought, Rates(electricity_usd_per_kwh=0.35)))
    200.0
    """
    fixed_usd, running_usd_per_h = _owning_usd(bought, rates)
    fixed, saved = np.broadcast_arrays(fixed_usd, rent_usd_per_h(rented) - running_usd_per_h)
    hours = np.divide(fixed, saved, out=np.full(fixed.shape, inf), where=saved > 0)
    hours = np.where((fixed == 0) & (saved >= 0), 0.0, hours)
    return np.where(hours <= H_PER_MONTH, hours, inf)


def months_of_use(
    use_h_per_month: Sequence[float], rented: MachinePrices, bought: MachinePrices, rates: Rates
) -> tuple[Month, ...]:
    """Return what one machine costs a month, rented and bought, for each number of hours; as in the break-even.

    Raises
    ------
    ModelError
        If a month is to have less than 0 or more than 730 hours of use, or the bought machine's power is unknown, and
        electricity costs something.

    >>> bought = MachinePrices(is_bought=True, purchase_usd=43800, useful_life_s=5 * 8760 * 3600, power_w=1000)
    >>> for month in months_of_use([100, 200, 730], MachinePrices(usd_per_h=4), bought, Rates(pue=1.2)):
    ...     print(f"{month.use_h:g} h: rent {month.rent_usd:.2f}, buy {month.buy_usd:.2f} USD: {month.cheaper}")
    100 h: rent 400.00, buy 730.00 USD: rent
    200 h: rent 800.00, buy 730.00 USD: buy
    730 h: rent 2920.00, buy 730.00 USD: buy
    """
    if wrong := [use_h for use_h in use_h_per_month if not 0 <= use_h <= H_PER_MONTH]:
        raise ModelError(f"a month has no {wrong[0]} hours of use. Give 0 to {H_PER_MONTH:g}.")
    fixed_usd, running_usd_per_h = (float(usd) for usd in _owning_usd(bought, rates))
    usd_per_h = float(rent_usd_per_h(rented))
    return tuple(
        Month(use_h=use_h, rent_usd=usd_per_h * use_h, buy_usd=fixed_usd + running_usd_per_h * use_h)
        for use_h in use_h_per_month
    )


def _owning_usd(bought: MachinePrices, rates: Rates) -> tuple[Floats, Floats]:
    """Return what a bought machine costs a month, used or not, and an hour of use besides."""
    aging = np.divide(bought.purchase_usd, bought.useful_life_s) * S_PER_MONTH
    price = rates.electricity_usd_per_kwh
    kwh_per_h = np.multiply(bought.power_w, S_PER_H / J_PER_KWH * rates.pue)
    if price and np.isnan(kwh_per_h).any():
        raise ModelError("power_w: a bought machine's power is unknown, but its electricity is to be paid. Give it.")
    running = kwh_per_h * price if price else np.zeros(np.shape(bought.power_w))
    return np.asarray(aging + np.asarray(bought.hosting_usd_per_month)), np.asarray(running)

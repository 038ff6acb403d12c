"""Dollars and energy of a run on a fleet of machines, term by term: rented, reserved, bought; storage and traffic.

A *month* is 730 hours (8,760 hours a year over 12), which is what the clouds' own calculators take. A *GB* is 10**9
bytes. Sources: the billing rules that providers publish, of which each function states the one that it computes; energy
with the facility's overhead after The Green Grid's power usage effectiveness (PUE; ISO/IEC 30134-2): facility energy
over that of the computing equipment.

The wall time is that of :mod:`planner.models.failures`: start-up, evaluation, checkpoints, and failures included. A
machine is paid for all of it, whether it works or waits. Left out: taxes, staff, interest and resale value, discounts
that grow with use, the power that a machine draws while it is not used, and prices that change during the run.

Shapes: counts are (kinds, fleets), or (kinds,) for the same machines in all fleets; prices one number or (kinds,); the
wall time and bytes (fleets,) or one number. Fleets may have any number of axes. No term falls when a count or the wall
time grows. Nothing is paid for a kind without machines, even where the wall time is infinite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import inf

import numpy as np
from numpy.typing import ArrayLike

from planner.cost import Floats
from planner.errors import ModelError
from planner.frozen import frozen
from planner.models.failures import checked_amounts, product

H_PER_MONTH = 730.0
S_PER_H = 3600.0
S_PER_DAY = 24 * S_PER_H
S_PER_MONTH = H_PER_MONTH * S_PER_H
J_PER_KWH = 3.6e6
_BYTES_PER_GB = 1e9
_UNKNOWN_POWER = "power_w: a bought machine's power is unknown, but its electricity is to be paid. Give it."
_ROUNDING = 1e-12  # relative: a wall time that is over a whole granule by less has not begun another


@frozen(eq=False)
class MachinePrices:
    """What machines of several kinds cost: each field one number for all kinds, or one for each."""

    # rent of one machine; 0 for a bought one. Of a reserved one, before ``discount``
    usd_per_h: ArrayLike = 0.0
    # billing_s, least_billed_s: rented time is billed in whole multiples of the first (0: as it is), and at least the
    # second
    billing_s: ArrayLike = 1.0
    least_billed_s: ArrayLike = 0.0
    # committed_s, discount: of a reserved machine: what is paid for in any case, and the share of the rent that is let
    # off, 0 to 1. A kind for which either is above 0 is a reserved one
    committed_s: ArrayLike = 0.0
    discount: ArrayLike = 0.0
    is_bought: ArrayLike = False  # whether its owner pays for electricity, hosting and wear
    # purchase_usd, useful_life_s, resale_usd, hosting_usd_per_month: of a bought machine: network card and switch port
    # included; what it is sold for after its life
    purchase_usd: ArrayLike = 0.0
    useful_life_s: ArrayLike = inf
    resale_usd: ArrayLike = 0.0
    hosting_usd_per_month: ArrayLike = 0.0
    power_w: ArrayLike = float("nan")  # of one machine under load, devices and host; not a number where unknown

    def __post_init__(self) -> None:
        for field in fields(self):
            numbers = np.asarray(getattr(self, field.name), dtype=np.float64)
            known = numbers[~np.isnan(numbers)] if field.name == "power_w" else numbers
            checked_amounts(field.name, known)
            if field.name != "useful_life_s" and np.isinf(known).any():
                raise ModelError(f"{field.name}: a machine is never priced at infinity. Give finite numbers.")
        if (np.asarray(self.discount) > 1).any():
            raise ModelError(f"discount: {np.max(self.discount)} is more than everything. Give a share of 0 to 1.")
        if (np.asarray(self.resale_usd) > np.asarray(self.purchase_usd)).any():
            raise ModelError("resale_usd: a machine is sold for no more than it was bought for. Give less.")
        if (np.asarray(self.useful_life_s) == 0).any():
            raise ModelError("useful_life_s: a machine that lives 0 s cannot be used. Give more than 0.")


@frozen
class Rates:
    """Prices that do not depend on the machine."""

    # electricity_usd_per_kwh, pue: for bought machines: the price at the meter, and facility energy over machines'
    # energy, >= 1
    electricity_usd_per_kwh: float = 0.0
    pue: float = 1.0
    # storage_usd_per_gb_month, egress_usd_per_gb: of what is kept during the run, and of what leaves the provider's
    # network
    storage_usd_per_gb_month: float = 0.0
    egress_usd_per_gb: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 1 if field.name == "pue" else 0
            if not least <= (number := getattr(self, field.name)) < inf:
                raise ModelError(f"{field.name}: {number} is not finite and {least} or more. Give such a number.")


def cost_parts(
    counts: ArrayLike,
    prices: MachinePrices,
    wall_s: ArrayLike,
    rates: Rates,
    *,
    stored_bytes: ArrayLike = 0.0,
    egress_bytes: ArrayLike = 0.0,
) -> Mapping[str, Floats]:
    """Return the dollars of runs by what they are paid for, each of shape (fleets,); :func:`total_usd` adds them up.

    Parameters
    ----------
    counts, prices, wall_s
        Machines, what they cost, and the wall time; see the opening of this module for their shapes.
    rates
        Prices that do not depend on the machine.
    stored_bytes, egress_bytes
        Kept during the run; and sent out of the provider's network, once.

    Returns
    -------
    - ``rent``: on demand and spot, the wall time in whole granules, and at least the least time;
    - ``reserved``: the same with the discount, and for at least the committed time, used or not. Time beyond it is paid
      at the reserved price, too. One run pays the whole commitment: share it out among several runs by giving each its
      part of the committed time;
    - ``capital``: a run's share in bought machines: the purchase less the resale, times wall time over useful life.
      That is the cost of a machine which is always in use; :func:`break_even_h_per_month` asks for one that is not;
    - ``hosting``: room, rack and hands for bought machines, from their price for a month;
    - ``electricity``: of bought machines, power x PUE x price x wall time. Rent includes that of rented ones;
    - ``storage``: a price for GiB is 1.0737 times that for GB; and ``egress``.

    Raises
    ------
    ModelError
        If bought machines of unknown power run, and electricity costs something; or an amount is negative.

    Notes
    -----
    For example, Amazon EC2 bills Linux machines by the second and at least a minute for every start (its API reference,
    StartInstances); others bill whole hours. A failure does not begin another granule: a failed machine is taken to be
    started again, or replaced, at its own place in the same bill. Where a replacement is a bill of its own, this leaves
    out at most one granule, or the least time, for each failure.

    >>> prices = MachinePrices(usd_per_h=[32.77, 0], is_bought=[False, True], purchase_usd=[0, 30000], power_w=2000,
    ...     useful_life_s=4 * 365 * 86400)
    >>> parts = cost_parts([1, 2], prices, 10 * 3600, Rates(electricity_usd_per_kwh=0.15, pue=1.25))
    >>> {name: round(float(usd), 2) for name, usd in parts.items() if usd}
    {'rent': 327.7, 'capital': 17.12, 'electricity': 7.5}
    """
    machines, run_s = _aligned(counts, wall_s)
    months = run_s / S_PER_MONTH

    def column(values: ArrayLike) -> Floats:
        return _column(values, machines)

    is_bought = np.asarray(prices.is_bought, dtype=np.bool_)
    is_reserved = ((np.asarray(prices.committed_s) > 0) | (np.asarray(prices.discount) > 0)) & ~is_bought
    bought, reserved, rented = (
        np.where(column(kinds), machines, 0.0) for kinds in (is_bought, is_reserved, ~(is_reserved | is_bought))
    )
    given_s = column(prices.billing_s)
    granule_s = np.where(given_s > 0, given_s, 1.0)
    whole_s = np.ceil(run_s / granule_s * (1 - _ROUNDING)) * granule_s
    billed_s = np.maximum(np.where(given_s > 0, whole_s, run_s), column(prices.least_billed_s))
    reserved_s = np.maximum(billed_s, column(prices.committed_s))
    nothing = electricity = np.zeros(())
    if rates.electricity_usd_per_kwh:
        used_j = _sum(bought, product(column(np.multiply(prices.power_w, rates.pue)), run_s))
        if np.isnan(used_j).any():
            raise ModelError(_UNKNOWN_POWER)
        electricity = used_j / J_PER_KWH * rates.electricity_usd_per_kwh
    stored_gb, egress_gb = (
        checked_amounts(name, sent) / _BYTES_PER_GB
        for name, sent in (("stored_bytes", stored_bytes), ("egress_bytes", egress_bytes))
    )
    parts = {
        "rent": _sum(rented, product(column(prices.usd_per_h) / S_PER_H, billed_s)),
        "reserved": nothing,
        "capital": nothing,
        "hosting": nothing,
        "electricity": electricity,
        "storage": product(stored_gb * rates.storage_usd_per_gb_month, months),
        "egress": egress_gb * rates.egress_usd_per_gb,
    }
    if is_reserved.any():
        parts["reserved"] = _sum(reserved, product(column(_rent_usd_per_h(prices)) / S_PER_H, reserved_s))
    if is_bought.any():
        parts["capital"] = _sum(bought, product(column(_wear_usd_per_s(prices)), run_s))
        parts["hosting"] = _sum(bought, product(column(prices.hosting_usd_per_month), months))
    return dict(zip(parts, np.broadcast_arrays(*parts.values()), strict=True))


def total_usd(parts: Mapping[str, Floats]) -> Floats:
    """Return the sum of the parts, shape (fleets,).

    Parameters
    ----------
    parts
        Of :func:`cost_parts`.
    """
    return np.asarray(sum(parts.values(), np.zeros(())))


def capital_usd(counts: ArrayLike, prices: MachinePrices) -> Floats:
    """Return what has to be paid to buy the bought machines, whatever they run: for a limit on capital.

    Parameters
    ----------
    counts, prices
        As for :func:`cost_parts`.
    """
    machines, _ = _aligned(counts, 0.0)
    bought = np.where(_column(np.asarray(prices.is_bought, dtype=np.bool_), machines), machines, 0.0)
    return _sum(bought, _column(prices.purchase_usd, machines))


def energy_j(counts: ArrayLike, prices: MachinePrices, wall_s: ArrayLike, *, pue: float = 1.0) -> Floats:
    """Return the energy of all machines, rented ones too, under load all the time; not a number where one is unknown.

    Machines that wait draw less: this is an upper estimate. Switches count where they are in ``power_w``.

    Parameters
    ----------
    counts, prices, wall_s
        As for :func:`cost_parts`.
    pue
        Facility energy over machines' energy, >= 1.
    """
    machines, run_s = _aligned(counts, wall_s)
    return _sum(machines, product(_column(np.multiply(prices.power_w, pue), machines), run_s))


def peak_power_w(counts: ArrayLike, prices: MachinePrices, *, pue: float = 1.0) -> Floats:
    """Return the power of all machines under load; not a number where one is unknown.

    Parameters
    ----------
    counts, prices
        As for :func:`cost_parts`.
    pue
        With 1 it is what the racks must feed; with the facility's own, what its connection must.
    """
    return energy_j(counts, prices, 1.0, pue=pue)


def _wear_usd_per_s(prices: MachinePrices) -> Floats:
    """Return what a bought machine loses of its worth in a second, in a straight line down to its resale."""
    return np.asarray(np.divide(np.subtract(prices.purchase_usd, prices.resale_usd), prices.useful_life_s))


def _rent_usd_per_h(prices: MachinePrices) -> Floats:
    """Return the hourly rent after the discount."""
    return np.asarray(np.multiply(prices.usd_per_h, 1 - np.asarray(prices.discount)))


def _aligned(counts: ArrayLike, wall_s: ArrayLike) -> tuple[Floats, Floats]:
    """Return the counts, with axes for all fleets, and the wall time."""
    machines, run_s = checked_amounts("counts", counts), checked_amounts("wall_s", wall_s)
    return machines.reshape(machines.shape + (1,) * (run_s.ndim + 1 - machines.ndim)), run_s


def _column(values: ArrayLike, machines: Floats) -> Floats:
    """Return one number for each kind, or for all of them, beside the axes of the fleets."""
    each = np.asarray(values)
    if each.ndim == 0:
        return each
    if each.shape != machines.shape[:1]:
        each = np.broadcast_to(each, machines.shape[:1])
    return each.reshape(machines.shape[:1] + (1,) * (machines.ndim - 1))


def _sum(machines: Floats, each: Floats) -> Floats:
    """Return the sum over the kinds of so many times each."""
    return np.asarray(product(machines, each).sum(axis=0))


# -- a machine month by month: rented by the hour, or bought and kept --------------------------------------------------


@frozen
class Month:
    """A machine rented or bought, for so many hours of use a month."""

    use_h: float
    rent_usd: float
    buy_usd: float


def break_even_h_per_month(rented: MachinePrices, bought: MachinePrices, rates: Rates) -> Floats:
    """Return the hours of use a month from which on it costs no more to buy a machine than to rent one.

    Element by element; infinite where renting costs less even for a whole month's 730 hours ("never").

    Parameters
    ----------
    rented, bought
        The two machines; fields of any shapes that broadcast.
    rates
        Of electricity.

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
    fixed, saved = np.broadcast_arrays(fixed_usd, _rent_usd_per_h(rented) - running_usd_per_h)
    hours = np.divide(fixed, saved, out=np.full(fixed.shape, inf), where=saved > 0)
    hours = np.where((fixed == 0) & (saved >= 0), 0.0, hours)
    return np.where(hours <= H_PER_MONTH, hours, inf)


def months_of_use(
    use_h_per_month: Sequence[float], rented: MachinePrices, bought: MachinePrices, rates: Rates
) -> tuple[Month, ...]:
    """Return what one machine costs a month, rented and bought, for each number of hours; as in the break-even.

    Parameters
    ----------
    use_h_per_month
        Hours, 0 to 730.
    rented, bought, rates
        As for :func:`break_even_h_per_month`, of one machine each.

    Raises
    ------
    ModelError
        If a month is to have less than 0 or more than 730 hours of use, or the bought machine's power is unknown, and
        electricity costs something.

    >>> bought = MachinePrices(is_bought=True, purchase_usd=43800, useful_life_s=5 * 8760 * 3600, power_w=1000)
    >>> for month in months_of_use([100, 200, 730], MachinePrices(usd_per_h=4), bought, Rates(pue=1.2)):
    ...     print(f"{month.use_h:g} h: rent {month.rent_usd:.2f}, buy {month.buy_usd:.2f} USD")
    100 h: rent 400.00, buy 730.00 USD
    200 h: rent 800.00, buy 730.00 USD
    730 h: rent 2920.00, buy 730.00 USD
    """
    if wrong := [use_h for use_h in use_h_per_month if not 0 <= use_h <= H_PER_MONTH]:
        raise ModelError(f"a month has no {wrong[0]} hours of use. Give 0 to {H_PER_MONTH:g}.")
    fixed_usd, running_usd_per_h = (float(usd) for usd in _owning_usd(bought, rates))
    usd_per_h = float(_rent_usd_per_h(rented))
    return tuple(
        Month(use_h=use_h, rent_usd=usd_per_h * use_h, buy_usd=fixed_usd + running_usd_per_h * use_h)
        for use_h in use_h_per_month
    )


def paid_by_month(
    months: Sequence[float], use_h_per_month: float, rented: MachinePrices, bought: MachinePrices, rates: Rates
) -> tuple[tuple[float, float, float], ...]:
    """Return what was paid in all after so many months, of one machine: months, rented, and bought.

    Cash, as it is paid: the purchase at once, hosting every month, electricity as it is used; what the machine is worth
    by then is not taken off, nor is a commitment counted.

    >>> bought = MachinePrices(is_bought=True, purchase_usd=43800, hosting_usd_per_month=20)
    >>> paid_by_month([0, 12], 730, MachinePrices(usd_per_h=4), bought, Rates())
    ((0.0, 0.0, 43800.0), (12.0, 35040.0, 44040.0))
    """
    rent_usd, running_usd = (
        float(_rent_usd_per_h(rented)) * use_h_per_month,
        _running_usd(use_h_per_month, bought, rates),
    )
    purchase = float(np.asarray(bought.purchase_usd))
    return tuple((float(month), rent_usd * month, purchase + running_usd * month) for month in months)


def payback_months(use_h_per_month: float, rented: MachinePrices, bought: MachinePrices, rates: Rates) -> float:
    """Return after how many months of so much use the rent of a machine has come to what buying it has; or infinity.

    As :func:`paid_by_month` counts.

    >>> bought = MachinePrices(is_bought=True, purchase_usd=43800, hosting_usd_per_month=20)
    >>> round(payback_months(730, MachinePrices(usd_per_h=4), bought, Rates()), 2)
    15.1
    """
    saved_usd = float(_rent_usd_per_h(rented)) * use_h_per_month - _running_usd(use_h_per_month, bought, rates)
    return float(np.asarray(bought.purchase_usd)) / saved_usd if saved_usd > 0 else inf


def _running_usd(use_h_per_month: float, bought: MachinePrices, rates: Rates) -> float:
    """Return what a bought machine is paid for in a month beside its purchase."""
    _, running_usd_per_h = _owning_usd(bought, rates)
    return float(np.asarray(bought.hosting_usd_per_month)) + float(running_usd_per_h) * use_h_per_month


def _owning_usd(bought: MachinePrices, rates: Rates) -> tuple[Floats, Floats]:
    """Return what a bought machine costs a month, used or not, and an hour of use besides."""
    aging = _wear_usd_per_s(bought) * S_PER_MONTH
    price = rates.electricity_usd_per_kwh
    kwh_per_h = np.multiply(bought.power_w, S_PER_H / J_PER_KWH * rates.pue)
    if price and np.isnan(kwh_per_h).any():
        raise ModelError(_UNKNOWN_POWER)
    running = kwh_per_h * price if price else np.zeros(np.shape(bought.power_w))
    return np.asarray(aging + np.asarray(bought.hosting_usd_per_month)), np.asarray(running)

"""Price lists: the one that ships, and those of users, read by the same rules into offers.

Every row is one kind of machine on one term. The columns, their units and what is assumed stand in docs/prices.md. A
row that says in its column ``unusable`` why nothing can be planned with it is kept with that reason; any other row must
be right in every cell.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path

from planner import data
from planner.data.prices import prices_text
from planner.errors import Fault, SpecError
from planner.names import fold
from planner.procurement.csv_table import Row, read_rows, refuse, text_of
from planner.procurement.offer import Offer, PriceList, Term, Unusable

__all__ = ["BUILT_IN", "OLD_DAYS", "OPTIONAL", "REQUIRED", "age_days", "merged", "read_price_list"]

BUILT_IN = "the built-in price list"
OLD_DAYS = 90  # an older list deserves a warning
REQUIRED = ("provider", "instance", "region", "term", "device", "devices", "date", "source")
_RENT = ("usd_per_h", "billing_s", "least_billed_s", "committed_h", "interruptions_per_h")
_PURCHASE = ("purchase_usd", "useful_life_years", "hosting_usd_per_month")
OPTIONAL = (
    *("currency", *_RENT, *_PURCHASE),
    *("host_power_w", "power_w", "inside", "network_gbit_per_s", "latency_us"),
    *("memory_gib", "vcpus", "most", "note", "unusable"),
)
_CURRENCY = "USD"
_HOUR_S, _YEAR_S = 3600.0, 8760 * 3600.0
_GBIT, _GIB, _US = 1e9 / 8, 2.0**30, 1e-6
_LATENCY_S = 20e-6
_MOST_DEVICES, _MOST_MACHINES = 2**20, 2**20


def read_price_list(path: Path | None, *, today: date | None = None, custom_devices: Collection[str] = ()) -> PriceList:
    """Return the offers of a price list, and its rows that are marked unusable.

    Parameters
    ----------
    path
        Of a table of the documented columns; None: the list that ships.
    today
        Against which dates are held; None: no date is in the future.
    custom_devices
        Names that rows may use beside those of the device table.

    Raises
    ------
    SpecError
        With file, line, column, value and mend of everything that is wrong, in one pass.
    """
    text, file = (prices_text(), BUILT_IN) if path is None else (text_of(path), str(path))
    latest = None if path is None else today  # what ships is not of the future, whatever a clock says
    faults: list[Fault] = []
    rows = read_rows(text, file, required=REQUIRED, optional=OPTIONAL, faults=faults)
    custom = {fold(name): name for name in custom_devices}
    lines: dict[str, int] = {}
    offers, unusable = [], []
    for row in rows:
        name = _name(row, lines)
        if row.text("unusable"):
            unusable.append(Unusable(line=row.line, name=name, reason=row.text("unusable"), row=row.cells))
        else:
            offers.append(_offer(row, name, latest, custom))
    if rows and not offers and not faults:
        problem = "no row of it can be used: each one gives a reason in 'unusable'."
        faults.append(Fault(file=file, problem=problem, mend="Add a row, or empty that cell of one."))
    refuse(faults)
    return PriceList(offers=tuple(offers), unusable=tuple(unusable), files=(file,))


def merged(lists: Sequence[PriceList | None]) -> PriceList:
    """Return several lists as one.

    Where two have an offer of the same name the later list's holds, and the earlier one is kept among the unusable with
    that reason. A row marked unusable does not take the place of an offer. None stands for a list that could not be
    read; its faults are told elsewhere.
    """
    kept: dict[str, Offer] = {}
    unusable: list[Unusable] = []
    files: list[str] = []
    for found in lists:
        if found is None:
            continue
        where = " and ".join(found.files)
        for offer in found.offers:
            key = offer.name.lower()
            if key in kept:
                unusable.append(_replaced(kept[key], where))
            kept[key] = offer
        unusable += found.unusable
        files += found.files
    return PriceList(offers=tuple(kept.values()), unusable=tuple(unusable), files=tuple(files))


def age_days(prices: PriceList, today: date) -> int:
    """Return how many days old the oldest price of a list is.

    >>> age_days(read_price_list(None), date(2026, 7, 20)) > OLD_DAYS
    True
    """
    return (today - prices.oldest).days


def _replaced(offer: Offer, where: str) -> Unusable:
    """Return an offer as a row that another list's took the place of; its line is not known any more."""
    cells = {"provider": offer.provider, "instance": offer.instance, "region": offer.region, "term": str(offer.term)}
    row = cells | {"device": offer.device, "date": offer.date.isoformat(), "source": offer.source}
    return Unusable(line=0, name=offer.name, reason=f"replaced by the row of the same name in {where}", row=row)


def _name(row: Row, lines: dict[str, int]) -> str:
    """Return the name of a row's offer, which no earlier row may have."""
    parts = [row.name(column) for column in ("provider", "instance", "region")]
    name = "/".join([*parts, row.choice("term", [str(term) for term in Term])])
    first = lines.setdefault(name.lower(), row.line)
    if first != row.line:
        row.fault("instance", f"{name} stands in line {first}, too.", "Remove one, or rename one's instance.")
    return name


def _offer(row: Row, name: str, today: date | None, custom: dict[str, str]) -> Offer:
    """Return the offer of a row; where a cell is a fault, with whatever goes on."""
    term = name.rsplit("/", 1)[1]  # empty where it is a fault
    _check_currency(row)
    device = _device(row, custom)
    devices = row.count("devices", _MOST_DEVICES) if row.needed("devices") else None
    gbit_per_s, latency_us = row.number("network_gbit_per_s"), row.number("latency_us", is_zero=True)
    memory_gib = row.number("memory_gib")
    offer = Offer(
        name=name,
        provider=row.text("provider"),
        instance=row.text("instance"),
        region=row.text("region"),
        term=Term(term or Term.ON_DEMAND),
        device=device,
        devices_per_machine=devices or 1,
        date=row.day("date", today),
        source=row.needed("source"),
        inside=_inside(row, devices or 1),
        network_bytes_per_s=None if gbit_per_s is None else gbit_per_s * _GBIT,
        latency_s=_LATENCY_S if latency_us is None else latency_us * _US,
        memory_bytes=None if memory_gib is None else memory_gib * _GIB,
        vcpus=row.count("vcpus", _MOST_MACHINES),
        power_w=_power_w(row, device, devices or 1),
        most=row.count("most", _MOST_MACHINES),
        note=row.text("note"),
    )
    if not term:  # what its price must be like is not known
        return offer
    return _bought(row, offer) if offer.term is Term.BOUGHT else _rented(row, offer)


def _check_currency(row: Row) -> None:
    """Refuse another currency than the one in the columns' names."""
    given = row.text("currency")
    if given.upper() not in ("", _CURRENCY):
        mend = f"Convert the prices and write {_CURRENCY}, or leave the cell empty."
        row.fault("currency", f"{given!r} is not {_CURRENCY}, in which this list's prices are.", mend)


@cache
def _listed_device(name: str) -> tuple[str, float | None]:
    """Return the proper name and the power of a device of the table; raise SpecError where there is none."""
    found = data.device(name)
    return found.name, found.power_w


@cache
def _listed_link(name: str) -> str:
    """Return the proper name of a link inside a machine; raise SpecError where there is none."""
    data.inside_link(name)
    return next(link for link in data.inside_links() if fold(link) == fold(name))


def _device(row: Row, custom: dict[str, str]) -> str:
    """Return the proper name of a row's device."""
    given = row.needed("device")
    if not given or fold(given) in custom:
        return custom.get(fold(given), given)
    try:
        return _listed_device(given)[0]
    except SpecError as error:
        row.fault("device", error.faults[0].problem, error.faults[0].mend)
        return given


def _inside(row: Row, devices: int) -> str | None:
    """Return the name of the link between the devices of a machine."""
    given = row.text("inside")
    if not given:
        if devices > 1:
            mend = "Name a link of 'planner show links', e.g. pcie-4-x16."
            row.fault("inside", f"{devices} devices in a machine, and no link between them.", mend)
        return None
    try:
        known = _listed_link(given)
    except SpecError as error:
        row.fault("inside", error.faults[0].problem, error.faults[0].mend)
        return None
    return known if devices > 1 else None


def _power_w(row: Row, device: str, devices: int) -> float | None:
    """Return a machine's power: as given, else that of its devices and of its host; None where one is not known."""
    whole_w, host_w = row.number("power_w"), row.number("host_power_w", is_zero=True)
    if whole_w is not None or host_w is None or device not in data.device_names():
        return whole_w
    device_w = _listed_device(device)[1]
    return None if device_w is None else devices * device_w + host_w


def _rented(row: Row, offer: Offer) -> Offer:
    """Return the offer with what a rented machine costs."""
    _leave_empty(row, offer.term, _PURCHASE)
    usd_per_h = row.number("usd_per_h")
    _need(row, "usd_per_h", "a rented machine has no price.")
    committed_h = row.number("committed_h")
    if offer.term is Term.RESERVED:
        _need(row, "committed_h", "nothing says for how long the machine is reserved.")
    else:
        _leave_empty(row, offer.term, ("committed_h",))
    if offer.term is not Term.SPOT:
        _leave_empty(row, offer.term, ("interruptions_per_h",))
    return replace(
        offer,
        usd_per_h=usd_per_h or 0.0,
        billing_s=row.number("billing_s") or 1.0,
        least_billed_s=row.number("least_billed_s", is_zero=True) or 0.0,
        committed_s=(committed_h or 0.0) * _HOUR_S,
        interruptions_per_h=row.number("interruptions_per_h", is_zero=True) or 0.0,
    )


def _bought(row: Row, offer: Offer) -> Offer:
    """Return the offer with what a bought machine costs."""
    _leave_empty(row, offer.term, _RENT)
    _need(row, "purchase_usd", "a bought machine has no price.")
    _need(row, "useful_life_years", "nothing says over how many years the purchase is written off.")
    return replace(
        offer,
        purchase_usd=row.number("purchase_usd") or 0.0,
        useful_life_s=(row.number("useful_life_years") or 1.0) * _YEAR_S,
        hosting_usd_per_month=row.number("hosting_usd_per_month", is_zero=True) or 0.0,
    )


def _need(row: Row, column: str, problem: str) -> None:
    """Add a fault where a cell is empty."""
    if not row.text(column):
        row.fault(column, problem, f"Give {column}; a row without it may say why in 'unusable'.")


def _leave_empty(row: Row, term: Term, columns: Sequence[str]) -> None:
    """Add a fault for each filled cell that means nothing on a term: it would be dropped in silence."""
    for column in columns:
        if row.text(column):
            problem = f"{column} means nothing on the term {str(term)!r}."
            row.fault(column, problem, "Empty the cell, or write another term.")

"""A catalogue of prices joined with our devices and machines: a list of prices that a purchase can be asked of.

Whose machine an instance type is, is told by tables: the list of prices that ships, which has a row for most machines
of the large clouds; the machines as they are sold; instance types beside them. Where it stands in none, the name of the
accelerator tells it, if that device is sold in one form. What cannot be joined is kept, with the reason, in the column
``unusable``, which every list of prices has. The rate of a network is that of the machine, all cards together.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from math import isclose
from pathlib import Path

from planner import data
from planner.data.presets import prices_text
from planner.errors import SpecError
from planner.frozen import frozen
from planner.letters import table_cell
from planner.names import fold
from planner.procurement.catalogues import Catalogue, Counted, Listed, read_catalogue
from planner.procurement.prices import (
    GBIT_BYTES,
    MOST_ROWS,
    OPTIONAL,
    REQUIRED,
    Offer,
    PriceList,
    Term,
    price_list_of,
    read_price_list,
)
from planner.units import plain

_CLOSE = 0.2  # of a device's memory: catalogues count what is free, or GB for GiB
_GIB = 2.0**30
_FIRST_LINE = 3  # of the rows of a list that is written, below its title and its columns
_MOST_ROUNDS = 20
_ROUNDED = 6  # decimals of a price by the hour


@frozen
class Shape:
    """What a training sees of a machine, as cells of a list of prices."""

    device: str
    devices: int
    cells: Mapping[str, str]


@frozen
class PricesImport:
    """A list of prices made of a catalogue."""

    catalogue: Catalogue
    # cells by column: usable ones first, then those that could not be joined, with the reason
    rows: Sequence[Mapping[str, str]]
    not_joined: Counted  # rows by their reason
    date: date  # on which all its prices held
    notes: tuple[str, ...] = ()

    @property
    def usable(self) -> list[Mapping[str, str]]:
        """Rows that can be planned with."""
        return [row for row in self.rows if not row["unusable"]]

    def to_csv(self) -> str:
        """Return the list as text that :func:`planner.procurement.prices.read_price_list` reads."""
        columns = [name for name in (*REQUIRED, *OPTIONAL) if any(row.get(name) for row in self.rows)]
        out = io.StringIO()
        out.write(f"# planner prices import: {self.catalogue.kind} of {self.date}, {self.catalogue.num_rows} rows\n")
        writer = csv.DictWriter(out, columns, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: table_cell(cell) for key, cell in row.items()} for row in self.rows)
        return out.getvalue()

    def totals(self) -> dict[str, object]:
        """Return what there was, what was joined, and what was not and why."""
        usable = self.usable
        return {
            "catalogue": self.catalogue.kind,
            "date": self.date.isoformat(),
            "rows": self.catalogue.num_rows,
            "joined": len(usable),
            "machines": len({row["instance"] for row in usable}),
            "regions": len({row["region"] for row in usable}),
            "by_term": {str(term): number for term in Term if (number := sum(r["term"] == term for r in usable))},
            "not_joined": self.not_joined.rows(),
            "left_out": self.catalogue.left_out.rows(),
            "notes": list(self.notes),
        }


@dataclass(slots=True)
class _Folded:
    """The cheapest of several prices of one machine on one term: of zones, or of ways to pay."""

    cheapest: Listed
    dearest: float
    number: int = 1
    others: dict[str, None] = field(default_factory=dict)

    def add(self, one: Listed) -> None:
        """Add a price."""
        self.number += 1
        self.dearest = max(self.dearest, one.per_h)
        if one.per_h < self.cheapest.per_h:
            self.cheapest = one


def import_prices(
    files: Sequence[Path],
    *,
    today: date,
    day: date | None = None,
    provider: str | None = None,
    regions: Sequence[str] = (),
    rates: Mapping[str, float] | None = None,
) -> PricesImport:
    """Return the list of prices that a public catalogue makes with our devices and machines.

    Parameters
    ----------
    files
        Of one catalogue: one, or all pages of it.
    today
        Against which days are held.
    day
        On which the prices held; None: the day that the catalogue itself says.
    provider
        Whose prices they are, where the catalogue does not say it.
    regions
        Patterns, one of which a region has; none: all regions.
    rates
        Dollars for one unit of other currencies.

    Raises
    ------
    SpecError
        If a file is no catalogue, says no day, is in a currency without a rate, or nothing of it can be joined.
    """
    from fnmatch import fnmatchcase  # noqa: PLC0415

    catalogue = read_catalogue(files, provider=provider, is_known=_is_known)
    if not catalogue.num_rows:
        raise SpecError.one(
            f"this is a catalogue ({catalogue.kind}) of no price at all.", "Get it again.", file=files[0]
        )
    held = _day_of(catalogue, files[0], day, today)
    kept: dict[tuple[str, ...], _Folded] = {}
    num_elsewhere = 0
    for one in catalogue.listed:
        if regions and not any(fnmatchcase(one.region.lower(), pattern.lower()) for pattern in regions):
            num_elsewhere += 1
            continue
        usd = _in_dollars(one, rates or {}, files[0])
        key = one.provider, one.instance.lower(), one.region.lower(), str(one.term), f"{one.committed_h:g}"
        if key in kept:
            kept[key].add(usd)
        else:
            kept[key] = _Folded(cheapest=usd, dearest=usd.per_h)
    rows = _rows(kept, catalogue, held)
    if len(rows) > MOST_ROWS:
        problem = f"{len(rows)} rows come of it, and a list of prices may hold {MOST_ROWS}."
        mend = "Add --region, e.g. --region 'us-*'."
        raise SpecError.one(problem, mend, file=files[0], field="--region")
    rows = _without_faults(rows, catalogue, held)
    not_joined = Counted()
    for row in rows:
        if row["unusable"]:
            not_joined.add(row["unusable"], row["instance"])
    notes = list(catalogue.notes)
    if num_elsewhere:
        notes.append(f"{num_elsewhere:,} prices of other regions than {', '.join(regions)}")
    if folded := sum(one.number - 1 for one in kept.values()):
        notes.append(f"{folded:,} prices of other zones or ways to pay: the cheapest of each machine and term is kept")
    found = PricesImport(catalogue=catalogue, rows=rows, not_joined=not_joined, date=held, notes=tuple(notes))
    if not found.usable:
        reasons = [f"{row['rows']} {row['reason']}" for row in [*not_joined.rows(), *catalogue.left_out.rows()]]
        problem = f"none of its {catalogue.num_rows} rows could be joined: {'; '.join(reasons[:4]) or 'there is none'}."
        if num_elsewhere:
            problem += f" {num_elsewhere} are of other regions."
        problem += "".join(f" {note[0].upper()}{note[1:]}." for note in catalogue.notes)
        mend = "Is it a catalogue of virtual machines? Write the rows by hand otherwise: docs/prices.md."
        raise SpecError.one(problem, mend, file=files[0])
    return found


def _without_faults(rows: list[dict[str, str]], catalogue: Catalogue, held: date) -> list[dict[str, str]]:
    """Return rows, usable ones first, of which those that no list of prices may hold are unusable, with the reason."""
    for _ in range(_MOST_ROUNDS):  # each tells of a hundred at most
        text = PricesImport(catalogue=catalogue, rows=rows, not_joined=Counted(), date=held).to_csv()
        try:
            price_list_of(text, "")
        except SpecError as error:
            wrong = {fault.line - _FIRST_LINE: fault for fault in error.faults if fault.line}
            if not any(0 <= number < len(rows) and not rows[number]["unusable"] for number in wrong):
                return rows
            for number, fault in wrong.items():
                rows[number] = {**rows[number], "unusable": f"{fault.field}: {fault.problem}"}
        else:
            return rows
        rows = sorted(rows, key=lambda row: bool(row["unusable"]))
    problem = f"more than {100 * _MOST_ROUNDS} of its prices are none that a list may hold."
    raise SpecError.one(problem, "Is it the right file?", file=catalogue.source)


def _day_of(catalogue: Catalogue, file: Path, day: date | None, today: date) -> date:
    """Return the day on which the prices held."""
    held = day or catalogue.published
    if held is None:
        problem = f"{catalogue.kind}: nothing says on which day its prices held."
        mend = "Add --date, the day on which it was downloaded, e.g. --date 2026-11-02."
        raise SpecError.one(problem, mend, file=file, field="--date")
    if held > today:
        problem, mend = f"{held} is in the future: today is {today}.", "Write the day on which the prices held."
        raise SpecError.one(problem, mend, file=file, field="--date", value=str(held))
    return held


def _in_dollars(one: Listed, rates: Mapping[str, float], file: Path) -> Listed:
    """Return a price in dollars."""
    if (currency := one.currency.upper()) == "USD":
        return one
    if currency not in rates:
        problem = f"its prices are in {currency[:20]}, and no rate of it is given."
        mend = f"Add --rate, e.g. --rate {currency[:3] or 'EUR'}=1.08USD."
        raise SpecError.one(problem, mend, file=file, field="--rate", value=currency[:20])
    rate = rates[currency]
    note = "; ".join(filter(None, (one.note, f"{one.per_h:g} {currency} an hour at {rate:g} USD")))
    return replace(one, per_h=one.per_h * rate, upfront=one.upfront * rate, currency="USD", note=note)


def _rows(kept: Mapping[tuple[str, ...], _Folded], catalogue: Catalogue, held: date) -> list[dict[str, str]]:
    """Return the rows of a list of prices, usable ones first."""
    usable, unusable = [], []
    for one in kept.values():
        listed = one.cheapest
        shape, reason = shape_of(listed)
        note = listed.note
        if one.number > 1 and not isclose(one.dearest, listed.per_h):
            note = "; ".join(filter(None, (note, f"the cheapest of {one.number}, up to {one.dearest:.6g} USD")))
        row = {
            "provider": listed.provider,
            "instance": listed.instance,
            "region": listed.region,
            "term": str(listed.term),
            "device": listed.accelerator,
            "devices": "" if listed.num_accelerators is None else plain(listed.num_accelerators),
            "memory_gib": "" if not listed.memory_gib else plain(listed.memory_gib),
            "vcpus": "" if not listed.vcpus else plain(listed.vcpus),
            "currency": "USD",
            "usd_per_h": plain(round(listed.per_h, _ROUNDED)),
            "committed_h": plain(listed.committed_h) if listed.committed_h else "",
            "upfront_usd": plain(round(listed.upfront, 2)) if listed.upfront else "",
            "date": held.isoformat(),
            "source": catalogue.source,
            "note": note,
            "unusable": reason,
        }
        if shape is not None and float(row["usd_per_h"]) > 0:
            usable.append({**row, **shape.cells, "unusable": ""})
            continue
        row["unusable"] = reason or "its price is too small to be one"
        unusable.append(row)
    return usable + unusable


# --- What a training sees of an instance type


@cache
def _shipped() -> PriceList:
    """Return the list of prices that ships."""
    return read_price_list(None)


@cache
def _offers() -> Mapping[tuple[str, str], Offer]:
    """Return an offer of each instance type of the list that ships."""
    return {(offer.provider, fold(offer.instance)): offer for offer in _shipped().offers if not offer.is_bought}


@cache
def _unusable() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return a row of each instance type of the list that ships that it cannot plan with, by why."""
    rows = list(csv.DictReader(io.StringIO(prices_text())))
    return {(row["provider"], fold(row["instance"])): row for row in rows if row["unusable"]}


@cache
def _instances() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """Return the rows of the table of instance types."""
    return {(row["provider"], fold(row["instance"])): row for row in data.instance_rows()}


@cache
def _known_names() -> frozenset[str]:
    """Return the folded names of all instance types that any table holds."""
    names = [name for table in (_offers(), _unusable(), _instances()) for _, name in table]
    return frozenset(names)


def _is_known(instance: str) -> bool:
    """Whether an instance type stands in one of the tables."""
    return fold(instance) in _known_names() or data.is_machine(instance)


def shape_of(listed: Listed) -> tuple[Shape | None, str]:
    """Return what a training sees of a machine, or why that is not known."""
    key = listed.provider, fold(listed.instance)
    shape, reason = None, ""
    if (offer := _offers().get(key)) is not None:
        shape = _of_offer(offer)
    elif (row := _instances().get(key)) is not None:
        shape = _of_row(row)
    elif data.is_machine(listed.instance):
        shape = _of_machine(listed.instance)
    elif (row := _unusable().get(key)) is not None:
        shape, reason = _of_unusable(row)
    else:
        shape, reason = _of_accelerator(listed)
    if shape is None:
        return None, reason
    return (shape, "") if not (reason := _disagreement(listed, shape)) else (None, reason)


def _disagreement(listed: Listed, shape: Shape) -> str:
    """Return what the catalogue and the tables say differently of a machine; nothing where they agree."""
    if listed.num_accelerators is not None and listed.num_accelerators != shape.devices:
        return f"the catalogue has {listed.num_accelerators:g} accelerators, and the tables {shape.devices}"
    if listed.accelerator_gib is not None and listed.accelerator:
        own = data.device(shape.device).memory_bytes / _GIB
        given = listed.accelerator_gib
        if not any(isclose(given, own * times, rel_tol=_CLOSE) for times in (1, shape.devices)):
            return f"the catalogue has {given:g} GiB on each accelerator, and {shape.device} has {own:g} GiB"
    return ""


def _cells(
    device: str, devices: int, inside: str | None, network_gbit_per_s: float | None, **more: str
) -> dict[str, str]:
    """Return the cells that say what a machine is."""
    return {
        "device": device,
        "devices": str(devices),
        "inside": inside if inside and devices > 1 else "",
        "network_gbit_per_s": "" if not network_gbit_per_s else plain(round(network_gbit_per_s, 6)),
        **{key: cell for key, cell in more.items() if cell},
    }


def _of_offer(offer: Offer) -> Shape:
    """Return the machine of a row of the list that ships."""
    network = None if offer.network_bytes_per_s is None else offer.network_bytes_per_s / GBIT_BYTES
    more = {
        "memory_gib": "" if offer.memory_bytes is None else plain(offer.memory_bytes / _GIB),
        "vcpus": "" if offer.vcpus is None else str(offer.vcpus),
        "power_w": "" if offer.power_w is None else plain(offer.power_w),
        "billing_s": plain(offer.billing_s),
        "least_billed_s": plain(offer.least_billed_s) if offer.least_billed_s else "",
    }
    cells = _cells(offer.device, offer.devices_per_machine, offer.inside, network, **more)
    return Shape(device=offer.device, devices=offer.devices_per_machine, cells=cells)


def _of_row(row: Mapping[str, str]) -> Shape:
    """Return the machine of a row of the table of instance types."""
    network = float(row["network_gbit_per_s"]) if row["network_gbit_per_s"] else None
    more = {"memory_gib": row["memory_gib"], "vcpus": row["vcpus"]}
    cells = _cells(row["device"], int(row["devices"]), row["inside"], network, **more)
    return Shape(device=row["device"], devices=int(row["devices"]), cells=cells)


def _of_machine(name: str) -> Shape:
    """Return a machine as it is sold."""
    machine = data.machine(name)
    network = None if machine.nic_bytes_per_s is None else machine.num_nics * machine.nic_bytes_per_s / GBIT_BYTES
    cells = _cells(machine.device, machine.num_devices, machine.inside, network)
    return Shape(device=machine.device, devices=machine.num_devices, cells=cells)


def _of_unusable(row: Mapping[str, str]) -> tuple[Shape | None, str]:
    """Return the machine of a row that ships and cannot be planned with for its price alone; else why it cannot be."""
    is_of_price = "price" in row["unusable"] and "chip" not in row["unusable"]
    if is_of_price and row["device"] in data.device_names() and row["devices"].isdigit():
        return _of_row(row), ""
    return None, row["unusable"]


def _of_accelerator(listed: Listed) -> tuple[Shape | None, str]:
    """Return a machine by the accelerator that a catalogue names, where that is one device of ours."""
    name, number = listed.accelerator, listed.num_accelerators
    if not name or not number:
        return None, "an instance type that the tables do not hold, and no accelerator is named"
    device = data.device_of_accelerator(name)
    if device is None:
        return None, f"no device of the tables is called {name}"
    if not device:
        return None, f"{name} is sold in several forms, and the tables do not hold this instance type"
    if number != int(number):
        return None, "a fraction of a device: the planner counts whole devices"
    inside = data.link_of(device)
    if number > 1 and inside is None:
        return None, f"no link between several {device} in the tables"
    cells = _cells(device, int(number), inside, None)
    return Shape(device=device, devices=int(number), cells=cells), ""

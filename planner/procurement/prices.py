"""Price lists: what may be bought or rented, one kind of machine at one price a row; ours and users' own.

The columns, their units and what is assumed stand in docs/prices.md; a column's unit stands in its name. Nothing is
dropped in silence: a row that says in its column ``unusable`` why nothing can be planned with it is kept with that
reason, and any other row must be right in every cell, else it is a fault with its line, column, value and mend. Cells
are separated by commas or, as some spreadsheets write them, by semicolons; a byte-order mark, Windows line ends, blank
lines and lines that begin with ``#`` are no faults. An offer is read once and trusted from then on.
"""

import csv
import io
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from planner import data
from planner.data.presets import prices_text
from planner.errors import Fault, SpecError
from planner.frozen import frozen
from planner.importers.text import read_text
from planner.models.money import S_PER_DAY, S_PER_H, S_PER_MONTH
from planner.names import find, fold

MOST_BYTES = 16 * 2**20
MOST_ROWS = 20_000
_MOST_FAULTS = 100
_MOST_CELL = 2000  # characters
_MOST_SHOWN = 60  # of them in a message
_LEAST, _MOST = 1e-9, 1e12  # beyond them no price, power or rate is meant
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_FIRST_DAY = date(2000, 1, 1)
GBIT_BYTES, US_S = 1e9 / 8, 1e-6  # of the columns' units
DEFAULT_LATENCY_S = 20e-6

# --- A table of comma-separated values that a user wrote


@frozen(kw_only=False)
class Row:
    """One row of a table; its readers add what is wrong to ``faults`` and return a value that goes on."""

    file: str
    line: int
    cells: Mapping[str, str]
    faults: list[Fault]

    def fault(self, column: str, problem: str, mend: str) -> None:
        """Add a fault of one cell."""
        value = _cut(self.text(column))
        self.faults.append(Fault(file=self.file, line=self.line, field=column, value=value, problem=problem, mend=mend))

    def text(self, column: str) -> str:
        """Return a cell, empty where the table lacks the column."""
        return self.cells.get(column, "")

    def needed(self, column: str) -> str:
        """Return a cell that must not be empty."""
        if not self.text(column):
            self.fault(column, "the cell is empty.", "Fill it.")
        return self.text(column)

    def name(self, column: str) -> str:
        """Return a part of an offer's name: not empty, and without the stroke that joins the parts."""
        if "/" in self.needed(column):
            self.fault(column, f"{_shown(self.text(column))} has a stroke in it.", "Write it without '/'.")
        return self.text(column)

    def alone(self, column: str, name: str, key: str, lines: dict[str, int], mend: str) -> None:
        """Add a fault where an earlier row, of those in ``lines``, has the same key of its name."""
        first = lines.setdefault(key, self.line)
        if first != self.line:
            self.fault(column, f"{name} stands in line {first}, too.", mend)

    def listed(self, column: str, name: str, look_up: Callable[[str], str]) -> str:
        """Return the proper name of something in a table; nothing where it has none, which is a fault."""
        try:
            return look_up(name)
        except SpecError as error:
            self.fault(column, error.faults[0].problem, error.faults[0].mend)
            return ""

    def choice(self, column: str, choices: Sequence[str]) -> str:
        """Return one of some words; nothing where it is none, which is a fault."""
        given = self.needed(column)
        if not given or given in choices:
            return given
        return self.listed(column, given, lambda name: find(name, {fold(one): one for one in choices}, column))

    def number(self, column: str, *, is_zero: bool = False) -> float | None:
        """Return a number above 0, or of at least 0; None where the cell is empty, or its content a fault."""
        given = self.text(column)
        if not given:
            return None
        least = "0 or more" if is_zero else "more than 0"
        if not _NUMBER.fullmatch(given):
            mend = "Write digits with a point, without separators and without a unit: 1234.5."
            self.fault(column, f"{_shown(given)} is not a number.", mend)
        elif (value := float(given)) == 0 and is_zero:
            return 0.0
        elif value <= 0:
            self.fault(column, f"{_shown(given)} is not {least}.", f"Write a number of {least}.")
        elif not _LEAST <= value <= _MOST:
            self.fault(column, f"{_shown(given)} is beyond {_LEAST:g} to {_MOST:g}.", "Is it in the column's unit?")
        else:
            return value
        return None

    def count(self, column: str, most: int) -> int | None:
        """Return a whole number of at least 1; None where the cell is empty, or its content a fault."""
        given = self.text(column)
        if not given:
            return None
        if not re.fullmatch(r"\d{1,18}", given, re.ASCII) or not 1 <= int(given) <= most:
            self.fault(column, f"{_shown(given)} is not a whole number from 1 to {most}.", "Write e.g. 8.")
            return None
        return int(given)

    def day(self, column: str, today: date | None) -> date:
        """Return a date that is not to come; the first one possible where it is a fault."""
        given = self.needed(column)
        if not given:
            return _FIRST_DAY
        try:
            day = date.fromisoformat(given) if _DATE.fullmatch(given) else None
        except ValueError:
            day = None
        if day is None:
            self.fault(column, f"{_shown(given)} is not a date.", "Write year-month-day, e.g. 2026-07-20.")
        elif day < _FIRST_DAY:
            self.fault(column, f"{given} is before {_FIRST_DAY}.", "Check the year.")
        elif today is not None and day > today:
            self.fault(column, f"{given} is in the future: today is {today}.", "Write the day on which the price held.")
        return day or _FIRST_DAY


def text_of(path: Path) -> str:
    """Return the text of a table's file, no larger than 16 MiB.

    Raises
    ------
    SpecError
        As :func:`planner.importers.text.read_text`, and for a larger file.
    """
    try:
        size = path.stat().st_size if path.is_file() else 0
    except OSError:
        size = 0  # read_text says why
    if size > MOST_BYTES:
        problem = f"it holds {size} bytes, more than {MOST_BYTES}."
        raise SpecError.one(problem, "Is it the right file?", file=path, value=str(path))
    return read_text(path)


def read_rows(
    text: str, file: str, *, required: Collection[str], optional: Collection[str], faults: list[Fault]
) -> list[Row]:
    """Return the rows of a table, cells stripped; what is wrong with its form is added to ``faults``.

    Raises
    ------
    SpecError
        Where the columns are not known: no header, a missing or an unknown column.
    """
    lines = _lines(text, file, faults)
    line, header = next(lines, (1, []))
    columns = [name.strip() for name in header]
    if required and not {*required} & {*columns}:
        problem, mend = (
            "none of the columns that it must have stands in its first line.",
            f"Write {', '.join(required)}.",
        )
        mend += " What a provider publishes is read by `planner prices import`."
        raise SpecError.one(problem, mend, file=file, line=line)
    known = {fold(name): name for name in (*required, *optional)}
    wrong = [(name, "the column is missing.", f"Add {name!r}.") for name in required if name not in columns]
    for index, name in enumerate(columns):
        if name in columns[:index]:
            wrong.append((_cut(name), f"the column {_shown(name)} stands twice.", "Remove one."))
        elif name not in known.values():
            try:
                mend = f"Write {find(_cut(name), known, 'column')!r}."
            except SpecError as error:
                mend = f"{error.faults[0].mend} Text that is for people belongs into 'note'."
            wrong.append((_cut(name), f"{_shown(name)} is not a known column.", mend))
    refuse([Fault(file=file, line=line, field=n, value=n, problem=problem, mend=mend) for n, problem, mend in wrong])
    rows: list[Row] = []
    for line, cells in lines:
        if len(rows) == MOST_ROWS:
            problem = f"there are more than {MOST_ROWS} rows; what follows was not read."
            faults.append(
                Fault(file=file, line=line, problem=problem, mend="Leave rows out that are not to be chosen from.")
            )
            break
        if len(cells) != len(columns):
            problem = f"{len(cells)} cells instead of {len(columns)}."
            mend = "Write one cell for each column; put text that holds a separator into double quotation marks."
            faults.append(Fault(file=file, line=line, value=_cut(",".join(cells)), problem=problem, mend=mend))
            continue
        row = Row(file=file, line=line, cells=dict(zip(columns, map(str.strip, cells), strict=True)), faults=faults)
        rows.append(_legible(row))
    if not rows and not faults:
        mend = "Add rows below the line of the columns' names."
        faults.append(Fault(file=file, line=1, problem="there is no row in it.", mend=mend))
    return rows


def refuse(faults: Sequence[Fault]) -> None:
    """Raise all faults, if there are any, by line; of very many the first hundred, and the number of the others."""
    if not faults:
        return
    kept = sorted(faults, key=lambda fault: fault.line or 0)[:_MOST_FAULTS]
    if len(faults) > _MOST_FAULTS:
        problem = f"there are {len(faults) - _MOST_FAULTS} more faults like these."
        kept.append(Fault(file=faults[0].file, problem=problem, mend="Mend these first."))
    raise SpecError.of(kept)


def _lines(text: str, file: str, faults: list[Fault]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and its cells, up to one that cannot be read."""
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    delimiter = ";" if first.count(";") > first.count(",") else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    before = 0
    try:
        for cells in reader:
            line, before = before + 1, reader.line_num
            if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
                yield line, cells
    except csv.Error as error:
        problem = f"the row that begins here cannot be read, nor what follows: {error}."
        faults.append(Fault(file=file, line=before + 1, problem=problem, mend="Is every quotation mark closed?"))


def _legible(row: Row) -> Row:
    """Return a row without the cells that no message and no table could show, each of which is a fault."""
    cells = dict(row.cells)
    for column, cell in row.cells.items():
        if len(cell) > _MOST_CELL:
            row.fault(column, f"the cell holds {len(cell)} characters, more than {_MOST_CELL}.", "Shorten it.")
        elif not cell.isprintable():
            row.fault(column, f"{_shown(cell)} holds a character that cannot be printed.", "Type the cell again.")
        else:
            continue
        cells[column] = _cut("".join(letter if letter.isprintable() else "?" for letter in cell[: 2 * _MOST_SHOWN]))
    return replace(row, cells=cells)


def _cut(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _shown(text: str) -> str:
    """Return a text in quotes, cut to what a message can bear."""
    return repr(_cut(text))


# --- Offers, and lists of them


class Term(StrEnum):
    """On which terms a machine is had."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"  # may be taken away at any time
    RESERVED = "reserved"  # paid for a committed time, used or not
    BOUGHT = "bought"


_EVERYWHERE = "all"  # as a list has it of a price that all regions share


@frozen
class Offer:
    """One kind of machine on one term."""

    name: str  # unique: ``provider/instance/region/term``, and ``/network`` where a tier was chosen
    provider: str
    instance: str
    region: str
    term: Term
    device: str  # a name of the device table, or of a device that the question defines
    devices_per_machine: int
    date: date  # on which the price was right
    source: str
    usd_per_h: float = 0.0  # rent of one machine; 0 for a bought one
    # billing_s, least_billed_s: time is billed in whole multiples of the first, and at least the second
    billing_s: float = 1.0
    least_billed_s: float = 0.0
    # committed_s, upfront_usd: of a reserved machine: what is paid for in any case; and what of its rent is paid at the
    # start, None: nothing
    committed_s: float = 0.0
    upfront_usd: float | None = None
    # purchase_usd, useful_life_s, resale_usd, hosting_usd_per_month: of a bought machine, network card and switch port
    # included; what it is sold for after its life, None: nothing
    purchase_usd: float = 0.0
    useful_life_s: float = float("inf")
    resale_usd: float | None = None
    hosting_usd_per_month: float = 0.0
    power_w: float | None = None  # of one machine under load: devices and host; None where unknown
    # a name of the table of links: between the devices of one machine; None where there is one device
    inside: str | None = None
    # of one machine, all cards together; None: unknown, so one machine of it trains alone
    network_bytes_per_s: float | None = None
    latency_s: float = DEFAULT_LATENCY_S
    memory_bytes: float | None = None
    vcpus: int | None = None
    interruptions_per_h: float = 0.0  # of one machine, how often it is taken away; 0 unless given (spot)
    most: int | None = None  # machines that can be had; None: not limited by the list
    lead_time_s: float | None = None  # from the order until the machines are there; None: they are there at once
    note: str = ""
    tier: str | None = None  # the network tier that a bought machine has; None: the network that its row names, or none

    @property
    def seller(self) -> str:
        """Who sells it, and where: ``aws us-east-1``; the provider alone, where all its regions have one price."""
        return self.provider if self.region in ("", _EVERYWHERE) else f"{self.provider} {self.region}"

    @property
    def is_bought(self) -> bool:
        """Whether its owner pays for electricity, hosting and wear."""
        return self.term is Term.BOUGHT

    @property
    def wear_usd_per_s(self) -> float:
        """What a bought machine loses of its worth in a second, in a straight line down to its resale."""
        return (self.purchase_usd - (self.resale_usd or 0.0)) / self.useful_life_s

    @property
    def owned_usd_per_s(self) -> float:
        """What a machine that is always in use wears and is hosted for, a second; 0 where it is rented."""
        return self.wear_usd_per_s + self.hosting_usd_per_month / S_PER_MONTH


@frozen
class Unusable:
    """A row of a list that cannot be planned with, and why."""

    line: int
    name: str
    reason: str
    row: Mapping[str, str]


@frozen
class PriceList:
    """The offers of one list or of several, and the rows that are none."""

    offers: tuple[Offer, ...]
    unusable: tuple[Unusable, ...] = ()
    files: tuple[str, ...] = ()

    @property
    def oldest(self) -> date:
        """The date of the oldest price."""
        return min(offer.date for offer in self.offers)


BUILT_IN = "the built-in price list"
_YEAR_DAYS = 365  # beyond, a price is out of date
OLD_DAYS = 90  # an older list deserves a warning
REQUIRED = ("provider", "instance", "region", "term", "device", "devices", "date", "source")
_RENT = ("usd_per_h", "billing_s", "least_billed_s", "committed_h", "upfront_usd", "interruptions_per_h")
_PURCHASE = ("purchase_usd", "useful_life_years", "resale_usd", "hosting_usd_per_month")
OPTIONAL = (
    *("currency", *_RENT, *_PURCHASE),
    *("lead_time_days", "host_power_w", "power_w", "inside", "network_gbit_per_s", "latency_us"),
    *("memory_gib", "vcpus", "most", "note", "unusable"),
)
_CURRENCY = "USD"
_YEAR_S, _GIB = 12 * S_PER_MONTH, 2.0**30
_MOST_DEVICES, _MOST_MACHINES = 2**20, 2**20
_ROUNDING = 1e-3


def read_price_list(
    path: Path | None,
    *,
    today: date | None = None,
    custom_devices: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
) -> PriceList:
    """Return the offers of a price list, and its rows that are marked unusable.

    Parameters
    ----------
    path
        Of a table of the documented columns; None: the list that ships.
    today
        Against which dates are held; None: no date is in the future.
    custom_devices
        Names that rows may use beside those of the device table.
    rates
        Dollars for one unit of other currencies that rows may be in, by their codes in capitals.

    Raises
    ------
    SpecError
        With file, line, column, value and mend of everything that is wrong, in one pass.
    """
    text, file = (prices_text(), BUILT_IN) if path is None else (text_of(path), str(path))
    latest = None if path is None else today  # what ships is not of the future, whatever a clock says
    return price_list_of(text, file, latest=latest, custom_devices=custom_devices, rates=rates)


def price_list_of(
    text: str,
    file: str,
    *,
    latest: date | None = None,
    custom_devices: Collection[str] = (),
    rates: Mapping[str, float] | None = None,
) -> PriceList:
    """Return the offers of the text of a list; see :func:`read_price_list`. ``latest``: the last day of a price.

    Raises
    ------
    SpecError
        With the line of everything that is wrong, of very many the first hundred.
    """
    faults: list[Fault] = []
    rows = read_rows(text, file, required=REQUIRED, optional=OPTIONAL, faults=faults)
    custom = {fold(name): name for name in custom_devices}
    lines: dict[str, int] = {}
    offers, unusable = [], []
    for row in rows:
        parts = [row.name(column) for column in ("provider", "instance", "region")]
        term = row.choice("term", [str(term) for term in Term])
        name = "/".join([*parts, term])
        if term == Term.RESERVED and (committed := row.text("committed_h")):
            name += f"/{committed} h"  # one machine may be reserved for a year or for three
        row.alone("instance", name, name.lower(), lines, "Remove one, or rename one's instance.")
        if reason := row.text("unusable"):
            unusable.append(Unusable(line=row.line, name=name, reason=reason, row=row.cells))
        else:
            offers.append(_offer(row, name, Term(term) if term else None, latest, custom, rates or {}))
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
    given = [prices for prices in lists if prices is not None]
    for prices in given:
        reason = f"replaced by the row of the same name in {' and '.join(prices.files)}"
        for offer in prices.offers:
            if (before := kept.get(offer.name.lower())) is not None:
                columns = ("provider", "instance", "region", "term", "device", "date", "source")
                row = {column: str(getattr(before, column)) for column in columns}
                unusable.append(Unusable(line=0, name=before.name, reason=reason, row=row))
            kept[offer.name.lower()] = offer
        unusable += prices.unusable
    files = tuple(file for prices in given for file in prices.files)
    return PriceList(offers=tuple(kept.values()), unusable=tuple(unusable), files=files)


def in_force(prices: PriceList, as_of: date | str | None = None) -> PriceList:
    """Return a list without offers whose price is out of date, so that one list gives one answer on every day.

    Parameters
    ----------
    as_of
        Prices of the year before this day count; ``any``: all of them. None: the day of the list's newest price, of
        what is rented and of what is bought each its own, for purchases are quoted seldom.

    >>> sorted({offer.date.year for offer in in_force(read_price_list(None)).offers})
    [2024, 2026]
    """
    if as_of == "any":
        return prices
    kept = []
    for is_bought in (False, True):
        offers = [offer for offer in prices.offers if offer.is_bought is is_bought]
        day = as_of if isinstance(as_of, date) else max((offer.date for offer in offers), default=_FIRST_DAY)
        kept += [offer.name for offer in offers if 0 <= (day - offer.date).days <= _YEAR_DAYS]
    names = frozenset(kept)
    return replace(prices, offers=tuple(offer for offer in prices.offers if offer.name in names))


def age_days(prices: PriceList, today: date) -> int:
    """Return how many days old the oldest price of a list is.

    >>> age_days(read_price_list(None), date(2026, 7, 20)) > OLD_DAYS
    True
    """
    return (today - prices.oldest).days


@cache
def _listed_device(name: str) -> tuple[str, float | None]:
    """Return the proper name and the power of a device of the table; raise SpecError where there is none."""
    device = data.device(name)
    return device.name, device.power_w


@cache
def _listed_link(name: str) -> str:
    """Return the proper name of a link inside a machine; raise SpecError where there is none."""
    data.inside_link(name)
    return next(link for link in data.inside_links() if fold(link) == fold(name))


def _offer(
    row: Row, name: str, term: Term | None, today: date | None, custom: Mapping[str, str], rates: Mapping[str, float]
) -> Offer:
    """Return the offer of a row; where a cell is a fault, with whatever goes on. ``term``: None where it is a fault."""
    if (currency := row.text("currency")).upper() not in ("", _CURRENCY, *rates):
        mend = f"Give its rate (procure.rates: {{EUR: 1.08}}, or --rate EUR=1.08USD), or write {_CURRENCY}."
        row.fault("currency", f"{currency!r} is not {_CURRENCY}, in which this list's prices are.", mend)
    device = row.needed("device")
    if fold(device) in custom:
        device = custom[fold(device)]
    elif device:
        device = row.listed("device", device, lambda given: _listed_device(given)[0]) or device
    devices = (row.count("devices", _MOST_DEVICES) if row.needed("devices") else None) or 1
    gbit_per_s, latency_us = row.number("network_gbit_per_s"), row.number("latency_us", is_zero=True)
    memory_gib = row.number("memory_gib")
    day, source = row.day("date", today), row.needed("source")
    if inside := row.text("inside"):
        inside = row.listed("inside", inside, _listed_link)
    elif devices > 1:
        mend = "Name a link of 'planner show links', e.g. pcie-4-x16."
        row.fault("inside", f"{devices} devices in a machine, and no link between them.", mend)
    power_w, host_w = row.number("power_w"), row.number("host_power_w", is_zero=True)
    if power_w is None and host_w is not None and device in data.device_names():
        device_w = _listed_device(device)[1]
        power_w = None if device_w is None else devices * device_w + host_w
    offer = Offer(
        name=name,
        provider=row.text("provider"),
        instance=row.text("instance"),
        region=row.text("region"),
        term=term or Term.ON_DEMAND,
        device=device,
        devices_per_machine=devices,
        date=day,
        source=source,
        inside=inside if inside and devices > 1 else None,
        network_bytes_per_s=None if gbit_per_s is None else gbit_per_s * GBIT_BYTES,
        latency_s=DEFAULT_LATENCY_S if latency_us is None else latency_us * US_S,
        memory_bytes=None if memory_gib is None else memory_gib * _GIB,
        vcpus=row.count("vcpus", _MOST_MACHINES),
        power_w=power_w,
        most=row.count("most", _MOST_MACHINES),
        lead_time_s=(row.number("lead_time_days", is_zero=True) or 0.0) * S_PER_DAY or None,
        note=row.text("note"),
    )
    rate = rates.get(currency.upper(), 1.0)  # of all its money, whatever the columns are called
    if term is None:  # what its price must be like is not known
        return offer
    return _bought(row, offer, rate) if term is Term.BOUGHT else _rented(row, offer, rate)


def _leave_empty(row: Row, term: Term, *columns: str) -> None:
    """Add a fault for each filled cell that means nothing on the term: it would be dropped in silence."""
    for column in columns:
        if row.text(column):
            problem = f"{column} means nothing on the term {str(term)!r}."
            row.fault(column, problem, "Empty the cell, or write another term.")


def _asked_for(row: Row, column: str, problem: str) -> float | None:
    """Return a number that the term asks for."""
    if not row.text(column):
        row.fault(column, problem, f"Give {column}; a row without it may say why in 'unusable'.")
    return row.number(column)


def _bought(row: Row, offer: Offer, rate: float) -> Offer:
    """Return an offer with what it costs to buy; its money times ``rate``."""
    _leave_empty(row, Term.BOUGHT, *_RENT)
    years = "nothing says over how many years the purchase is written off."
    purchase_usd = _asked_for(row, "purchase_usd", "a bought machine has no price.") or 0.0
    resale_usd = row.number("resale_usd", is_zero=True)
    if resale_usd and purchase_usd and resale_usd > purchase_usd:
        mend = "Give what the machine is sold for after its life."
        row.fault("resale_usd", "it is more than purchase_usd.", mend)
    return replace(
        offer,
        purchase_usd=purchase_usd * rate,
        useful_life_s=(_asked_for(row, "useful_life_years", years) or 1.0) * _YEAR_S,
        resale_usd=resale_usd * rate if resale_usd else None,
        hosting_usd_per_month=(row.number("hosting_usd_per_month", is_zero=True) or 0.0) * rate,
    )


def _rented(row: Row, offer: Offer, rate: float) -> Offer:
    """Return an offer with what it costs to rent; its money times ``rate``."""
    _leave_empty(row, offer.term, *_PURCHASE)
    usd_per_h, committed_h = _asked_for(row, "usd_per_h", "a rented machine has no price."), None
    if offer.term is Term.RESERVED:
        committed_h = _asked_for(row, "committed_h", "nothing says for how long the machine is reserved.")
    else:
        committed_h = row.number("committed_h")
        _leave_empty(row, offer.term, "committed_h", "upfront_usd")
    upfront_usd = row.number("upfront_usd", is_zero=True)
    if upfront_usd and usd_per_h and committed_h and upfront_usd > usd_per_h * committed_h * (1 + _ROUNDING):
        problem = f"it is more than usd_per_h times committed_h, {usd_per_h * committed_h:.2f}, of which it is a part."
        row.fault("upfront_usd", problem, "Spread what is paid at the start over the hours: usd_per_h holds it, too.")
    if offer.term is not Term.SPOT:
        _leave_empty(row, offer.term, "interruptions_per_h")
    return replace(
        offer,
        usd_per_h=(usd_per_h or 0.0) * rate,
        billing_s=row.number("billing_s") or 1.0,
        least_billed_s=row.number("least_billed_s", is_zero=True) or 0.0,
        committed_s=(committed_h or 0.0) * S_PER_H,
        upfront_usd=upfront_usd * rate if upfront_usd else None,
        interruptions_per_h=row.number("interruptions_per_h", is_zero=True) or 0.0,
    )


# --- A price list as a table: which rows are wanted, in which order, and what is computed for each
# ``usd_per_petaflop_hour`` is the price of one machine for an hour over its dense peak in PFLOP/s in the data type of
# its figure ``dtype``: the first that its devices have of bf16, fp16, tf32 and fp32. A bought machine counts at its
# purchase over its useful life, used without a pause, and its hosting, without electricity.

COLUMNS = (
    *("provider", "instance", "region", "term", "device", "devices", "network_gbit_per_s", "usd_per_h"),
    *("purchase_usd", "usd_per_petaflop_hour", "dtype", "power_w", "date"),
)  # of the text; the rows hold more
_MORE = ("inside", "memory_gib", "vcpus", "billing_s", "useful_life_years", "hosting_usd_per_month", "most")
_ABOUT = ("source", "note", "unusable")
_KEYS = (*COLUMNS, *_MORE, *_ABOUT)
_DATA_TYPES = ("bf16", "fp16", "tf32", "fp32")
_SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
_CONDITION = re.compile(r"\s*([\w-]+)\s*(<=|>=|!=|<|>|=)\s*(.*?)\s*", re.DOTALL)

Cells = dict[str, Any]  # text, numbers, or None


def price_rows(prices: PriceList, *, where: str = "", sort: str = "", unusable: bool = False) -> list[Cells]:
    """Return the rows of a list, those that cannot be used last and only if asked for.

    Parameters
    ----------
    where
        Conditions between commas, all of which hold: a column, one of ``= != < <= > >=`` and a value, in which ``*``
        stands for anything and case does not count. A row without the figure holds no condition but ``!=``.
    sort
        A column, smallest first; with a minus before it largest first. Rows without the figure come last. Rows of equal
        figures, and all rows if it is empty, stand in the list's order.

    Raises
    ------
    SpecError
        For a condition or a column that is none.
    """
    conditions = [_condition(text) for text in where.split(",") if text.strip()]
    key = _column(sort.removeprefix("-"), "--sort") if sort else ""

    def place(row: Cells) -> tuple[float, str]:
        figure = _figure(row[key])
        return (inf, str(row[key]).lower()) if figure is None or texts else (figure, "")

    groups = [[_offer_row(offer) for offer in prices.offers]]
    if unusable:  # as they are written, with the reason
        groups.append(
            [{**{k: one.row.get(k) or None for k in _KEYS}, "unusable": one.reason} for one in prices.unusable]
        )
    shown: list[Cells] = []
    for group in groups:
        rows = [row for row in group if all(holds(row) for holds in conditions)]
        if key:
            known = [row for row in rows if row[key] is not None]
            texts = any(_figure(row[key]) is None for row in known)
            rows = sorted(known, key=place, reverse=sort.startswith("-")) + [row for row in rows if row[key] is None]
        shown += rows
    return shown


def price_totals(prices: PriceList, rows: Sequence[Cells], today: date) -> Cells:
    """Return what a list holds beside the rows that are shown."""
    usable, marked = len(prices.offers), len(prices.unusable)
    return {
        "rows": usable + marked,
        "usable": usable,
        "unusable": marked,
        "out_of_date": usable - len(in_force(prices).offers),
        "shown": len(rows),
        "oldest_price": prices.oldest.isoformat(),
        "oldest_price_age_days": age_days(prices, today),
        "files": ", ".join(prices.files),
    }


def _offer_row(offer: Offer) -> Cells:
    """Return the cells of an offer, figures in the units of the list; None where one is not known."""
    dtype = per_petaflop = None
    if offer.device in data.device_names():  # of a question's own device no peak is compared
        peaks = data.device(offer.device).peak_flop_per_s
        dtype = next(one for one in _DATA_TYPES if one in peaks)
        usd_per_h = offer.usd_per_h + offer.owned_usd_per_s * S_PER_H
        per_petaflop = usd_per_h / (peaks[dtype] * offer.devices_per_machine / 1e15)
    is_bought = offer.is_bought
    return {
        "provider": offer.provider,
        "instance": offer.instance,
        "region": offer.region,
        "term": str(offer.term),
        "device": offer.device,
        "devices": offer.devices_per_machine,
        "network_gbit_per_s": None if offer.network_bytes_per_s is None else offer.network_bytes_per_s * 8 / 1e9,
        "usd_per_h": None if is_bought else offer.usd_per_h,
        "purchase_usd": offer.purchase_usd if is_bought else None,
        "usd_per_petaflop_hour": per_petaflop,
        "dtype": dtype,
        "power_w": offer.power_w,
        "date": offer.date.isoformat(),
        "inside": offer.inside,
        "memory_gib": None if offer.memory_bytes is None else offer.memory_bytes / _GIB,
        "vcpus": offer.vcpus,
        "billing_s": None if is_bought else offer.billing_s,
        "useful_life_years": offer.useful_life_s / _YEAR_S if is_bought else None,
        "hosting_usd_per_month": offer.hosting_usd_per_month if is_bought else None,
        "most": offer.most,
        "source": offer.source,
        "note": offer.note,
        "unusable": None,
    }


def _column(name: str, option: str) -> str:
    """Return the proper name of a column."""
    try:
        return find(name, {fold(key): key for key in _KEYS}, "column")
    except SpecError as error:
        fault = error.faults[0]
        raise SpecError.of_option(option, fault.problem, fault.mend, value=name) from None


def _condition(text: str) -> Callable[[Cells], bool]:
    """Return a test of rows from its text."""
    parts = _CONDITION.fullmatch(text)
    if not parts:
        mend = "Write e.g. provider=aws,device=a100*,usd_per_h<5."
        raise SpecError.of_option("--where", f"{text.strip()!r} is not a condition.", mend, value=text)
    column, sign, value = _column(parts[1], "--where"), parts[2], parts[3]
    compare, wanted = _SIGNS[sign], _figure(value)
    is_date = column == "date"
    if sign not in ("=", "!=") and not (_DATE.fullmatch(value) if is_date else wanted is not None):
        mend = f"Write {'a day, e.g. 2026-07-20' if is_date else 'a number'}, or compare with = or !=."
        raise SpecError.of_option("--where", f"{value!r} cannot be compared by its size.", mend, value=text)

    def holds(row: Cells) -> bool:
        cell = row[column]
        if cell is None:
            return sign == "!="
        number = _figure(cell)
        if not is_date and wanted is not None and number is not None:
            return compare(number, wanted)
        if sign in ("=", "!="):
            return fnmatchcase(str(cell).lower(), value.lower()) == (sign == "=")
        return is_date and compare(str(cell), value)

    return holds


def _figure(cell: object) -> float | None:
    """Return the number that a cell holds, as one or as text; None where it holds none."""
    try:
        return float(str(cell))
    except ValueError:
        return None

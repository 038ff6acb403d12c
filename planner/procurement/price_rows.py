"""A price list as a table: which rows are wanted, in which order, and what is computed for each.

``usd_per_petaflop_hour`` is the price of one machine for an hour over its dense peak in PFLOP/s in the data type of its
figure ``dtype``: the first that its devices have of bf16, fp16, tf32 and fp32. A bought machine counts at its purchase
over its useful life, used without a pause, and its hosting, without electricity.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from math import inf
from typing import Any

from planner import data
from planner.errors import Fault, SpecError
from planner.names import find, fold
from planner.procurement.offer import Offer, PriceList, Term, Unusable
from planner.procurement.price_list import age_days

__all__ = ["COLUMNS", "price_rows", "price_totals"]

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
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MONTH_H, _YEAR_H, _HOUR_S = 730.0, 8760.0, 3600.0

Cells = dict[str, Any]


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
    groups = [[_offer_row(offer) for offer in prices.offers]]
    groups += [[_unusable_row(one) for one in prices.unusable]] if unusable else []
    wanted = [[row for row in rows if all(holds(row) for holds in conditions)] for rows in groups]
    return [row for rows in wanted for row in (_sorted(rows, key, sort.startswith("-")) if key else rows)]


def price_totals(prices: PriceList, rows: Sequence[Cells], today: date) -> Cells:
    """Return what a list holds beside the rows that are shown."""
    usable, marked = len(prices.offers), len(prices.unusable)
    return {
        "rows": usable + marked,
        "usable": usable,
        "unusable": marked,
        "shown": len(rows),
        "oldest_price": prices.oldest.isoformat(),
        "oldest_price_age_days": age_days(prices, today),
        "files": ", ".join(prices.files),
    }


def _offer_row(offer: Offer) -> Cells:
    """Return the cells of an offer, figures in the units of the list; None where one is not known."""
    dtype, peak_flop_per_s = _peak(offer)
    is_bought = offer.term is Term.BOUGHT
    years = offer.useful_life_s / (_YEAR_H * _HOUR_S) if is_bought else None
    per_petaflop = _usd_per_h(offer) / (peak_flop_per_s / 1e15) if peak_flop_per_s else None
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
        "memory_gib": None if offer.memory_bytes is None else offer.memory_bytes / 2**30,
        "vcpus": offer.vcpus,
        "billing_s": None if is_bought else offer.billing_s,
        "useful_life_years": years,
        "hosting_usd_per_month": offer.hosting_usd_per_month if is_bought else None,
        "most": offer.most,
        "source": offer.source,
        "note": offer.note,
        "unusable": None,
    }


def _usd_per_h(offer: Offer) -> float:
    """Return what an hour of a machine costs; of a bought one, at its capital's share and its hosting."""
    share_usd = offer.purchase_usd / (offer.useful_life_s / _HOUR_S)
    return offer.usd_per_h + share_usd + offer.hosting_usd_per_month / _MONTH_H


def _peak(offer: Offer) -> tuple[str | None, float | None]:
    """Return the data type and the peak that a machine's price is compared by; None of a question's own device."""
    if offer.device not in data.device_names():
        return None, None
    peaks = data.device(offer.device).peak_flop_per_s
    dtype = next(one for one in _DATA_TYPES if one in peaks)
    return dtype, peaks[dtype] * offer.devices_per_machine


def _unusable_row(row: Unusable) -> Cells:
    """Return the cells of a row that cannot be used, as they are written, and its reason."""
    return {**{key: row.row.get(key) or None for key in _KEYS}, "unusable": row.reason}


def _column(name: str, option: str) -> str:
    """Return the proper name of a column."""
    try:
        return find(name, {fold(key): key for key in _KEYS}, "column")
    except SpecError as error:
        fault = error.faults[0]
        raise SpecError.of([_fault(option, name, fault.problem, fault.mend)]) from None


def _condition(text: str) -> Callable[[Cells], bool]:
    """Return a test of rows from its text."""
    found = _CONDITION.fullmatch(text)
    if not found:
        mend = "Write e.g. provider=aws,device=a100*,usd_per_h<5."
        raise SpecError.of([_fault("--where", text, f"{text.strip()!r} is not a condition.", mend)])
    column, sign, value = _column(found[1], "--where"), found[2], found[3]
    compare, wanted = _SIGNS[sign], _figure(value)
    is_date = column == "date"
    if sign not in ("=", "!=") and not (_DATE.fullmatch(value) if is_date else wanted is not None):
        mend = f"Write {'a day, e.g. 2026-07-20' if is_date else 'a number'}, or compare with = or !=."
        raise SpecError.of([_fault("--where", text, f"{value!r} cannot be compared by its size.", mend)])

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


def _sorted(rows: Sequence[Cells], key: str, is_falling: bool) -> list[Cells]:
    """Return rows in the order of a column, those without a figure last; equal ones as they stood."""
    known = [row for row in rows if row[key] is not None]
    figures = [_figure(row[key]) for row in known]

    def place(index: int) -> tuple[float, str]:
        figure = figures[index]
        return (inf, str(known[index][key]).lower()) if None in figures or figure is None else (figure, "")

    order = sorted(range(len(known)), key=place, reverse=is_falling)
    return [known[index] for index in order] + [row for row in rows if row[key] is None]


def _fault(option: str, value: str, problem: str, mend: str) -> Fault:
    """Return a fault of the command line."""
    return Fault(file="command line", field=option, value=value, problem=problem, mend=mend)

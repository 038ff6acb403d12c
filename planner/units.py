"""Quantities with units: text in, SI floats out, and back.

A closed parser of our own, because general unit libraries misread this field: they take ``Gb`` for
gilbert and 80 GiB for 80e9. Here ``b`` and ``bit`` are bits, ``B`` and ``byte`` bytes, ``k M G T P`` powers of
1000 and ``Ki Mi Gi Ti Pi`` powers of 1024; case counts, and a unit of another dimension is refused.

>>> parse("25 Gbit/s", Dimension.RATE)
3125000000.0
>>> parse("11 GiB", Dimension.DATA)
11811160064.0
>>> format_exact(3.125e9, Dimension.RATE)
'25 Gbit/s'
"""

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum


class Dimension(StrEnum):
    """What a quantity measures; the value is the word used in messages."""

    DATA = "size"
    RATE = "rate"
    TIME = "time"
    FLOP = "amount of computation"
    FLOP_RATE = "computing speed"
    POWER = "power"
    ENERGY = "energy"
    MONEY = "amount of money"
    MONEY_RATE = "price"
    SAMPLE_RATE = "sample rate"
    FREQUENCY = "frequency"


_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_DECIMAL_BEYOND = {**_DECIMAL, "E": 1e18, "Z": 1e21, "Y": 1e24}


def _data(suffix: str) -> dict[str, float]:
    """Return every spelling of an amount of data, times ``suffix``, with its bytes."""
    prefixes = {**_DECIMAL, **_BINARY}
    sizes = {"B": 1.0, "byte": 1.0, "bytes": 1.0, "bit": 1 / 8, "bits": 1 / 8, "b": 1 / 8}
    return {
        f"{prefix}{unit}{suffix}": scale * size for unit, size in sizes.items() for prefix, scale in prefixes.items()
    }


_UNITS: Mapping[Dimension, Mapping[str, float]] = {
    Dimension.DATA: _data(""),
    Dimension.RATE: {**_data("/s"), **{f"{prefix}bps": scale / 8 for prefix, scale in _DECIMAL.items()}},
    Dimension.TIME: {
        "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9,
        "min": 60.0, "h": 3600.0, "d": 86400.0, "days": 86400.0, "day": 86400.0,
        "hour": 3600.0, "hours": 3600.0, "week": 604800.0, "weeks": 604800.0,
    },
    Dimension.FLOP: {f"{prefix}FLOP": scale for prefix, scale in _DECIMAL_BEYOND.items()},
    Dimension.FLOP_RATE: {f"{prefix}FLOP/s": scale for prefix, scale in _DECIMAL_BEYOND.items()},
    Dimension.POWER: {"W": 1.0, "kW": 1e3, "MW": 1e6},
    Dimension.ENERGY: {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6, "MWh": 3.6e9},
    Dimension.MONEY: {"USD": 1.0, "kUSD": 1e3, "MUSD": 1e6},
    Dimension.MONEY_RATE: {
        f"{prefix}USD/{time}": scale / seconds
        for prefix, scale in (("", 1.0), ("k", 1e3), ("M", 1e6))
        for time, seconds in (
            ("h", 3600), ("s", 1), ("d", 86400), ("hour", 3600), ("day", 86400),
            ("week", 604800), ("month", 2628000), ("year", 31536000),
        )
    },
    Dimension.SAMPLE_RATE: {"samples/s": 1.0, "sample/s": 1.0, "images/s": 1.0},
    Dimension.FREQUENCY: {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9},
}  # fmt: skip

# Units to print in, largest first; the last is the SI one, in which every float can be written exactly.
_PRINTED: Mapping[Dimension, tuple[str, ...]] = {
    Dimension.DATA: ("TiB", "GiB", "MiB", "KiB", "GB", "MB", "kB", "B"),
    Dimension.RATE: ("Tbit/s", "Gbit/s", "Mbit/s", "GB/s", "MB/s", "kB/s", "B/s"),
    Dimension.TIME: ("d", "h", "min", "ms", "us", "ns", "s"),
    Dimension.FLOP: ("PFLOP", "TFLOP", "GFLOP", "MFLOP", "FLOP"),
    Dimension.FLOP_RATE: ("PFLOP/s", "TFLOP/s", "GFLOP/s", "FLOP/s"),
    Dimension.POWER: ("MW", "kW", "W"),
    Dimension.ENERGY: ("MWh", "kWh", "Wh", "J"),
    Dimension.MONEY: ("USD",),
    Dimension.MONEY_RATE: ("USD/h", "USD/s"),
    Dimension.SAMPLE_RATE: ("samples/s",),
    Dimension.FREQUENCY: ("GHz", "MHz", "Hz"),
}

_EXAMPLES: Mapping[Dimension, str] = {
    Dimension.DATA: "11 GiB",
    Dimension.RATE: "25 Gbit/s",
    Dimension.TIME: "20 us",
    Dimension.FLOP: "3 TFLOP",
    Dimension.FLOP_RATE: "13.45 TFLOP/s",
    Dimension.POWER: "250 W",
    Dimension.ENERGY: "5 kWh",
    Dimension.MONEY: "50000 USD",
    Dimension.MONEY_RATE: "2.48 USD/h",
    Dimension.SAMPLE_RATE: "2000 samples/s",
    Dimension.FREQUENCY: "2.1 GHz",
}

# Each letter has one way to match: digits that two parts may share would take a time that grows with their square.
_QUANTITY = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d].*)?", re.ASCII | re.DOTALL)
_GROUPED = re.compile(r"([+-]?\d{1,3}(?:[,_']\d{3})+(?:\.\d+)?)\s*(\S*)", re.ASCII)
_DOLLARS = re.compile(r"(?:\$|USD)?\s*([\d,_' ]*\d(?:\.\d+)?)\s*([kKmM]?)\s*(?:\$|USD)?", re.ASCII)
_BLANKS = " \t\n\r\f\v"
_OF_BASE = 1e6  # nobody means so many Gbit/s
_MOST_LETTERS = 400  # 309 digits are the largest number that there is


def units_of(dimension: Dimension) -> tuple[str, ...]:
    """Return the units that messages offer for a dimension."""
    return _PRINTED[dimension]


def example_of(dimension: Dimension) -> str:
    """Return a well-formed quantity of a dimension, for messages and schemas."""
    return _EXAMPLES[dimension]


def with_unit(number: str, dimension: Dimension) -> str:
    """Return how to write a number that has no unit, and the units that there are; of a large one the smallest.

    >>> with_unit("40", Dimension.TIME), with_unit("3.1e9", Dimension.RATE)[:25]
    ("Write e.g. '40 s'. Units: d, h, min, ms, us, ns, s.", "Write e.g. '3.1e9 B/s'. U")
    """
    is_base = dimension is Dimension.TIME or float(number) >= _OF_BASE
    unit = units_of(dimension)[-1] if is_base else example_of(dimension).split()[-1]
    return f"Write e.g. {f'{number} {unit}'!r}. Units: {', '.join(units_of(dimension))}."


def parse(text: str, dimension: Dimension) -> float:
    """Return the SI value of ``text``: seconds, bytes, bytes/s, FLOP, FLOP/s, W, J, USD, USD/s, samples/s or Hz.

    Raises
    ------
    ValueError
        With the value that was given and how to mend it, if the text is not one finite,
        non-negative number followed by a unit of this dimension.
    """
    if len(text) > _MOST_LETTERS:
        shown = f"a text of {len(text)} letters, {text[:20]!r}..., is not a {dimension.value}."
        raise ValueError(f"{shown} Write a number and a unit, e.g. {example_of(dimension)!r}.")
    found = _QUANTITY.fullmatch(text.strip(_BLANKS))
    if found is None:
        example = _in_dollars(text, dimension) or example_of(dimension)
        raise ValueError(f"{_wrong(text, dimension)} Write a number and a unit, e.g. {example!r}.")
    number, unit = found.groups()
    if unit is None:
        raise ValueError(f"{_wrong(text, dimension)} The unit is missing. {with_unit(number, dimension)}")
    scale = _UNITS[dimension].get(unit)
    if scale is None:
        raise ValueError(f"{_wrong(text, dimension)} {_mend_unit(unit, number, dimension)}")
    value = _to_si(float(number), scale)
    if value < 0 or not math.isfinite(value):
        mend = f"{number[1:]} {unit}" if value < 0 and math.isfinite(value) else example_of(dimension)
        raise ValueError(f"{_wrong(text, dimension)} It must be finite and not negative, e.g. {mend!r}.")
    return value


def _wrong(text: str, dimension: Dimension) -> str:
    """Return the first sentence of what is said of a text that is no quantity of a dimension."""
    return f"{text!r} is not {'an' if dimension.value[0] in 'aeiou' else 'a'} {dimension.value}."


def _in_dollars(text: str, dimension: Dimension) -> str:
    """Return how to write an amount of money that people write otherwise; nothing where it is none.

    >>> _in_dollars("$200,000", Dimension.MONEY), _in_dollars("200k USD", Dimension.MONEY)
    ('200000 USD', '200 kUSD')
    """
    found = _DOLLARS.fullmatch(text.strip(_BLANKS)) if dimension is Dimension.MONEY else None
    if found is None:
        return ""
    number = re.sub(r"[,_' ]", "", found[1])
    return f"{number} {found[2].replace('K', 'k').replace('m', 'M')}USD"


def _to_si(number: float, scale: float) -> float:
    """Return ``number`` times ``scale``.

    Scales below 1 are reciprocals, by which dividing is exact: 20 us is 20e-6 s.
    """
    return number * scale if scale >= 1 else number / round(1 / scale)


def _mend_unit(unit: str, number: str, dimension: Dimension) -> str:
    """Say what to write instead of an unknown ``unit``."""
    if found := _GROUPED.fullmatch(f"{number}{unit}"):
        whole, own = re.sub(r"[,_']", "", found[1]), found[2] or example_of(dimension).split()[-1]
        return f"Write a number without separators, e.g. '{whole} {own}'."
    if re.match(r",\d+(?![\d,.'])", unit) and "." not in number:
        return f"Write decimals behind a point: '{number}.{unit[1:]}'."
    if re.match(r"[,_']\d", unit):
        return f"Write a number without separators, e.g. {example_of(dimension)!r}."
    if dollars := _in_dollars(f"{number}{unit}", dimension):
        return f"Write e.g. {dollars!r}."
    if dimension is Dimension.TIME and unit.rstrip("s") == "month":
        return f"Months are of 28 to 31 days: write days, e.g. '{float(number) * 30:g} d'."
    alike = [one for one in _UNITS[dimension] if one.lower() == unit.lower()]
    if alike:
        return f"Unknown unit {unit!r}; did you mean {' or '.join(repr(f'{number} {one}') for one in alike)}?"
    if dimension is Dimension.RATE and unit in _UNITS[Dimension.DATA]:
        return f"Write it per second, e.g. '{number} {unit}/s'."
    other = next((kind for kind, units in _UNITS.items() if unit in units), None)
    what = f"{unit!r} measures a {other.value}" if other else f"Unknown unit {unit!r}"
    offered = ("USD/h", "USD/day", "USD/month") if dimension is Dimension.MONEY_RATE else units_of(dimension)
    return f"{what}; use one of {', '.join(offered)}."


def format_exact(value: float, dimension: Dimension) -> str:
    """Return the shortest text that :func:`parse` reads back as exactly ``value``, a finite number >= 0."""
    if not value:
        return format_human(0.0, dimension)
    candidates = []
    for order, unit in enumerate(_PRINTED[dimension]):
        scale = _UNITS[dimension][unit]
        number = value / scale if scale >= 1 else value * round(1 / scale)
        if math.isfinite(number) and _to_si(number, scale) == value:  # the last unit's scale is 1, so one always does
            candidates.append((len(plain(number)), number < 1, order, f"{plain(number)} {unit}"))
    return min(candidates)[-1]


def plain(number: float) -> str:
    """Return ``number`` without a trailing ``.0``."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def format_human(value: float, dimension: Dimension, digits: int = 3) -> str:
    """Return ``value`` rounded for reading, in the unit that leaves a number of 1 or more.

    A rate is written in bits or bytes, whichever is rounder.

    >>> format_human(0.00328, Dimension.TIME), format_human(392 * 2**20, Dimension.DATA)
    ('3.28 ms', '392 MiB')
    >>> format_human(3.125e9, Dimension.RATE), format_human(95e9, Dimension.RATE)
    ('25 Gbit/s', '95 GB/s')
    """
    units = _PRINTED[dimension]
    if value == 0 or not math.isfinite(value):
        return f"{abs(value):g} {units[-1]}"
    if dimension is Dimension.DATA:
        units = tuple(unit for unit in units if "i" in unit or unit == "B")
    kinds = ([unit for unit in units if "bit" not in unit], [unit for unit in units if "bit" in unit])
    texts = [_in_best_unit(value, dimension, kind, digits) for kind in kinds if kind]
    return min(texts, key=lambda text: len(re.sub(r"\D", "", text.split()[0]).strip("0")))


def _in_best_unit(value: float, dimension: Dimension, units: Sequence[str], digits: int) -> str:
    """Return ``value`` rounded to so many digits, in one of the units."""
    scales = sorted(((_UNITS[dimension][unit], unit) for unit in units), reverse=True)
    index = next((at for at, (scale, _) in enumerate(scales) if abs(value) >= scale), len(scales) - 1)
    scale, unit = scales[index]
    text = _rounded(value / scale, digits)
    if index and abs(float(text)) * scale >= scales[index - 1][0] * (1 - 1e-9):  # 999.9996 ms is 1 s, not 1000 ms
        text, unit = _rounded(math.copysign(1.0, value), digits), scales[index - 1][1]
    return f"{text} {unit}"


def _rounded(number: float, digits: int) -> str:
    """Return ``number`` to so many digits, and more where it has more before the point."""
    exponent = math.floor(math.log10(abs(number)))
    if not -6 < exponent < 12:
        return f"{number:.{digits}g}"
    text = f"{number:.{max(0, digits - 1 - exponent)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text

"""The values of one field: a list, or a range with its unit, by steps or by factors."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.units import Dimension, parse

__all__ = ["MOST_VALUES", "values_of"]

MOST_VALUES = 100_000  # of one field
_KEYS = {"from", "to", "step", "points", "factor", "scale"}
_SCALES = ("linear", "log")
_MOST_LETTERS = 400  # of a quantity: what is longer is none
_NUMBER = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S.*?)\s*", re.ASCII)
_LINEAR_DIGITS, _LOG_DIGITS = 12, 6
_EXAMPLE = "e.g. {from: 10 Gbit/s, to: 400 Gbit/s, points: 6, scale: log}"


def values_of(given: Any) -> list[Any]:
    """Return the values that a list or a range names, in its order.

    A range has ``from`` and ``to``, both included, and one of: ``step``; ``factor``; ``points`` with ``scale`` linear
    or log. Its values keep the unit of ``from``; whole numbers stay whole, and none comes twice.

    Raises
    ------
    ValueError
        With what is wrong and how to mend it.

    >>> values_of({"from": "10 Gbit/s", "to": "40 Gbit/s", "factor": 2})
    ['10 Gbit/s', '20 Gbit/s', '40 Gbit/s']
    >>> values_of({"from": 1, "to": 100, "points": 3, "scale": "log"})
    [1, 10, 100]
    """
    if isinstance(given, list):
        if not given:
            raise ValueError("this list is empty. Write at least one value.")
        if len(given) > MOST_VALUES:
            raise ValueError(f"{len(given)} values are more than {MOST_VALUES}. Leave some out.")
        return given
    if not isinstance(given, dict) or "from" not in given:
        raise ValueError(f"{_short(given)} is neither a list nor a range. Write [first, second], or {_EXAMPLE}.")
    return _range(given)


@dataclass(frozen=True, slots=True)
class _Ends:
    """The ends of a range as plain numbers in one unit, and how its values are written."""

    first: float
    last: float
    unit: str
    is_whole: bool

    def written(self, numbers: Sequence[float], digits: int) -> list[Any]:
        """Return numbers as values of a question, each once; the ends as they are."""
        inner = [float(f"{number:.{digits}g}") for number in numbers]
        if self.is_whole:
            return list(dict.fromkeys(round(number) for number in inner))
        found = dict.fromkeys(min(number, self.last) for number in inner)
        return [f"{_plain(number)} {self.unit}" if self.unit else number for number in found]


def _range(given: dict[str, Any]) -> list[Any]:
    """Return the values of a range."""
    if unknown := sorted(str(key) for key in given if key not in _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r} of a range. Write {_EXAMPLE}.")
    ways = [key for key in ("step", "factor", "points") if given.get(key) is not None]
    if len(ways) != 1 or given.get("to") is None:
        raise ValueError(f"a range has from, to, and one of step, factor and points. Write {_EXAMPLE}.")
    if ways[0] != "points" and given.get("scale") is not None:
        raise ValueError("scale belongs to points. Leave it out here.")
    ends = _ends(given)
    if ways[0] == "step":
        return _by_step(ends, given["step"])
    return _by_factor(ends, given["factor"]) if ways[0] == "factor" else _by_points(ends, given)


def _ends(given: dict[str, Any]) -> _Ends:
    """Return the ends of a range in the unit of the first."""
    first, last = given["from"], given["to"]
    if isinstance(first, str):
        number, unit, dimension = _quantity(first)
        found = _Ends(number, _in_unit(last, unit, dimension), unit, is_whole=False)
    else:
        is_whole = all(isinstance(one, int) for one in (first, last, given.get("step") or 0))
        found = _Ends(_number(first), _number(last), "", is_whole)
    if found.first > found.last:
        raise ValueError(f"the range goes down: from {first} to {last}. Exchange its ends.")
    return found


def _quantity(text: str) -> tuple[float, str, Dimension]:
    """Return number, unit and kind of a quantity."""
    found = _NUMBER.fullmatch(text) if len(text) <= _MOST_LETTERS else None
    for dimension in Dimension if found else ():
        try:
            parse(text, dimension)
        except ValueError:
            continue
        assert found is not None
        return float(found[1]), found[2], dimension
    raise ValueError(f"{_short(text)} is no quantity with a unit that is known. Write e.g. '10 Gbit/s'.")


def _in_unit(value: Any, unit: str, dimension: Dimension) -> float:
    """Return a quantity as a number of a unit."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} has no unit. Write e.g. '{value} {unit}'.")
    si = parse(value, dimension)
    found = _NUMBER.fullmatch(value)
    if found is not None and found[2] == unit:
        return float(found[1])
    return float(f"{si / parse(f'1 {unit}', dimension):.15g}")


def _number(value: Any) -> float:
    """Return a plain finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise ValueError(f"{_short(value)} is no number. Write e.g. 4, or a quantity with its unit at both ends.")
    return float(value)


def _by_step(ends: _Ends, step: Any) -> list[Any]:
    """Return values a step apart; the last one may fall short of the range's end."""
    size = _in_unit(step, ends.unit, _quantity(f"1 {ends.unit}")[2]) if ends.unit else _number(step)
    if size <= 0:
        raise ValueError(f"the step {step!r} leads nowhere. Write more than 0.")
    number = (ends.last - ends.first) / size * (1 + 1e-12) + 1
    _refuse_many(number)
    return ends.written([ends.first + index * size for index in range(int(number))], _LINEAR_DIGITS)


def _by_factor(ends: _Ends, factor: Any) -> list[Any]:
    """Return values a factor apart; the last one may fall short of the range's end."""
    ratio = _number(factor)
    if ratio <= 1:
        raise ValueError(f"the factor {factor!r} leads nowhere. Write more than 1.")
    _refuse_zero(ends)
    number = math.log(ends.last / ends.first) / math.log(ratio) + 1 + 1e-9
    _refuse_many(number)
    return ends.written([ends.first * ratio**index for index in range(int(number))], _LINEAR_DIGITS)


def _by_points(ends: _Ends, given: dict[str, Any]) -> list[Any]:
    """Return so many values, evenly apart on the scale asked for; whole ones are rounded and may become fewer."""
    points, scale = given["points"], given.get("scale")
    if isinstance(points, bool) or not isinstance(points, int) or points < 2:
        raise ValueError(f"points is {_short(points)}. Write a whole number of 2 or more.")
    if scale not in _SCALES:
        raise ValueError(f"points needs a scale, and it is {_short(scale)}. Write scale: log, or scale: linear.")
    _refuse_many(points)
    shares = [index / (points - 1) for index in range(1, points - 1)]
    if scale == "linear":
        inner, digits = [ends.first + (ends.last - ends.first) * share for share in shares], _LINEAR_DIGITS
    else:
        _refuse_zero(ends)
        inner, digits = [ends.first * (ends.last / ends.first) ** share for share in shares], _LOG_DIGITS
    values = [ends.written([one], 17)[0] for one in (ends.first, ends.last)]
    return list(dict.fromkeys([values[0], *ends.written(inner, digits), values[1]]))


def _refuse_zero(ends: _Ends) -> None:
    """Refuse a range by factors that starts at nothing."""
    if ends.first <= 0:
        raise ValueError(f"a range by factors cannot start at {ends.first:g}. Start above 0, or use step.")


def _refuse_many(number: float) -> None:
    """Refuse ranges that nobody means."""
    if not number < MOST_VALUES + 1:
        raise ValueError(f"this range has {number:.6g} values, and {MOST_VALUES} is the most. Use larger steps.")


def _plain(number: float) -> str:
    """Return a number without a trailing ``.0``."""
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else repr(number)


def _short(value: object) -> str:
    """Return a value as text of at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

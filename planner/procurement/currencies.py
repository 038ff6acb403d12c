"""Money in other currencies than dollars, at rates that the user gives: nothing here knows a rate by itself."""

import re
from collections.abc import Iterable, Mapping

from planner.errors import SpecError

_CODE = re.compile(r"[A-Za-z]{3}", re.ASCII)
_RATE = re.compile(r"([A-Za-z]{3})\s*=\s*(\d{1,9}(?:\.\d{1,12})?)\s*USD", re.ASCII)
_LEAST, _MOST = 1e-9, 1e9


def read_rates(texts: Iterable[str]) -> dict[str, float]:
    """Return the dollars for one unit of each currency, of texts such as ``EUR=1.08USD``.

    Raises
    ------
    SpecError
        For a text that is no rate, or a currency that has two.

    >>> read_rates(["EUR=1.08USD", "jpy = 0.0065 USD"])
    {'EUR': 1.08, 'JPY': 0.0065}
    """
    rates: dict[str, float] = {}
    for text in texts:
        found = _RATE.fullmatch(text.strip())
        problem = f"{text[:40]!r} is no rate of a currency."
        if found is not None:
            code, rate = found[1].upper(), float(found[2])
            problem = f"{code} has two rates." if code in rates else problem
        if found is None or code in rates or code == "USD" or not _LEAST <= rate <= _MOST:
            mend = "Write the dollars for one unit, e.g. EUR=1.08USD."
            raise SpecError.of_option("--rate", problem, mend, value=text[:40])
        rates[code] = rate
    return rates


def checked_rates(rates: Mapping[str, float]) -> dict[str, float]:
    """Return rates of a question by their codes in capitals.

    Raises
    ------
    ValueError
        For a code that is none, dollars among them, or a rate beyond what any currency has.
    """
    found: dict[str, float] = {}
    for code, rate in rates.items():
        if not _CODE.fullmatch(code) or code.upper() in ("USD", *found):
            raise ValueError(f"{code!r} is no code of another currency. Write e.g. EUR: 1.08.")
        if not _LEAST <= rate <= _MOST:
            raise ValueError(f"{code}: {rate:g} USD for one unit is no rate. Write e.g. EUR: 1.08.")
        found[code.upper()] = rate
    return found

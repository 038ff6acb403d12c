"""The band in which one more error lies with 80 %, of errors of sources that a fit did not see."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import stdtrit

__all__ = ["band", "band_text", "coverage"]

_SHARE = 0.8


def band(logs: Sequence[float]) -> tuple[float, float]:
    """Return the band of measured / predicted - 1, of errors that are log(predicted / measured).

    That of logarithms which are normal, wider the fewer there are (Student's t).
    """
    own = -np.asarray(logs)
    reach = float(stdtrit(len(own) - 1, (1 + _SHARE) / 2) * own.std(ddof=1)) * math.sqrt(1 + 1 / len(own))
    return math.exp(float(own.mean()) - reach) - 1, math.exp(float(own.mean()) + reach) - 1


def coverage(logs: Mapping[str, Sequence[float]]) -> float:
    """Return the share of errors that lie in the band of all other sources; by source."""
    inside: list[bool] = []
    for name, mine in logs.items():
        low, high = band([one for other, rest in logs.items() if other != name for one in rest])
        inside += [low <= math.exp(-one) - 1 <= high for one in mine]
    return sum(inside) / len(inside)


def band_text(logs: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Return the band of some errors and its coverage, as tables of the project hold them."""
    low, high = band([one for mine in logs.values() for one in mine])
    return {"low": f"{low:.3f}", "high": f"{high:.3f}", "coverage": f"{coverage(logs):.2f}"}

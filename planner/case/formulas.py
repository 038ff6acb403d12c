"""The formulas that a case may ask, a closed list, and the values that go into them.

========================= ============================================== ==============================================
formula                   inputs                                         result
========================= ============================================== ==============================================
``ratio``                 of, to                                         of / to
``change``                from, to                                       to / from - 1
``reduction``             from, to                                       1 - to / from
``exceeds``               larger, smaller                                1 if larger > smaller, else 0
``scaling_factor``        one_worker, many_workers, num_workers          eq. 1 of the OSF model
``ring_bandwidth_term``   size, num_devices, bandwidth                   first term of its eq. 7
``ring_aggregation_term`` size, num_devices, flop_rate, bytes_per_number second term of its eq. 7
========================= ============================================== ==============================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from planner.models.collectives import ring_all_reduces
from planner.models.overlap import scaling_factor
from planner.units import Dimension, parse

__all__ = ["FORMULAS", "Formula", "Value", "scale_of"]

_BARE_UNITS = {"1": 1.0, "%": 0.01, "GMAC": 1e9}  # of counts and shares; a MAC is one multiply-add


@dataclass(frozen=True, slots=True)
class Value:
    """A number in SI units and what it measures; None for a count or a share."""

    number: float
    dimension: Dimension | None = None


def scale_of(unit: str, dimension: Dimension | None) -> float:
    """Return the SI value of one ``unit``; raise ValueError unless it measures the dimension.

    >>> scale_of("MiB", Dimension.DATA), scale_of("%", None)
    (1048576.0, 0.01)
    """
    if dimension is not None:
        return parse(f"1 {unit}", dimension)
    if unit not in _BARE_UNITS:
        raise ValueError(f"{unit!r} is no unit of a bare number. Use one of {', '.join(_BARE_UNITS)}.")
    return _BARE_UNITS[unit]


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A function of its inputs in order, and what each measures; ``alike`` ones measure the same, whatever it is."""

    compute: Callable[..., float]
    inputs: Mapping[str, Dimension | Literal["alike"] | None]
    result: Dimension | None = None

    def apply(self, values: Mapping[str, Value]) -> Value:
        """Return the result; raise ValueError if an input measures the wrong thing."""
        alike = [values[key].dimension for key, wanted in self.inputs.items() if wanted == "alike"]
        for key, wanted in self.inputs.items():
            should = alike[0] if wanted == "alike" else wanted
            if values[key].dimension is not should:
                raise ValueError(
                    f"{key} must be a {should or 'bare number'}, and is a {values[key].dimension or 'bare number'}."
                )
        return Value(self.compute(*(values[key].number for key in self.inputs)), self.result)


def _bandwidth_term_s(size_bytes: float, num_devices: float, bandwidth_bytes_per_s: float) -> float:
    """Return ``2 (N-1) D / (N beta)``."""
    cost = ring_all_reduces(num_devices=[num_devices], bandwidth_bytes_per_s=bandwidth_bytes_per_s)
    return float(cost.per_byte_s[0]) * size_bytes


def _aggregation_term_s(size_bytes: float, num_devices: float, flop_per_s: float, bytes_per_number: float) -> float:
    """Return ``(N-1) D / (N pi s)``."""
    cost = ring_all_reduces(
        num_devices=[num_devices],
        bandwidth_bytes_per_s=float("inf"),
        reduce_bytes_per_s=flop_per_s * bytes_per_number,
    )
    return float(cost.per_byte_s[0]) * size_bytes


FORMULAS: Mapping[str, Formula] = {
    "ratio": Formula(compute=lambda of, to: of / to, inputs={"of": "alike", "to": "alike"}),
    "change": Formula(compute=lambda before, after: after / before - 1, inputs={"from": "alike", "to": "alike"}),
    "reduction": Formula(compute=lambda before, after: 1 - after / before, inputs={"from": "alike", "to": "alike"}),
    "exceeds": Formula(
        compute=lambda larger, smaller: float(larger > smaller), inputs={"larger": "alike", "smaller": "alike"}
    ),
    "scaling_factor": Formula(
        compute=lambda one, many, number: scaling_factor(one_worker_s=one, many_workers_s=many, num_workers=number),
        inputs={"one_worker": Dimension.TIME, "many_workers": Dimension.TIME, "num_workers": None},
    ),
    "ring_bandwidth_term": Formula(
        compute=_bandwidth_term_s,
        inputs={"size": Dimension.DATA, "num_devices": None, "bandwidth": Dimension.RATE},
        result=Dimension.TIME,
    ),
    "ring_aggregation_term": Formula(
        compute=_aggregation_term_s,
        inputs={
            "size": Dimension.DATA,
            "num_devices": None,
            "flop_rate": Dimension.FLOP_RATE,
            "bytes_per_number": None,
        },
        result=Dimension.TIME,
    ),
}

"""Values that papers give and a spec does not ask: text with units in, SI numbers out."""

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

from planner.units import Dimension, parse

__all__ = ["Hertz"]


def _frequency(value: object) -> float:
    """Read a clock's frequency; refuse zero."""
    found = parse(str(value), Dimension.FREQUENCY)
    if found <= 0:
        raise ValueError("it must be greater than 0.")
    return found


Hertz = Annotated[float, BeforeValidator(_frequency), WithJsonSchema({"type": "string"})]

"""The models of single papers, asked by a case: printed forms, and testbeds that no spec describes.

A case's question may hold, instead of a spec, a block ``model: {name: ..., ...}``. Every module that ``MODULES`` names
reads one such block (``Inputs``, a pydantic model: quantities with units, as in a spec) and answers it (``answer``): by
the functions of ``planner.models``, and by a paper's own equations that no family asks for, which stand in this room.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, WithJsonSchema

from planner.names import find, fold
from planner.units import Dimension, parse

__all__ = ["MODULES", "Hertz", "model_of"]

MODULES = ("adam", "bsp_server", "gst", "ssgd")  # imported when asked for


def _frequency(value: object) -> float:
    """Read a clock's frequency; refuse zero."""
    found = parse(str(value), Dimension.FREQUENCY)
    if found <= 0:
        raise ValueError("it must be greater than 0.")
    return found


Hertz = Annotated[float, BeforeValidator(_frequency), WithJsonSchema({"type": "string"})]


def model_of(name: str) -> tuple[type[BaseModel], Callable[..., Mapping[str, object]]]:
    """Return the inputs and the function of a model.

    Raises
    ------
    SpecError
        For an unknown name, with the nearest ones.
    """
    known = find(name, {fold(known): known for known in MODULES}, "model")
    module = import_module(f"planner.cases.forms.{known}")
    return module.Inputs, module.answer

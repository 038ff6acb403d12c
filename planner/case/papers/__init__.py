"""The models of single papers, asked by a case: printed forms, and testbeds that no spec describes.

A case's question may hold, instead of a spec, a block ``model: {name: ..., ...}``. Every module of this room reads one
such block (``Inputs``, a pydantic model: quantities with units, as in a spec) and answers it by the functions of
``planner.models`` (``answer``). Nothing is computed here that a model does not compute.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pydantic import BaseModel

from planner.names import find, fold

__all__ = ["MODULES", "model_of"]

# Name in a case -> module of this room; imported when asked for.
MODULES: dict[str, str] = {
    "adam": "adam",
    "bsp_server": "bsp_server",
    "gst": "gst",
    "ssgd": "ssgd",
}


def model_of(name: str) -> tuple[type[BaseModel], Callable[[Any], Mapping[str, Any]]]:
    """Return the inputs and the function of a model.

    Raises
    ------
    SpecError
        For an unknown name, with the nearest ones.
    """
    known = find(name, {fold(known): known for known in MODULES}, "model")
    module = import_module(f"planner.case.papers.{MODULES[known]}")
    return module.Inputs, module.answer

"""planner: the provably fastest way to train a deep neural network on given machines.

>>> import planner
>>> sorted(planner.__all__) == planner.__all__
True
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.shown import Shown

if TYPE_CHECKING:
    from planner.api import check, compare, explain, export, from_torch, load, plan, predict, procure

__all__ = ["check", "compare", "explain", "export", "from_torch", "load", "plan", "predict", "procure"]


# Rooms that scripts use without importing them first: planner.solvers.fusion.optimal_groups(...).
_ROOMS = frozenset({"errors", "models", "solvers", "units", "zoo"})


class _Package(ModuleType):
    """The package, with its public functions imported when they are first asked for.

    `planner --help` has no use for numpy and networkx. A module's ``__getattr__`` would do, but for the submodule
    `planner.plan`: importing it sets the package's attribute ``plan``, which is to remain the function. A
    property goes before that attribute.
    """

    @property
    def plan(self) -> Any:
        """The function that answers a question."""
        from planner import api  # noqa: PLC0415

        return api.plan

    @plan.setter
    def plan(self, module: ModuleType) -> None:
        """Leave the function in place when the import system brings the submodule."""

    def __getattr__(self, name: str) -> Any:
        if name in __all__:
            from planner import api  # noqa: PLC0415

            return getattr(api, name)
        if name in _ROOMS:
            return import_module(f"planner.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _html_of(shown: object) -> str:
    """Return what a notebook shows of an object."""
    from planner.answer.notebook import html_of  # noqa: PLC0415  # only a notebook asks

    return html_of(shown)


Shown.renderer = staticmethod(_html_of)
sys.modules[__name__].__class__ = _Package

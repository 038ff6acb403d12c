"""planner: the provably fastest or cheapest way to train a deep neural network on given machines, or on a budget.

What the command line does is a function here. A question is a mapping of the keys of a spec, the name of its file, or
what :func:`load` returns::

    import planner

    question = {"dnn": {"zoo": "vgg16", "batch_per_device": 32}, "cluster": {"preset": "osf-testbed"}}
    found = planner.plan(question)
    found.configuration, found.prediction.iteration_time_s, found.status, found.bound
    found.to_dict(), found.to_records(), found.to_frame()

Numbers are in SI units, and every name ends in its unit. What raises is a :class:`planner.errors.PlannerError`.

>>> import planner
>>> sorted(planner.__all__) == planner.__all__
True
>>> set(planner.__all__) <= set(dir(planner))
True
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from planner.shown import Shown

if TYPE_CHECKING:
    from planner.api import check, compare, explain, export, from_torch, load, plan, predict, procure, sweep, timeline

    __version__: str

__all__ = ["check", "compare", "explain", "export", "from_torch", "load", "plan", "predict", "procure", "sweep"]
__all__ += ["timeline"]

# Rooms that scripts use without importing them first: planner.solvers.fusion.optimal_groups(...).
_ROOMS = frozenset({"errors", "models", "solvers", "units", "zoo"})


class _Package(ModuleType):
    """The package, with its public functions imported when they are first asked for.

    `planner --help` has no use for numpy and networkx. A module's ``__getattr__`` would do, but for what bears the name
    of a function: importing `planner.plan` sets the package's attribute ``plan``, which is to remain the function. A
    property goes before that attribute.
    """

    def __getattr__(self, name: str) -> Any:
        if name in __all__:
            from planner import api  # noqa: PLC0415

            return getattr(api, name)
        if name in _ROOMS:
            return import_module(f"planner.{name}")
        if name == "__version__":
            from planner.plugins import planner_version  # noqa: PLC0415

            return planner_version()
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        own = (name for name in super().__dir__() if name.startswith("_"))  # not what this file imports
        return sorted({*own, *__all__, *_ROOMS, "__version__"})


def _function(name: str) -> property:
    """Return the function of a name that a module has, too; the import system cannot put the module in its place."""
    return property(lambda package: _Package.__getattr__(package, name), lambda _package, _module: None)


for _name in ("plan", "sweep", "timeline"):
    setattr(_Package, _name, _function(_name))


def _html_of(shown: object) -> str:
    """Return what a notebook shows of an object."""
    from planner.answer.notebook import html_of  # noqa: PLC0415  # only a notebook asks

    return html_of(shown)


Shown.renderer = staticmethod(_html_of)
sys.modules[__name__].__class__ = _Package

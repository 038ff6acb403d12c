"""What a shell offers for a value: the names that a question may bear, those of plug-ins, too.

Nothing is imported before a name of its kind is asked for: a shell waits for the answer at each press of Tab.
"""

import re
from collections.abc import Callable, Iterable
from typing import get_args

import typer

_COUNTS = re.compile(r"(\d+\s*x\s*){0,2}")  # of machines, and of devices of each


def _networks() -> Iterable[str]:
    from planner.zoo import names

    return names()


def _clusters() -> Iterable[str]:
    from planner.data import preset_names

    return preset_names()


def _devices() -> Iterable[str]:
    from planner.data.devices import DEVICES

    return DEVICES


def _machines() -> Iterable[str]:
    from planner.data import machine_rows

    return [name for row in machine_rows() for name in (row["name"], *row["aliases"].split())]


def _links() -> Iterable[str]:
    from planner.data import inside_links

    return inside_links()


def _families() -> Iterable[str]:
    from planner.names import FAMILY_NAMES
    from planner.plugins import named

    return [*FAMILY_NAMES, *named("planner.families")]


def _targets() -> Iterable[str]:
    from planner.exporters import TARGETS

    return TARGETS


def _cases() -> Iterable[str]:
    from planner.case.run import case_names

    return case_names()


def _precisions() -> Iterable[str]:
    from planner.question.values import TrainingDtype

    return get_args(TrainingDtype)


def _optimizers() -> Iterable[str]:
    from planner.question.values import OptimizerName

    return _words(OptimizerName)


def _objectives() -> Iterable[str]:
    from planner.question.spec import Spec

    return _words(Spec.model_fields["objective"].annotation)


def _purposes() -> Iterable[str]:
    from planner.procurement.question import ObjectiveName

    return [word for word in get_args(ObjectiveName) if word != "value_of_time"]  # whose price no flag says


def _terms() -> Iterable[str]:
    from planner.procurement.question import TermName

    return get_args(TermName)


def _words(kind: object) -> list[str]:
    """Return those of ``Literal[...] | None``, or of one that a validator goes with."""
    return [word for part in get_args(kind) for word in get_args(part)]


_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "network": _networks,
    "cluster": _clusters,
    "link": _links,
    "family": _families,
    "target": _targets,
    "case": _cases,
    "precision": _precisions,
    "optimizer": _optimizers,
    "objective": _objectives,
    "purpose": _purposes,
    "term": _terms,
}
_SHOWN: dict[str, Callable[[], Iterable[str]]] = {  # by the table that is shown; others have no names
    "dnn": _networks,
    "cluster": _clusters,
    "devices": _devices,
    "machines": _machines,
}


def names_of(kind: str) -> Callable[[str], list[str]]:
    """Return what offers the names of a kind."""
    return lambda incomplete: [name for name in _NAMES[kind]() if name.startswith(incomplete)]


def lists_of(kind: str) -> Callable[[str], list[str]]:
    """Return what offers the names of a kind between commas, each once."""

    def offered(incomplete: str) -> list[str]:
        head, comma, last = incomplete.rpartition(",")
        taken = head.split(",")
        names = [name for name in _NAMES[kind]() if name.startswith(last) and name not in taken]
        return [f"{head}{comma}{name}" for name in names]

    return offered


def groups(incomplete: str) -> list[str]:
    """Return machines as they are sold, ``dgx-h100`` or ``4xdgx-h100``, and devices behind counts, ``4x8xh100-sxm``."""
    head, comma, last = incomplete.rpartition(",")
    counts = _COUNTS.match(last)
    assert counts is not None, "nothing matches, too"
    names = [*_machines(), *(_devices() if counts[0] else ())]
    name = last[counts.end() :]
    return [f"{head}{comma}{counts[0]}{one}" for one in names if one.startswith(name)]


def shown(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the table that is to be shown."""
    return [name for name in _SHOWN.get(str(ctx.params.get("what")), list)() if name.startswith(incomplete)]

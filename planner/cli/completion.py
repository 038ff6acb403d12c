"""What a shell offers for a value: the names that a question may bear, those of plug-ins, too.

Nothing is imported before a name of its kind is asked for: a shell waits for the answer at each press of Tab.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import get_args

import typer

# As typer writes it, but with its first line first, without which zsh's ``compinit`` passes a file over, and with an
# answer to the first Tab, which is the one that loads the file.
ZSH = """\
#compdef planner

_planner_completion() {
  eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _PLANNER_COMPLETE=complete_zsh planner)
}

if [ "$funcstack[1]" = _planner ]; then
  _planner_completion "$@"
else
  compdef _planner_completion planner
fi"""
_COUNTS = re.compile(r"(\d+\s*x\s*){0,2}")  # of machines, and of devices of each


def _offered(place: str) -> Iterable[str]:
    """Return what stands at ``module:name``: names, a function that returns them, or the words of a type."""
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name)
    return _words(found) or (found() if callable(found) else found)


def _words(kind: object) -> list[str]:
    """Return those of a ``Literal``, also in a union with others, or where a validator goes with it."""
    return [kind] if isinstance(kind, str) else [word for part in get_args(kind) for word in _words(part)]


def _machines() -> Iterable[str]:
    from planner.data import machine_rows

    return [name for row in machine_rows() for name in (row["name"], *row["aliases"].split())]


def _families() -> Iterable[str]:
    from planner.names import FAMILY_NAMES
    from planner.plugins import named

    return [*FAMILY_NAMES, *named("planner.families")]


def _objectives() -> Iterable[str]:
    from planner.question.spec import Spec

    return _words(Spec.model_fields["objective"].annotation)


def _purposes() -> Iterable[str]:
    return [word for word in _offered("planner.procurement.question:ObjectiveName") if word != "value_of_time"]


_networks = partial(_offered, "planner.zoo:names")
_clusters = partial(_offered, "planner.data:preset_names")
_devices = partial(_offered, "planner.data.devices:DEVICES")
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "network": _networks,
    "cluster": _clusters,
    "link": partial(_offered, "planner.data:inside_links"),
    "family": _families,
    "target": partial(_offered, "planner.exporters:TARGETS"),
    "case": partial(_offered, "planner.case.run:case_names"),
    "precision": partial(_offered, "planner.question.values:TrainingDtype"),
    "optimizer": partial(_offered, "planner.question.values:OptimizerName"),
    "objective": _objectives,
    "purpose": _purposes,  # but the one whose price no flag says
    "term": partial(_offered, "planner.procurement.question:TermName"),
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

"""A pinned cut of the layers into stages: refused where it contradicts the network or another pin."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.decisions import TURNED, cut_shape
from planner.question.source import Notes

__all__ = ["check_layers"]

_KEY = "layers_per_stage"


def check_layers(notes: Notes, layers: Sequence[int], fixed: Mapping[str, Any], num_layers: int) -> None:
    """Refuse a cut that other layers, stages or chunks are pinned for.

    Parameters
    ----------
    layers
        Of every stage or chunk, in the order of the network.
    fixed
        All pins.
    num_layers
        Of the network.
    """
    for problem, mend in _faults(layers, fixed, num_layers):
        notes.fault(("fix", _KEY), problem, mend, list(layers))
        return


def _faults(layers: Sequence[int], fixed: Mapping[str, Any], num_layers: int) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a cut, and how to mend it."""
    stages, chunks = cut_shape(layers, fixed)
    schedule, count = fixed.get("schedule"), len(layers)
    if schedule == "dualpipe":
        yield "DualPipe runs the network both ways, over stages of equal layers.", "Leave it out, or the schedule."
    if stages * chunks != count:
        said = f"{stages} stages" + f" of {chunks} chunks" * (chunks > 1)
        yield f"there are {said}, and {count} numbers are listed.", f"List {stages * chunks}."
    if schedule is not None and (chunks > 1) != _has_chunks(schedule):
        what = f"there are {stages} stages of {chunks} chunks" if chunks > 1 else f"no stage has chunks, of {count}"
        mend = "Write fix.schedule: interleaved" if chunks > 1 else "Pin num_stages: a part of them"
        yield f"{what}, and fix.schedule is {schedule}.", f"{mend}, or leave one of both out."
    empty = [index for index, one in enumerate(layers) if not one]
    inside = [index for index in empty if chunks == 1 or index not in (0, count - 1)]
    if inside:
        what = "chunk" if chunks > 1 else "stage"
        yield f"{what} {inside[0] + 1} of {count} holds no layer, and each holds one at least.", "Write 1 or more."
    if sum(layers) != num_layers:
        yield f"they add up to {sum(layers)} layers, and the network has {num_layers}.", f"List {num_layers} layers."


def _has_chunks(schedule: str) -> bool:
    """Whether devices have several chunks in a schedule."""
    return schedule in ("interleaved", *TURNED)

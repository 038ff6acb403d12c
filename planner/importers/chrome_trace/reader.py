"""Seconds of every module, from a trace of torch.profiler (``export_chrome_trace``), plain or compressed by gzip.

Modules are known by their ranges, ``nn.Module: Linear_3``, which the profiler writes with ``with_stack=True``, or,
where there are none, by those of ``record_function``. Each becomes a layer; what a module does between the modules
within it becomes layers of its own. Seconds are medians over the steps that ``profiler.step()`` marks. See
:mod:`planner.importers.chrome_trace.scopes` for how operators, backward nodes and kernels find their module.

Left out: data flow, of which a trace says nothing (layers are taken for a chain, in order of execution), and what runs
outside of modules, whose share is told.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from planner.importers.chrome_trace.events import Event, error_in, read_trace
from planner.importers.chrome_trace.scopes import Key, Part, Step, Timeline, is_scope_annotation
from planner.importers.chrome_trace.shapes import kind_of, num_outputs, num_parameters
from planner.importers.measured import MeasuredLayer, MeasuredNetwork, build_measured

__all__ = ["read_chrome_trace"]

_STEP = "ProfilerStep#"
_ELEMENT_BYTES = 4  # build_measured counts elements of fp32
_MOST_OUTSIDE = 0.1
_MEND = (
    "Profile with torch.profiler.profile(with_stack=True, record_shapes=True), call profiler.step() after every "
    "iteration, and export_chrome_trace; or put torch.profiler.record_function(name) around the parts."
)


def read_chrome_trace(path: Path, *, batch_size: int) -> MeasuredNetwork:
    """Return the network, a chain, and the profile of a trace.

    Parameters
    ----------
    batch_size
        Samples of one step, over all its forward passes.

    Raises
    ------
    SpecError
        If the file is no whole trace (see :func:`planner.importers.chrome_trace.events.read_events`), or has no modules
        or no times of theirs.
    """
    trace = read_trace(path)
    events = trace.events
    has_modules = any(event.kind == "module" for event in events)
    if not has_modules and not any(map(is_scope_annotation, events)):
        raise error_in(path, f"there are no modules among its {len(events):,} events.", _MEND)
    timeline = Timeline(events, scopes="module" if has_modules else "annotation")
    windows, is_marked = _windows(events, has_modules=has_modules)
    steps = timeline.steps(windows)
    used = steps[1:] if len(steps) > 3 else steps  # the first one pays for allocations
    order = sorted(max(used, key=lambda step: len(step.parts)).parts.values(), key=lambda part: part.order_s)
    seconds = {
        part.key: (_middle(used, part.key, "forward_s"), _middle(used, part.key, "backward_s")) for part in order
    }
    if not any(forward_s or backward_s for forward_s, backward_s in seconds.values()):
        raise error_in(path, "its modules hold no operators.", _MEND)
    rows = _rows(order, seconds)
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".pt.trace") or "trace"
    try:
        found = build_measured(name, rows, batch_size=batch_size, origin=f"torch profiler trace {path.name}")
    except ValueError as error:
        raise error_in(path, f"{error}.", "Export it again.") from None
    update_s = median(step.update_s for step in used)
    doubts = _doubts(timeline, used, rows, is_marked=is_marked)
    measured_on = trace.device or ("" if any(event.kind == "kernel" for event in events) else "a CPU")
    return MeasuredNetwork(
        dnn=found.dnn,
        profile=replace(found.profile, update_s=update_s, measured_on=measured_on),
        warnings=(*found.warnings, *doubts),
    )


# -- steps -----------------------------------------------------------------------------------------------------------


def _windows(events: Sequence[Event], *, has_modules: bool) -> tuple[list[tuple[float, float]], bool]:
    """Return when each step begins and ends, and whether the profiler marked them.

    Without marks a step begins with each call of the first module, which is the network itself.
    """
    marks = sorted({event.start_s: event for event in events if event.name.startswith(_STEP)}.items())
    if marks:
        ends = [start_s for start_s, _ in marks[1:]] + [marks[-1][1].end_s]
        # Kernels and the backward pass may end behind a mark; the last step has nothing behind it.
        return list(
            zip([start_s for start_s, _ in marks], [*ends[:-1], max(ends[-1], marks[-1][0])], strict=True)
        ), True
    scopes = [event for event in events if (event.kind == "module" if has_modules else is_scope_annotation(event))]
    first = min(scopes, key=lambda event: (event.start_s, -event.duration_s))
    starts = sorted({event.start_s for event in scopes if event.name == first.name and event.thread == first.thread})
    return list(zip(starts, [*starts[1:], float("inf")], strict=True)), False


def _middle(steps: Sequence[Step], key: Key, what: str) -> float:
    """Return the median seconds of a part over the steps that have it."""
    return float(median(getattr(step.parts[key], what) for step in steps if key in step.parts))


# -- layers ----------------------------------------------------------------------------------------------------------


def _rows(order: Sequence[Part], seconds: dict[Key, tuple[float, float]]) -> list[MeasuredLayer]:
    """Return the layers in order, each reading the one before it."""
    parts_of = Counter(part.key[0] for part in order)
    rows: list[MeasuredLayer] = []
    used: set[str] = set()
    for part in order:
        forward_s, backward_s = seconds[part.key]
        name = part.key[0]
        if part.key[1] or parts_of[name] > 1:
            name = f"{name}.{_words(part.operators)}"
        number, unique = 1, name
        while unique in used:
            number += 1
            unique = f"{name}_{number}"
        used.add(unique)
        rows.append(
            MeasuredLayer(
                name=unique,
                kind=kind_of(part.operators),
                inputs=(rows[-1].name,) if rows else (),
                forward_s=forward_s,
                backward_s=backward_s,
                output_bytes=_ELEMENT_BYTES * (num_outputs(part.operators) or 0),
                parameter_bytes=_ELEMENT_BYTES * num_parameters(_first_of_each(part.operators)),
            )
        )
    return rows


def _words(operators: Sequence[Event]) -> str:
    """Return the first operators' names, as a name of what they do together."""
    names = dict.fromkeys(event.name.removeprefix("aten::").strip("_") for event in operators)
    return "+".join(list(names)[:3]) or "own"


def _first_of_each(operators: Sequence[Event]) -> list[Event]:
    """Return operators but for those of later calls: a module that is called again reads the same parameters."""
    seen: set[tuple[str, str]] = set()
    first = []
    for event in operators:
        alike = (event.name, str(event.args.get("Input Dims")))
        if alike not in seen:
            seen.add(alike)
            first.append(event)
    return first


def _doubts(timeline: Timeline, steps: Sequence[Step], rows: Sequence[MeasuredLayer], *, is_marked: bool) -> list[str]:
    """Return what makes the figures doubtful."""
    doubts = ["a trace has no data flow: its layers are taken for a chain, in order of execution"]
    if not is_marked:
        doubts.append("no steps are marked (profiler.step()): each call of the outermost module begins one")
    if len(steps) == 1:
        doubts.append("there is one step in it: figures are no medians")
    inside = sum(part.forward_s + part.backward_s for step in steps for part in step.parts.values())
    outside = sum(step.outside_s for step in steps)
    if outside > _MOST_OUTSIDE * (inside + outside):
        share = outside / (inside + outside)
        doubts.append(f"{share:.0%} of the time of operators is outside of modules (the loss, copies) and left out")
    if not any(row.backward_s for row in rows):
        doubts.append("there is no backward pass in it")
    if timeline.num_overlaps:
        doubts.append(f"{timeline.num_overlaps} ranges overlap without standing in one another")
    if timeline.num_collectives:
        doubts.append(f"{timeline.num_collectives} kernels of collectives are left out: they belong to the cluster")
    if timeline.num_lost_kernels:
        doubts.append(f"{timeline.num_lost_kernels} kernels were launched by no operator in the trace and are left out")
    unknown = [row.name for row in rows if not row.output_bytes]
    if len(unknown) == len(rows):
        doubts.append("no shapes are recorded (record_shapes=True): parameters are not counted either")
    elif unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        doubts.append(f"sizes of outputs are not known: {', '.join(unknown[:5])}{more}")
    return doubts

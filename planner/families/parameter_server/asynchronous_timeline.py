"""Parameter servers without a barrier as a timeline: a stretch of the simulation that the prediction rests on.

It is as long as the iterations asked for, and lies near the end of the simulated training, where the start is
forgotten. What is under way at either edge is cut there. The prediction's parts are means over the whole simulation,
so that no single stretch has exactly those.
"""

from planner.families.parameter_server.cost import ParameterServerCost
from planner.families.timeline_drawing import Drawing, peak_memory
from planner.models.asynchronous_events import Log
from planner.timeline import Timeline

__all__ = ["timeline"]

_NOTE = (
    "workers without a barrier: this is a stretch of the simulated training, cut at its edges; the parts of the "
    "prediction are means over all of it"
)


def timeline(cost: ParameterServerCost, num_iterations: int) -> Timeline:
    """Return what every worker does in so many iterations, and when its updates are applied."""
    prediction, log, drawing = cost.predict(), list[tuple[int, str, float, float]](), Drawing()
    cost.steady(log)
    length_s = num_iterations * prediction.iteration_time_s
    start_s = _start_s(log, length_s)
    names = _workers(drawing, cost)
    drawing.process("servers", ["servers: updates applied"])
    before: dict[int, int | None] = {}
    for worker, what, begin_s, end_s in sorted(log, key=lambda row: (row[2], row[0], row[3])):
        first_s, last_s = max(begin_s - start_s, 0.0), min(end_s - start_s, length_s)
        if last_s <= first_s:
            continue
        row = f"{names[worker]}: {'compute' if what in ('compute', 'wait') else what}"
        more = {"is_cut": True} if (begin_s < start_s or end_s - start_s > length_s) else {}
        span = drawing.add(row, _words(cost, what), first_s, last_s, what, **more)
        if what == "push" and end_s - start_s <= length_s:
            drawing.flow(span, _applied(drawing, names[worker], last_s), "push")
        if what in ("compute", "push"):
            drawing.flow(before.get(worker), span, "parameters" if what == "compute" else "gradient")
        before[worker] = span if what in ("pull", "compute") else None
    _check_ends(drawing, length_s)
    drawing.notes.append(_NOTE)
    held = peak_memory(prediction.memory_bytes)
    drawing.counter(names[0], "memory of the fullest worker's device (bytes)", [(0.0, held)])
    return drawing.finished()


def _workers(drawing: Drawing, cost: ParameterServerCost) -> list[str]:
    """Announce every worker; return the names of their processes, in the simulation's order."""
    names, numbers = [], dict[str, int]()
    for group, count, home in cost.entries:
        for _ in range(count):
            numbers[group.name] = number = numbers.get(group.name, 0) + 1
            where = "" if home is None else f" beside server {home}"
            name = f"{group.name}: worker {number}{where}"
            rows = [f"{name}: {row}" for row in ("compute", "push", "pull")]
            drawing.process(name, rows, member=(name, ""), kind=f"{group.name}, {home is None}")
            names.append(name)
    return names


def _words(cost: ParameterServerCost, what: str) -> str:
    """Return what a worker does, in words."""
    if what == "compute" and cost.configuration.synchronisation == "local_sgd":
        return f"{cost.configuration.staleness + 1} local iterations"
    return {"compute": "forward, backward and update", "wait": "wait for other workers"}.get(what, what)


def _applied(drawing: Drawing, worker: str, at_s: float) -> int:
    """Draw that an update is applied, which takes no time in the model."""
    return drawing.mark("servers: updates applied", f"update of {worker}", at_s, "apply")


def _start_s(log: Log, length_s: float) -> float:
    """Return where a stretch begins: with an iteration of the first worker, as late as all workers are known."""
    ends: dict[int, float] = {}
    for worker, _, _, end_s in log:
        ends[worker] = max(ends.get(worker, 0.0), end_s)
    latest_s = max(min(ends.values()) - length_s, 0.0)
    starts = [begin_s for worker, what, begin_s, _ in log if worker == 0 and what == "compute" and begin_s <= latest_s]
    return max(starts, default=latest_s)


def _check_ends(drawing: Drawing, length_s: float) -> None:
    """Say so where the simulation was too short for the stretch."""
    last_s = max((span.end_s for span in drawing.spans), default=0.0)
    if last_s < length_s:
        drawing.notes.append(f"the simulation ends {length_s - last_s:g} s before the stretch that was asked for")

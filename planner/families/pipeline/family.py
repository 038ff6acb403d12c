"""The family ``pipeline``: what a given pipeline of stages costs.

Cuts, replicas and machines of every stage, micro-batches and their schedule; see docs/pipeline.md. The costs stand in
:mod:`planner.families.pipeline.cost`, the search in :mod:`planner.families.pipeline.search`, and what a given
configuration means in :mod:`planner.families.pipeline.family`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.cluster import Cluster
from planner.errors import Fault, SpecError
from planner.families.parsing import wrong
from planner.families.pipeline.cost import (
    NAME,
    NOT_LAUNCHED,
    NOT_MODELLED,
    PipelineConfiguration,
    PipelineCost,
    Shape,
    explain,
    predict,
)
from planner.families.timeline_drawing import Drawing
from planner.models.schedule import PipelineTask
from planner.models.stages import PlaceError, Stage
from planner.plan import Plan, Prediction
from planner.problem import Problem
from planner.search import Search
from planner.sections import Cell, FamilyView, Placement, Role, Table, few_roles
from planner.timeline import Timeline, repeated
from planner.used_machines import UsedMachines, filled
from planner.words import cut, few, first_lines, thinned, time_words

__all__ = [
    "FITTED",
    "NAME",
    "NOT_LAUNCHED",
    "NOT_MODELLED",
    "WORDS",
    "PipelineConfiguration",
    "configuration_of",
    "default_num_microbatches",
    "domain",
    "explain",
    "left_out",
    "machines",
    "predict",
    "search",
    "timeline",
    "view",
]


FITTED = ("utilisation", "bandwidth_efficiency", "inside_efficiency")
_MOST_LISTED = 200  # stages in a table
_MOST_LINES = 4  # on a terminal
WORDS = "pipeline parallelism"  # how it trains
_MICROBATCHES_PER_STAGE = 4  # GPipe, arXiv:1811.06965, section 2.2: the bubble is then found to be negligible
_MOST_LAYERS = 200_000  # spans of single layers
_SUFFIX = {"compute": "", "send_output": ", outputs", "send_error": ", errors"}
_NAMES = {"send_output": "output", "send_error": "error", "sync": "gradients"}
_NO_LAYERS = "there are too many micro-batches to draw their layers"


def configuration_of(problem: Problem, given: Mapping[str, Any]) -> PipelineConfiguration:
    """Return the configuration that a spec's block means.

    Raises
    ------
    SpecError
        Where the stages do not cover the layers in order, stand on machines that there are not, or leave a device
        without a sample; or where the numbers contradict the schedule or the batch.
    """
    if problem.variant != "corrected":
        text = "pipelines have no printed form."
        raise SpecError.of([Fault(field="variant", value=problem.variant, problem=text, mend="Leave it out.")])
    cost = PipelineCost(problem)
    stages, p = _stages_of(cost, given)
    batch, asked = given["global_batch_size"], problem.training
    fixed, largest = asked.fixed_batch_size, asked.max_global_batch_size
    if batch is None:
        batch = int(fixed or largest or 0)
    elif (fixed is not None and batch != fixed) or (largest is not None and batch > largest):
        raise wrong(NAME, "global_batch_size", batch, f"dnn asks for a batch of {fixed or largest}.")
    most, schedule = max(stage.replicas for stage in stages), given["schedule"]
    number = given["num_microbatches"] or default_num_microbatches(
        batch, num_stages=p, most_replicas=most, schedule=schedule
    )
    if batch // number < most:
        text = (
            f"a batch of {batch} in {number} micro-batches leaves some of {most} replicas without a sample. Use "
            f"{batch // most} micro-batches or fewer, or fewer replicas."
        )
        raise wrong(NAME, "num_microbatches", number, text)
    if schedule == "interleaved" and number % p:
        text = f"the interleaved schedule needs a multiple of its {p} stages of different devices."
        raise wrong(NAME, "num_microbatches", number, text)
    shape = Shape(
        stages=stages,
        num_microbatches=number,
        global_batch_size=batch,
        schedule=schedule,
        chunks_per_device=given["chunks_per_device"],
    )
    try:
        cost.places(shape)
    except PlaceError as error:
        group = cost.groups[error.group]
        have = f"{group.name!r} has {group.count * group.devices_per_machine}"
        raise wrong(NAME, "stages", error.needed, f"the stages take {error.needed} devices; {have}.") from None
    return cost.configuration(shape)


def default_num_microbatches(batch: int, *, num_stages: int, most_replicas: int, schedule: str) -> int:
    """Return a sensible number of micro-batches: the largest that divides the batch, up to four a stage.

    One stage has no bubble and takes one. Every replica gets a sample of each micro-batch, and the interleaved schedule
    multiples of its stages, where there is such a number; else 1, which the caller checks.

    >>> default_num_microbatches(60, num_stages=4, most_replicas=2, schedule="1f1b")
    15
    """
    most = 1 if num_stages == 1 else min(_MICROBATCHES_PER_STAGE * num_stages, batch // most_replicas)
    step = num_stages if schedule == "interleaved" else 1
    return next((number for number in range(most // step * step, 0, -step) if not batch % number), step)


def _stages_of(cost: PipelineCost, given: Mapping[str, Any]) -> tuple[tuple[Stage, ...], int]:
    """Return the stages by their indices, and how many stand on different devices.

    They cover the layers in order, and chunks of one device claim the same machines and replicas.
    """
    chunks, schedule, names = given["chunks_per_device"], given["schedule"], cost.costs.layers.names
    if (chunks > 1) != (schedule == "interleaved"):
        text = f"{schedule} has {chunks} chunks a device; interleaved needs 2 or more, the others 1."
        raise wrong(NAME, "chunks_per_device", chunks, text)
    if (number := len(given["stages"])) % chunks:
        raise wrong(NAME, "chunks_per_device", chunks, f"{number} stages are no multiple of {chunks} chunks.")
    stages = [_stage(cost, index, row) for index, row in enumerate(given["stages"])]
    p, expected = number // chunks, 0
    for index, stage in enumerate(stages):
        if stage.first != expected:
            is_left = expected < len(names)
            text = f"the layer that must come next is {names[expected]!r}." if is_left else "no layer is left for it."
            raise wrong(NAME, f"stages.{index}.first", names[stage.first], text)
        if stage.last < stage.first:
            text = f"it stands before {names[stage.first]!r}, the first layer of the stage, in the order of the layers."
            raise wrong(NAME, f"stages.{index}.last", names[stage.last], text)
        expected = stage.last + 1
    if expected < len(names):
        text = f"the last stage must end with {names[-1]!r}; {len(names) - expected} layers are in no stage."
        raise wrong(NAME, f"stages.{len(stages) - 1}.last", names[expected - 1], text)
    for index, stage in enumerate(stages):
        home = stages[index % p]
        if (stage.group, stage.replicas) != (home.group, home.replicas):
            text = (
                f"stage {index} runs on the devices of stage {index % p}: {home.replicas} of "
                f"{cost.groups[home.group].name!r}. Write the same there."
            )
            raise wrong(NAME, f"stages.{index}", stage.replicas, text)
    return tuple(stages), p


def _stage(cost: PipelineCost, index: int, row: Mapping[str, Any]) -> Stage:
    """Return a stage by its indices."""
    for key in ("first", "last"):
        if row[key] not in cost.layer_index:
            raise wrong(NAME, f"stages.{index}.{key}", row[key], f"{cost.problem.dnn.name} has no layer {row[key]!r}.")
    known = list(cost.group_index)
    machines = row["machines"] or (known[0] if len(known) == 1 else None)
    if machines not in cost.group_index:
        what = "machines are missing" if machines is None else f"there are no machines {machines!r}"
        raise wrong(NAME, f"stages.{index}.machines", machines, f"{what}; name one of {', '.join(known)}.")
    return Stage(
        first=cost.layer_index[row["first"]],
        last=cost.layer_index[row["last"]],
        group=cost.group_index[machines],
        replicas=row["replicas"],
    )


def machines(problem: Problem, configuration: PipelineConfiguration) -> Iterator[UsedMachines]:
    """Yield the machines of the stages, group by group in the order in which stages first stand on them."""
    cost = PipelineCost(problem)
    taken: dict[int, int] = {}
    for place in cost.places(cost.shape(configuration))[: configuration.num_stages]:
        taken[place.group] = taken.get(place.group, 0) + place.replicas
    for index, number in taken.items():
        yield from filled([cost.groups[index]], number)


def schedule_timeline(cost: PipelineCost, shape: Shape) -> Timeline:
    """Return what every stage's devices and channels do when, in one iteration, and what its activations take."""
    run, drawing = cost.run(shape, with_tasks=True), Drawing()
    names = [
        f"stage {device + 1} ({stage.replicas} x {cost.groups[stage.group].device.name})"
        for device, stage in enumerate(shape.stages[: shape.num_devices_in_line])
    ]
    for device, name in enumerate(names):
        stage = shape.stages[device]
        rows = [f"{name}{suffix}" for suffix in _SUFFIX.values()]
        kind = cost.groups[stage.group].device.name
        member = (f"stage {device + 1}, replica ", f" ({kind})") if stage.replicas > 1 else (name, "")
        drawing.process(name, rows, count=stage.replicas, member=member)
    spans = {
        (task.kind, task.stage, task.microbatch): _draw(drawing, cost, shape, names[task.device], task)
        for task in run.tasks
    }
    if shape.num_microbatches * cost.costs.num_layers * 2 <= _MOST_LAYERS:
        for task in run.tasks:
            _draw_layers(drawing, cost, shape, names[task.device], task)
    else:
        drawing.notes.append(_NO_LAYERS)
    _draw_flows(drawing, shape, spans)
    end_s = run.makespan_s + cost.stall_s(shape, run.makespan_s)
    drawing.process("input", ["input"])
    drawing.add("input", "wait for input", run.makespan_s, end_s, "wait")
    for device, (name, held) in enumerate(zip(names, cost.memory_bytes(shape), strict=True)):
        tasks = [task for task in run.tasks if task.device == device]
        drawing.counter(name, "memory (bytes)", list(_memory(cost, shape, tasks, held)))
    return drawing.finished()


def _draw(drawing: Drawing, cost: PipelineCost, shape: Shape, name: str, task: PipelineTask) -> int | None:
    """Draw a task as a span."""
    is_chunked = shape.chunks_per_device > 1 and task.microbatch is not None
    chunk = task.stage // shape.num_devices_in_line + 1 if is_chunked else None
    words = f", chunk {chunk}" if chunk is not None else ""
    number = "" if task.microbatch is None else f" {task.microbatch + 1}{words}"
    sent_bytes = None
    if task.kind == "sync":
        stages = shape.stages[task.device :: shape.num_devices_in_line]
        sent_bytes = float(sum(cost.costs.gradient_bytes(one.first, one.last) for one in stages))
    elif task.kind in ("send_output", "send_error"):
        position = shape.stages[task.stage + (task.kind == "send_output")].first
        sent_bytes = float(cost.costs.boundary_bytes(position)) * shape.microbatch_size
    return drawing.add(
        f"{name}{_SUFFIX.get(task.kind, '')}",
        f"{_NAMES.get(task.kind, task.kind)}{number}",
        task.start_s,
        task.end_s,
        task.kind,
        microbatch=None if task.microbatch is None else task.microbatch + 1,
        chunk=chunk,
        bytes=sent_bytes,
    )


def _draw_layers(drawing: Drawing, cost: PipelineCost, shape: Shape, name: str, task: PipelineTask) -> None:
    """Draw the layers of a forward or backward inside its span."""
    if task.kind not in ("forward", "backward"):
        return
    stage, now_s = shape.stages[task.stage], task.start_s
    profile = cost.costs.machines[stage.group].profile
    passes = profile.forward if task.kind == "forward" else profile.backward
    seconds = passes(shape.num_samples(stage))
    layers = list(range(stage.first, stage.last + 1))
    for index in layers if task.kind == "forward" else layers[::-1]:
        layer, end_s = cost.costs.layers.names[index], now_s + float(seconds[index])
        more: dict[str, Any] = {"layer": layer, "direction": task.kind, "is_part": True}
        drawing.add(name, f"{task.kind} {layer}", now_s, min(end_s, task.end_s), "layer", **more)
        now_s = end_s


def _draw_flows(drawing: Drawing, shape: Shape, spans: Mapping[tuple[str, int, int | None], int | None]) -> None:
    """Draw arrows from what computes to what sends, and from there to what waits for it."""
    for (kind, stage, number), span in spans.items():
        if kind not in ("forward", "backward"):
            continue
        step, sent = (1, "send_output") if kind == "forward" else (-1, "send_error")
        target = spans.get((kind, stage + step, number))
        if not 0 <= stage + step < len(shape.stages):
            if kind == "forward":
                drawing.flow(span, spans.get(("backward", stage, number)), "loss")
            continue
        way, name = spans.get((sent, stage, number)), "output" if kind == "forward" else "error"
        if way is None:
            drawing.flow(span, target, name)
        else:
            drawing.flow(span, way, name)
            drawing.flow(way, target, name)


def _memory(
    cost: PipelineCost, shape: Shape, tasks: list[PipelineTask], held: Mapping[str, float]
) -> Iterator[tuple[float, Mapping[str, float]]]:
    """Yield what a device holds over time: activations come with a forward's start and go with a backward's end."""
    fixed = sum(value for name, value in held.items() if name not in ("activations", "total", "limit"))
    each = {
        index: float(cost.costs.memory(one.first, one.last, num_samples=shape.num_samples(one)).in_flight_bytes)
        for index, one in enumerate(shape.stages)
    }
    changes = [(task.start_s, 1, each[task.stage]) for task in tasks if task.kind == "forward"]
    changes += [(task.end_s, 0, -each[task.stage]) for task in tasks if task.kind == "backward"]
    now = 0.0
    yield 0.0, {"fixed": fixed, "activations": 0.0}
    for at_s, _, change in sorted(changes):
        now = max(now + change, 0.0)
        yield at_s, {"fixed": fixed, "activations": now}


def timeline(problem: Problem, configuration: PipelineConfiguration, *, num_iterations: int = 1) -> Timeline:
    """Return what every stage's devices and channels do when, in some iterations; replicas do alike."""
    cost = PipelineCost(problem)
    shape = cost.shape(configuration)
    return repeated(schedule_timeline(cost, shape), num_iterations, cost.iteration_time_s(shape))


def left_out(problem: Problem, given: Mapping[str, object], configuration: PipelineConfiguration) -> tuple[str, ...]:
    """Return the number of micro-batches, which a search would look for."""
    if given["num_microbatches"] is not None:
        return ()
    return (f"num_microbatches: {configuration.num_microbatches}, up to four a stage; plan looks for the best number",)


def view(cluster: Cluster, block: Mapping[str, Any], prediction: Prediction) -> FamilyView:
    """Return what a configuration's document and its prediction show."""
    del cluster
    stages, chunks, rows = block["stages"], block["chunks_per_device"], prediction.details.get("stages", ())
    lines = [
        f"  stage {index + 1}: {cut(one['first'], 30)} to {cut(one['last'], 30)}, "
        f"on {one['replicas']} of {one['machines']}"
        for index, one in enumerate(stages)
    ]
    return FamilyView(
        placement=lambda: _placement(stages, chunks, rows),
        blocks=lambda: [_stages_table(rows, chunks)] if rows else (),
        lines=first_lines(lines, _MOST_LINES),
        told=frozenset({"stages"}),
    )


def _placement(stages: Sequence[Mapping[str, Any]], chunks: int, rows: Sequence[Mapping[str, Any]]) -> Placement:
    """Return the replicas of one stage after the other, on the devices of their groups."""
    num_stages = len(stages) // chunks
    devices: dict[str, list[Cell]] = {}
    roles = []
    for index, stage in enumerate(stages[:num_stages]):
        parts = [f"{one['first']} to {one['last']}" for one in stages[index::num_stages]]
        layers = "; ".join(parts[:2]) + (f" and {len(parts) - 2} chunks more" if len(parts) > 2 else "")
        samples = rows[index].get("samples_per_replica") if index < len(rows) else None
        share = "" if samples is None else f", {samples} samples of a micro-batch"
        for replica in range(stage["replicas"]):
            words = f"stage {index + 1}, replica {replica + 1} of {stage['replicas']}{share}"
            cell = Cell(label=f"S{index + 1}", words=words, colour=index % 8)
            devices.setdefault(stage["machines"], []).append(cell)
        roles.append(Role(label=f"S{index + 1}", words=f"stage {index + 1}: layers {layers}", colour=index % 8))
    return Placement(devices=devices, roles=few_roles(roles))


def _stages_table(rows: Sequence[Mapping[str, Any]], chunks: int) -> Table:
    """Return the stages, those of every chunk."""
    num_stages = len(rows) // chunks
    listed = thinned(list(enumerate(rows)), _MOST_LISTED)
    left = few(len(rows), len(listed), "stages", "--json has all of them")
    return Table(
        caption="Stages",
        columns=(
            *("stage", "chunk", "from layer", "to layer", "on", "replicas"),
            *("forward", "backward", "transfer", "idle"),
        ),
        rows=[
            (
                str(index % num_stages + 1),
                str(index // num_stages + 1) if chunks > 1 else "",
                str(row["first"]),
                str(row["last"]),
                f"{row['machines']} ({row['device']})",
                str(row["replicas"]),
                *(time_words(row[key]) for key in ("forward_s", "backward_s", "transfer_s")),
                f"{row['idle_share']:.0%}",
            )
            for index, row in listed
        ],
        numbers=(1, 5, 6, 7, 8, 9),
        note=f"Seconds are of one micro-batch. {left}".strip(),
    )


# --- Its search, imported when it is asked for: what costs a given plan needs no solver


def search(problem: Problem, search: Search) -> Plan:
    """Return the best plan of the family; see :class:`planner.families.Family`."""
    from planner.families.pipeline.search import plan  # noqa: PLC0415

    return plan(problem, search)


def domain() -> str:
    """Return what the search covers, where ``predict`` accepts more."""
    return (
        "stages of consecutive layers, of whole blocks where a network repeats them, on devices of one "
        "group; interleaved schedules with 2 to 16 chunks a "
        "device, equal replicas, and evenly cut"
    )

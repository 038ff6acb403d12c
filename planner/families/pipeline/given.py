"""What a spec's block ``configuration.pipeline`` means, checked against the network, the machines and the batch."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.errors import Fault, SpecError
from planner.families.faults import wrong
from planner.families.pipeline.configuration import NAME, PipelineConfiguration
from planner.families.pipeline.cost import PipelineCost, Shape
from planner.models.pipeline_places import PlaceError, Stage
from planner.problem import Problem

__all__ = ["configuration_of", "default_num_microbatches"]

_MICROBATCHES_PER_STAGE = 4  # GPipe, arXiv:1811.06965, section 2.2: the bubble is then found to be negligible


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
    p = _num_stages(given)
    stages = tuple(_stage(cost, index, row) for index, row in enumerate(given["stages"]))
    _check_cover(cost, stages)
    _check_chunks(cost, stages, p)
    batch = _batch(problem, given["global_batch_size"])
    number = given["num_microbatches"] or default_num_microbatches(
        batch, num_stages=p, most_replicas=max(stage.replicas for stage in stages), schedule=given["schedule"]
    )
    shape = Shape(
        stages=stages,
        num_microbatches=number,
        global_batch_size=batch,
        schedule=given["schedule"],
        chunks_per_device=given["chunks_per_device"],
    )
    _check_microbatches(shape)
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


def _num_stages(given: Mapping[str, Any]) -> int:
    """Return the stages of different devices, checked against the schedule."""
    chunks, number, schedule = given["chunks_per_device"], len(given["stages"]), given["schedule"]
    if (chunks > 1) != (schedule == "interleaved"):
        text = f"{schedule} has {chunks} chunks a device; interleaved needs 2 or more, the others 1."
        raise wrong(NAME, "chunks_per_device", chunks, text)
    if number % chunks:
        raise wrong(NAME, "chunks_per_device", chunks, f"{number} stages are no multiple of {chunks} chunks.")
    return int(number // chunks)


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


def _check_cover(cost: PipelineCost, stages: Sequence[Stage]) -> None:
    """Refuse stages that leave out, repeat or disorder layers."""
    names, expected = cost.costs.layers.names, 0
    for index, stage in enumerate(stages):
        if stage.first != expected:
            text = f"the layer that must come next is {names[expected]!r}." if expected < len(names) else (
                "no layer is left for it.")  # fmt: skip
            raise wrong(NAME, f"stages.{index}.first", names[stage.first], text)
        if stage.last < stage.first:
            text = f"it stands before {names[stage.first]!r}, the first layer of the stage, in the order of the layers."
            raise wrong(NAME, f"stages.{index}.last", names[stage.last], text)
        expected = stage.last + 1
    if expected < len(names):
        text = f"the last stage must end with {names[-1]!r}; {len(names) - expected} layers are in no stage."
        raise wrong(NAME, f"stages.{len(stages) - 1}.last", names[expected - 1], text)


def _check_chunks(cost: PipelineCost, stages: Sequence[Stage], p: int) -> None:
    """Refuse chunks of one device that claim different machines or replicas."""
    for index, stage in enumerate(stages):
        home = stages[index % p]
        if (stage.group, stage.replicas) != (home.group, home.replicas):
            text = (
                f"stage {index} runs on the devices of stage {index % p}: {home.replicas} of "
                f"{cost.groups[home.group].name!r}. Write the same there."
            )
            raise wrong(NAME, f"stages.{index}", stage.replicas, text)


def _batch(problem: Problem, given: int | None) -> int:
    """Return the global batch, checked against the one asked for."""
    fixed, most = problem.training.fixed_batch_size, problem.training.max_global_batch_size
    if given is None:
        return int(fixed or most or 0)
    if (fixed is not None and given != fixed) or (most is not None and given > most):
        raise wrong(NAME, "global_batch_size", given, f"dnn asks for a batch of {fixed or most}.")
    return given


def _check_microbatches(shape: Shape) -> None:
    """Refuse micro-batches with fewer samples than a stage has replicas, or that the schedule cannot deal out."""
    number, p = shape.num_microbatches, shape.num_devices_in_line
    most = max(stage.replicas for stage in shape.stages)
    if shape.global_batch_size // number < most:
        text = (
            f"a batch of {shape.global_batch_size} in {number} micro-batches leaves some of {most} replicas without a "
            f"sample. Use {shape.global_batch_size // most} micro-batches or fewer, or fewer replicas."
        )
        raise wrong(NAME, "num_microbatches", number, text)
    if shape.schedule == "interleaved" and number % p:
        text = f"the interleaved schedule needs a multiple of its {p} stages of different devices."
        raise wrong(NAME, "num_microbatches", number, text)

"""The stages of a pipeline for DeepSpeed, which takes them from the program and not from its configuration."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import Fault, SpecError
from planner.exporters.export import Job, refused
from planner.exporters.layouts import Layout, pins_of
from planner.exporters.machines import require_kinds, used_machines
from planner.families.hybrid.configuration import HybridConfiguration
from planner.families.pipeline.configuration import PipelineConfiguration

__all__ = ["NAME", "is_pipeline", "pipeline_degrees", "pipeline_layout", "pipeline_text"]

NAME = "planned_pipeline.py"
_OWN_LAYERS = "*layers"
_MARK = "the planned stages of a pipeline"
_CONSTANT = re.compile(r"^(NUM_[A-Z]+) = (\d{1,9})$", re.MULTILINE)

_TEXT = '''"""{version}: {mark}, for a network that is given as a list of its layers.

    model = PlannedPipeline([{given}], loss_fn=loss)
    engine, *_ = deepspeed.initialize(model=model, config="ds_config.json")

DeepSpeed itself cuts evenly, by parameters or by the names of classes; the plan says how many blocks a stage has.
Written for deepspeed/runtime/pipe/module.py and topology.py of {version}.
"""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

NUM_STAGES = {stages}
NUM_TENSOR = {tensor}
NUM_DATA = {data}
NUM_EXPERT = {expert}
BLOCKS_PER_STAGE = {blocks}


class PlannedPipeline(PipelineModule):
    """Layers in stages as they were planned.

    ``num_before`` layers stand before the first block and are on the first stage; all behind the last block are on the
    last one.
    """

    def __init__(self, layers, *, num_before={before}, **more):
        self._num_before = num_before
        topology = PipeModelDataParallelTopology(num_pp=NUM_STAGES, num_mp=NUM_TENSOR, num_dp=NUM_DATA)
        super().__init__(layers, topology=topology, **more)

    def _partition_layers(self, method="planned"):
        """Cut behind the planned blocks."""
        ends, end = [], self._num_before
        for blocks in BLOCKS_PER_STAGE:
            end += blocks
            ends.append(end)
        number = len(self._layer_specs)
        if end > number:
            raise ValueError(f"the plan has {{sum(BLOCKS_PER_STAGE)}} blocks; {{number - self._num_before}} were given")
        self.parts = [0, *ends[:-1], number]
        stage = self._topo.get_coord(self.global_rank).pipe
        self._set_bounds(start=self.parts[stage], stop=self.parts[stage + 1])
'''


def pipeline_layout(target: str, job: Job, planned: PipelineConfiguration) -> Layout:
    """Return the layout of a plan of the family ``pipeline``, whose stages are made of a network's own layers.

    Raises
    ------
    InfeasibleError
        If stages have unlike numbers of replicas, or several chunks, or the batch does not divide.
    """
    rows = used_machines(job)
    require_kinds(target, job, rows, "gpu", "cpu")
    replicas = {stage.replicas for stage in planned.stages}
    if len(replicas) > 1:
        listed = ", ".join(str(stage.replicas) for stage in planned.stages)
        mend = "Limit the devices to a multiple of the stages, or forbid the family pipeline."
        raise refused(target, f"all its stages have as many replicas, and those of the plan have {listed}", mend)
    if planned.chunks_per_device > 1:
        mend = "Pin fix.schedule: 1f1b."
        raise refused(target, f"a device has one stage, and the plan gives it {planned.chunks_per_device}", mend)
    data, batch = replicas.pop(), planned.global_batch_size
    if batch % (data * planned.num_microbatches):
        mend = f"Write dnn.global_batch as a multiple of {data * planned.num_microbatches}."
        why = f"{batch} samples do not divide by {data} x {planned.num_microbatches} micro-batches"
        raise refused(target, why, mend)
    names = [layer.name for layer in job.problem.dnn.layers]
    counts = tuple(names.index(stage.last) - names.index(stage.first) + 1 for stage in planned.stages)
    chosen = HybridConfiguration(
        global_batch_size=batch,
        pipeline=planned.num_stages,
        data=data,
        microbatch=batch // (data * planned.num_microbatches),
        schedule=planned.schedule,
    )
    found = Layout(target=target, job=job, chosen=chosen, rows=rows, layers=counts)
    return found.noted(
        f"give PlannedPipeline of {NAME} the {len(names)} layers of the network in the plan's order; each passes one "
        f"value to the next, so that branches must stay within a layer or pass tuples",
        "its pipeline exchanges gradients behind the last micro-batch",
    )


def pipeline_text(layout: Layout, version: str, blocks: tuple[int, ...]) -> str:
    """Return a module with a class of the planned stages, to be imported by the program that trains."""
    chosen = layout.chosen
    return _TEXT.format(
        given=_OWN_LAYERS if layout.layers else "embedding, *blocks, norm_and_head",
        before=int(not layout.layers),
        version=version,
        mark=_MARK,
        stages=chosen.pipeline,
        tensor=chosen.tensor,
        data=chosen.data,
        expert=chosen.expert,
        blocks=blocks,
    )


def is_pipeline(path: Path, text: str) -> bool:
    """Whether this is such a module."""
    return path.suffix == ".py" and _MARK in text


def pipeline_degrees(path: Path, text: str) -> Mapping[str, Any]:
    """Return the degrees of such a module as a ``fix`` block pins them; nothing of it is run.

    Of a network's own layers they are those of the family ``pipeline``: stages and devices.

    Raises
    ------
    SpecError
        If one of its numbers is missing.
    """
    found = {name: int(value) for name, value in _CONSTANT.findall(text)}
    missing = [name for name in ("NUM_STAGES", "NUM_TENSOR", "NUM_DATA", "NUM_EXPERT") if not found.get(name)]
    if missing:
        mend = "Write it as planner export does."
        raise SpecError.of([Fault(file=str(path), field=one, problem="it is missing.", mend=mend) for one in missing])
    chosen = HybridConfiguration(
        global_batch_size=1,
        pipeline=found["NUM_STAGES"],
        tensor=found["NUM_TENSOR"],
        data=found["NUM_DATA"],
        expert=found["NUM_EXPERT"],
    )
    if _OWN_LAYERS in text:
        return {"num_stages": chosen.pipeline, "num_devices": chosen.num_devices}
    return pins_of(chosen, "pipeline", "tensor", "data", "expert", "num_devices")

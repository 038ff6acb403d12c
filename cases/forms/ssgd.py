"""The DAG model of S-SGD on layers as a case gives them, by the name of a trace or one by one, and its times of input.

Source: S. Shi et al., arXiv:1805.03812. The answer has the equations under their numbers, the steady iteration of each
strategy by formula (``steady_s``) and by list schedule (``scheduled_s``), and the seconds of input (``input``).
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from planner.cases.forms.dag_model import (
    Iteration,
    Prefetch,
    exposed_all_reduce_s,
    naive_time_s,
    overlapped_time_s,
    prefetched_time_s,
    run,
    sgd_time_s,
    speed_up,
    steady_time_s,
    task_graph,
    wait_free_time_s,
)
from planner.cluster import Device, MachineGroup
from planner.data import preset
from planner.frozen import frozen
from planner.importers.profiles import read_layer_trace
from planner.models.input import InputTime, Samples, Strategy, input_time
from planner.names import find, fold
from planner.question.blocks import MachineSpec
from planner.question.values import Bytes, Count, Model, Name, Rate, Seconds

_US = 1e-6
_NUMBER_BYTES = 4  # gradients of the paper are fp32
_SUFFIX = ".trace.txt"
_NUM_ITERATIONS = 4  # the schedule is steady from the second on


class LayerInput(Model):
    """One layer, or ``count`` equal ones that share its seconds and bytes evenly."""

    name: Name
    forward: Seconds = 0.0
    backward: Seconds = 0.0
    all_reduce: Seconds = 0.0
    size: Bytes = 0.0
    count: Count = 1


class SampleInput(Model):
    """What a sample weighs, and which devices of a testbed read at the same time (Tables II and V)."""

    testbed: Name
    batch_per_device: Count
    sample: Bytes
    device_sample: Bytes
    machines: Count = 1
    devices_per_machine: Count = 1


class Inputs(Model):
    """Layers in forward order, from a shipped trace or one by one; or samples; or both.

    ``t_io`` and ``t_h2d`` win over what samples take, and that over the trace.
    """

    trace: Name | None = None
    layers: Annotated[list[LayerInput], Field(min_length=1)] | None = None
    samples: SampleInput | None = None
    num_devices: Count = 2
    bandwidth: Rate | None = None
    prefetch: Prefetch = Prefetch.SINGLE
    t_io: Seconds | None = None
    t_h2d: Seconds | None = None
    t_u: Seconds = 0.0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trace is not None and self.layers is not None:
            raise ValueError("trace and layers are given. Keep one of them.")
        if self.trace is None and self.layers is None and self.samples is None:
            raise ValueError("nothing is asked. Give trace, layers or samples.")
        return self


@frozen
class _Layers:
    names: list[str]
    forward_s: list[float]
    backward_s: list[float]
    all_reduce_s: list[float]
    size_bytes: list[float]
    read_s: float = 0.0


def answer(inputs: Inputs) -> Mapping[str, object]:
    """Return the seconds of input, where there are samples, and the equations' values, where there are layers."""
    answered: dict[str, Any] = {}
    fetched = alone = None
    if inputs.samples:
        fetched, alone = _input_time(inputs.samples), _input_time(inputs.samples, is_alone=True)
        answered["input"] = {"read_s": fetched.read_s, "decode_s": fetched.decode_s, "copy_s": fetched.copy_s}
    layers = _from_trace(inputs.trace) if inputs.trace else _from_list(inputs.layers) if inputs.layers else None
    if layers:
        one = replace(_iteration(inputs, layers, alone), all_reduces=())
        many = _iteration(inputs, layers, fetched) if inputs.num_devices > 1 else one
        answered |= _of_equations(many, inputs.prefetch) | _of_strategies(many, inputs)
        answered["speed_up"] = speed_up(one, many, num_devices=inputs.num_devices, prefetch=inputs.prefetch)  # eq. 6
        answered |= _of_gradients(layers, inputs.bandwidth)
    return answered


# -- inputs ----------------------------------------------------------------------------------------------------------


def _from_trace(name: str) -> _Layers:
    """Return the layers of a shipped trace; raise SpecError for an unknown one."""
    folder = resources.files("planner.data").joinpath("examples")
    known = sorted(file.name.removesuffix(_SUFFIX) for file in folder.iterdir() if file.name.endswith(_SUFFIX))
    found = find(name, {fold(one): one for one in known}, "trace")
    with resources.as_file(folder.joinpath(f"{found}{_SUFFIX}")) as path:
        network = read_layer_trace(path, batch_size=1)  # so that seconds stay those of the batch
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    # The importer leaves the fifth column: what was measured belongs to its own cluster, which a case is about.
    sent_s = {row[1]: float(row[4]) * _US for row in rows if row and row[0].isdigit()}
    return _Layers(
        names=[layer.name for layer in network.dnn.layers],
        forward_s=network.profile.forward_s.tolist(),
        backward_s=network.profile.backward_s.tolist(),
        all_reduce_s=[sent_s[layer.name] for layer in network.dnn.layers],
        size_bytes=[float(layer.num_trainable * _NUMBER_BYTES) for layer in network.dnn.layers],
        read_s=network.profile.read_s or 0.0,
    )


def _from_list(given: list[LayerInput]) -> _Layers:
    layers = [(layer, index) for layer in given for index in range(layer.count)]
    return _Layers(
        names=[f"{layer.name} {index + 1}" if layer.count > 1 else layer.name for layer, index in layers],
        forward_s=[layer.forward / layer.count for layer, _ in layers],
        backward_s=[layer.backward / layer.count for layer, _ in layers],
        all_reduce_s=[layer.all_reduce / layer.count for layer, _ in layers],
        size_bytes=[layer.size / layer.count for layer, _ in layers],
    )


def _input_time(samples: SampleInput, *, is_alone: bool = False) -> InputTime:
    """Return the seconds of input on the first machines of a testbed; ``is_alone``: with one device of one machine."""
    testbed = MachineSpec.model_validate(preset(samples.testbed)["machines"][0])  # type: ignore[index]
    storage = testbed.storage
    group = MachineGroup(
        name=samples.testbed,
        count=testbed.count,
        device=Device(name=str(testbed.device)),
        devices_per_machine=testbed.num_devices,
        storage=storage.build() if storage else None,
        host_link_bytes_per_s=testbed.host_link or float("inf"),
        decode_samples_per_s=testbed.decode or float("inf"),
    )
    return input_time(
        group,
        Samples(stored_bytes=samples.sample, copied_bytes=samples.device_sample),
        num_machines=1 if is_alone else samples.machines,
        devices_per_machine=1 if is_alone else samples.devices_per_machine,
        batch_per_device=samples.batch_per_device,
    )


def _iteration(inputs: Inputs, layers: _Layers, fetched: InputTime | None) -> Iteration:
    """Return the seconds of one iteration; what decodes is part of reading, which waits for the slower of both."""
    read_s = max(fetched.read_s, fetched.decode_s) if fetched else layers.read_s
    copy_s = fetched.copy_s if fetched else 0.0
    return Iteration.layer_wise(
        forward_s=layers.forward_s,
        backward_s=layers.backward_s,
        all_reduce_s=layers.all_reduce_s,
        read_s=read_s if inputs.t_io is None else inputs.t_io,
        copy_s=copy_s if inputs.t_h2d is None else inputs.t_h2d,
        update_s=inputs.t_u,
        names=layers.names,
    )


# -- answers ---------------------------------------------------------------------------------------------------------


def _of_equations(iteration: Iteration, prefetch: Prefetch) -> dict[str, float]:
    """Return the sums and equations 1 to 5."""
    backward_s, all_reduce_s = sum(iteration.backward_s), iteration.all_reduce_s
    return {
        "forward_s": sum(iteration.forward_s),
        "backward_s": backward_s,
        "all_reduce_s": all_reduce_s,
        "exposed_s": exposed_all_reduce_s(iteration),
        "least_exposed_s": max(0.0, all_reduce_s - backward_s),  # however it is spread over the layers
        "equation_1_s": sgd_time_s(iteration),
        "equation_2_s": naive_time_s(iteration),
        "equation_3_s": prefetched_time_s(iteration, prefetch),
        "equation_4_s": overlapped_time_s(iteration, prefetch),
        "equation_4_printed_s": overlapped_time_s(iteration, prefetch, is_printed=True),
        "equation_5_s": wait_free_time_s(iteration, prefetch),
    }


def _of_strategies(iteration: Iteration, inputs: Inputs) -> dict[str, dict[str, float]]:
    """Return the steady iteration of every strategy, by formula and by list schedule."""
    scheduled_s = {}
    for strategy in Strategy:
        graph = task_graph(
            iteration,
            strategy,
            num_iterations=_NUM_ITERATIONS,
            num_devices=inputs.num_devices,
            prefetch=inputs.prefetch,
        )
        scheduled_s[strategy.value] = run(graph).steady_time_s
    steady_s = {strategy.value: steady_time_s(iteration, strategy, inputs.prefetch) for strategy in Strategy}
    return {"steady_s": steady_s, "scheduled_s": scheduled_s}


def _of_gradients(layers: _Layers, bandwidth_bytes_per_s: float | None) -> dict[str, float]:
    """Return the size of all gradients, and the share of a bandwidth at which they are sent (section V-C)."""
    size_bytes, all_reduce_s = sum(layers.size_bytes), sum(layers.all_reduce_s)
    found = {"gradient_bytes": size_bytes, "num_parameters": size_bytes / _NUMBER_BYTES}
    if bandwidth_bytes_per_s and all_reduce_s:
        found["utilisation"] = size_bytes / all_reduce_s / bandwidth_bytes_per_s
    return found

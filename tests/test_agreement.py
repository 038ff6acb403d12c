"""Where two models cover the same situation, they say the same; where they cannot, it is said why.

What SPEC says they cannot agree on: the heterogeneous-PS model pulls after the last push and the S-SGD model has no pull;
eqs. 3 to 6 of S-SGD add reading and copying where the task graph takes the longer one; Adam's epoch charges
reads of weights, not exchanges of gradients.
"""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.cases.forms.bsp_server import BspExchange, algorithm_1_time_s, equal_workers_time_s
from planner.cases.forms.dag_model import (
    AllReduce,
    Iteration,
    Prefetch,
    run,
    steady_time_s,
    task_graph,
    wait_free_time_s,
)
from planner.channel import fifo_end_s, schedule
from planner.cost import Affine, Wait
from planner.errors import SpecError
from planner.families.all_reduce.configuration import AllReduceConfiguration
from planner.families.all_reduce.cost import AllReduceCost
from planner.models.data_parallel import standard_maximum
from planner.models.input import Strategy
from planner.models.servers import Links, iteration_time_s, place_round_robin
from tests.referee.equations import unfused_update_time_s

seconds = st.floats(1e-3, 10)
layers = st.lists(st.tuples(seconds, st.integers(1, 10**6)), min_size=1, max_size=8)


@given(layers, st.floats(0, 1), st.floats(1e-9, 1e-6))
def test_the_three_recursions_of_one_channel_are_one(
    rows: list[tuple[float, int]], startup_s: float, per_byte_s: float
) -> None:
    cost = Affine(startup_s=startup_s, per_byte_s=per_byte_s)
    backward_s, sizes = [row[0] for row in rows], [float(row[1]) for row in rows]
    ready_s = np.cumsum([0.0, *backward_s[-2::-1]])
    transfer_s = cost(np.array(sizes[::-1]))
    osf_s = unfused_update_time_s(sizes, backward_s, cost)
    ends = tuple(range(len(rows)))
    assert osf_s == pytest.approx(schedule(ends, ready_s, sizes[::-1], cost, wait=Wait.NONE).finish_s)
    assert osf_s == pytest.approx(fifo_end_s(ready_s, transfer_s)[-1])
    iteration = Iteration.layer_wise(
        forward_s=[0.0] * len(rows), backward_s=backward_s, all_reduce_s=cost(np.array(sizes)).tolist()
    )
    assert wait_free_time_s(iteration) == pytest.approx(max(sum(backward_s), backward_s[-1] + osf_s))


def iteration_of(cost: AllReduceCost, configuration: AllReduceConfiguration) -> Iteration:
    """Return the tasks of one iteration; all micro-batches but the last are drawn as one forward task before it."""
    (kinds, shares), (read,) = cost.kinds_of(configuration), cost.inputs(configuration)
    samples, profile = int(kinds.last_samples(shares)[0, 0]), cost.device_kinds[0].profile
    forward_s, backward_s = profile.forward_s * samples, profile.backward_s * samples
    earlier_s = max(0.0, float(kinds.computed_s(shares)[0, 0]) - float(forward_s.sum() + backward_s.sum()))
    return Iteration(
        forward_s=(earlier_s, *forward_s.tolist()),
        backward_s=(0.0, *backward_s.tolist()),
        all_reduces=all_reduces_of(cost, configuration),
        read_s=max(read.read_s, read.decode_s),
        copy_s=read.copy_s,
        update_s=profile.update_s,
        names=("earlier micro-batches", *(layer.name for layer in cost.problem.dnn.layers)),
    )


def all_reduces_of(cost: AllReduceCost, configuration: AllReduceConfiguration) -> tuple[AllReduce, ...]:
    """Return the groups with their durations and waits; layer 0 is the earlier micro-batches."""
    schedule = cost.schedule(configuration)
    if schedule is None:
        return ()
    layer_of = {layer.name: index + 1 for index, layer in enumerate(cost.problem.dnn.layers)}
    for layer in cost.problem.dnn.layers:
        layer_of |= {tensor.name: layer_of[layer.name] for tensor in layer.tensors}
    durations_s, waits_s = schedule.end_s - schedule.start_s, schedule.wait_s
    if cost.problem.calibration.wait is Wait.PAPER:  # the wait holds the channel
        durations_s, waits_s = durations_s + waits_s, waits_s * 0
    return tuple(
        AllReduce(
            duration_s=duration_s,
            layers=tuple(layer_of[name] for name in group.tensors),
            lag_s=wait_s,
            name=f"all-reduce to {group.tensors[-1]}",
        )
        for group, duration_s, wait_s in zip(
            configuration.fusion_groups, durations_s.tolist(), waits_s.tolist(), strict=True
        )
    )


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("prefetch", Prefetch)
@pytest.mark.parametrize(
    ("storage", "batch", "wait"),
    [("1 GB/s", 64, "none"), ("60 MB/s", 64, "none"), ("1 GB/s", 64, "exact"), ("1 GB/s", 700, "none"), ("100 GB/s", 8, "none")],
)  # fmt: skip
def test_prediction_formula_and_schedule_of_the_task_graph_agree(
    strategy: Strategy, prefetch: Prefetch, storage: str, batch: int, wait: str
) -> None:
    machine = {
        "count": 4, "devices": 4, "device": "v100-sxm2-32g", "network": "10 Gbit/s",
        "storage": {"bandwidth": storage}, "host_link": "300 MB/s",
    }  # fmt: skip
    asked: dict[str, Any] = {
        "dnn": {"zoo": "resnet18", "batch_per_device": batch, "sample_bytes": "110 kB"},
        "cluster": {"machines": [machine]},
        "calibration": {"strategy": strategy.value, "prefetch": prefetch.value, "wait": wait, "utilisation": 0.4},
        "families": ["all_reduce"],
    }
    problem = planner.load(asked)
    found = planner.plan(problem)
    iteration = iteration_of(AllReduceCost.of(problem, found.configuration), found.configuration)  # type: ignore[arg-type]
    formula_s = steady_time_s(iteration, strategy, prefetch)
    graph = task_graph(iteration, strategy, num_iterations=5, num_devices=16, prefetch=prefetch)
    assert found.prediction.iteration_time_s == pytest.approx(formula_s)
    assert found.prediction.iteration_time_s == pytest.approx(run(graph).steady_time_s)


def predicted(**blocks: Any) -> Any:
    cluster = {
        "machines": [
            {"name": "w", "count": 4, "device": "v100-sxm2-32g", "network": "10 Gbit/s", "latency": "0 s"},
            {"name": "s", "count": 2, "device": "dual-xeon-gold-6126", "network": "10 Gbit/s", "latency": "0 s"},
        ]
    }
    asked = {
        "dnn": {"zoo": "alexnet", "batch_per_device": 32},
        "cluster": cluster,
        "fix": {"device": "v100-sxm2-32g"},
        "calibration": {"bandwidth_efficiency": 1},
        **blocks,
    }
    return planner.predict(planner.load(asked))


def test_one_device_takes_the_same_time_in_every_family_but_for_its_exchange() -> None:
    alone = predicted(configuration={"all_reduce": {"num_devices": 1}})
    block = {"num_parameter_servers": 1, "workers": {"w": 1}}
    served = predicted(configuration={"parameter_server": block})
    parts = served.breakdown_s
    exchange_s = parts["exposed_push"] + parts["pull"]
    assert served.iteration_time_s - exchange_s == pytest.approx(alone.iteration_time_s)
    assert exchange_s > 0  # a server keeps the parameters, so even one worker pushes and pulls


@pytest.mark.parametrize("zoo", ["vgg16", "resnet50"])
@pytest.mark.parametrize(("device", "devices"), [("rtx-2080-ti", 4), ("a100-sxm4-80gb", 8)])
def test_devices_of_one_machine_add_up_alike_in_every_family_and_all_reduce_is_told(
    zoo: str, device: str, devices: int
) -> None:
    machine = {"count": 1, "device": device, "devices": devices}
    asked = {
        "dnn": {"zoo": zoo, "batch_per_device": 32},
        "cluster": {"machines": [machine]},
        "objective": "iteration_time",
    }
    served, found = (
        planner.plan({**asked, "families": names})
        for names in (["parameter_server"], ["all_reduce", "parameter_server"])
    )
    assert served.objective == pytest.approx(found.objective, rel=1e-12)
    assert found.family == "all_reduce"
    assert found.status.value == "optimal"


def test_one_server_without_overlap_is_algorithm_1() -> None:
    prediction = predicted(configuration={"parameter_server": {"num_parameter_servers": 1, "workers": {"w": 3}}})
    parts, size_bytes = prediction.breakdown_s, prediction.details["gradient_bytes"]
    compute_s = parts["forward"] + parts["backward"]
    exchange = BspExchange.of(gradient_bytes=size_bytes, parameter_bytes=size_bytes, bandwidth_bytes_per_s=1.25e9)
    no_overlap_s = equal_workers_time_s(compute_s, exchange, num_workers=3)
    assert algorithm_1_time_s([compute_s] * 3, exchange) == pytest.approx(no_overlap_s)
    ready = np.full((3, 2), compute_s)
    links = Links(server_bytes_per_s=(1.25e9,), worker_bytes_per_s=(math.inf,) * 3)
    placed = place_round_robin([size_bytes / 2] * 2, num_servers=1)
    assert iteration_time_s(ready, placed, links) == pytest.approx(no_overlap_s)
    # The family overlaps pushes with the backward pass, so it is no slower, and faster by at most that pass.
    family_s = compute_s + parts["exposed_push"] + parts["pull"]
    assert no_overlap_s - parts["backward"] <= family_s * (1 + 1e-9)
    assert family_s <= no_overlap_s * (1 + 1e-9)


def test_enough_servers_make_the_workers_links_the_bottleneck_and_more_do_not_help() -> None:
    times = [
        predicted(
            configuration={
                "parameter_server": {
                    "num_parameter_servers": k,
                    "servers": "w",
                    "workers": {"w": 4},
                    "co_located": True,
                    "placement": "sliced",
                }
            }
        ).iteration_time_s
        for k in (1, 2, 3, 4)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 2 * times[3]


def test_stragglers_add_the_expected_maximum_of_the_workers() -> None:
    block = {"parameter_server": {"num_parameter_servers": 1, "workers": {"w": 4}}}
    steady, noisy = (
        predicted(configuration=block, calibration=fitted).iteration_time_s
        for fitted in ({}, {"straggler_deviation": "10 ms"})
    )
    assert noisy - steady == pytest.approx(0.01 * standard_maximum(4))


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"num_parameter_servers": 3}, "0 workers and 3 servers need 3 machines of 's', which has 2"),
        ({"num_parameter_servers": 1, "workers": {"w": 5}}, "5 workers and 0 servers need 5 machines of 'w', which has 4"),
        ({"num_parameter_servers": 1, "workers": {"x": 1}}, "there are no machines 'x'"),
        ({"num_parameter_servers": 1, "placement": {"fc8": 0}}, "is on no server"),
        ({"num_parameter_servers": 1, "batch_shares": {"s": 4}}, "shares are needed for w"),
        ({"num_parameter_servers": 1, "batch_shares": {"w": 0}}, "too small"),
    ],
)  # fmt: skip
def test_a_broken_constraint_is_named_with_its_numbers(block: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        predicted(configuration={"parameter_server": block})


def test_one_worker_of_the_adam_model_computes_what_one_device_does_but_for_the_first_layers_error_terms() -> None:
    # All families count three passes over the connections; Adam alone leaves out the first layer's backward pass (eq. 7
    # asks for the connections above a layer), and reads weights where others exchange gradients.
    cluster = {"machines": [{"count": 2, "device": "v100-sxm2-16g", "network": "10 Gbit/s"}]}
    asked: dict[str, Any] = {
        "dnn": {"zoo": "adam-mnist", "batch_per_device": 70},
        "cluster": cluster,
        "calibration": {"utilisation": 0.5, "update": "0 s"},
    }
    block = {"num_parameter_servers": 1, "num_replicas": 1, "num_workers_per_replica": 1}
    adam = planner.predict(planner.load({**asked, "configuration": {"model_replicas": block}})).breakdown_s
    one = planner.predict(planner.load({**asked, "configuration": {"all_reduce": {"num_devices": 1}}})).breakdown_s
    first = next(layer for layer in planner.load(asked).dnn.layers if layer.num_multiply_adds)
    first_s = 2 * 70 * first.num_multiply_adds / (0.5 * 15.7e12)
    assert adam["forward"] == pytest.approx(one["forward"])
    assert adam["backward"] + adam["update"] == pytest.approx(one["backward"] - first_s)


STORE = {"storage": {"bandwidth": "2 MB/s", "shared": True}, "network": "10 Gbit/s", "latency": "20 us"}
FAST = {"name": "a", "device": "v100-sxm2-16g", **STORE}
SHARES_4_AND_3 = {"machines": [{**FAST, "count": 1}, {**FAST, "name": "b", "count": 1, "device": "rtx-2080-ti"}]}
SHARES_3_AND_2 = {"machines": [{**FAST, "count": 2}, {**FAST, "name": "b", "count": 1, "device": "rtx-2080-ti"}]}
SHARES_4 = {"machines": [{**FAST, "count": 2}]}
MACHINES = {"a": 2, "b": 1}


def all_reduce_of(machines: dict[str, int], shares: dict[str, int]) -> dict[str, Any]:
    """Machines of groups, with these shares of a batch of 7."""
    groups = {name: {"machines": machines[name], "batch_per_device": share} for name, share in shares.items()}
    return {"all_reduce": {"groups": groups, "global_batch_size": 7}}


def server_of(workers: dict[str, int], shares: dict[str, int]) -> dict[str, Any]:
    """One server at the first worker, and these shares of a batch of 7."""
    rest = {"num_parameter_servers": 1, "servers": "a", "co_located": True, "global_batch_size": 7}
    return {"parameter_server": {**rest, "workers": workers, "batch_shares": shares}}


@pytest.mark.parametrize(
    ("cluster", "block"),
    [
        (SHARES_4, {"all_reduce": {"num_devices": 2}}),
        (SHARES_4, server_of({"a": 2}, {"a": 4})),
        (SHARES_4, {"pipeline": {"stages": [{"first": "input", "last": "fc5", "machines": "a", "replicas": 2}], "num_microbatches": 1}}),
        (SHARES_4, {"model_replicas": {"num_parameter_servers": 1, "num_replicas": 1, "num_workers_per_replica": 1}}),
        (SHARES_4_AND_3, all_reduce_of({"a": 1, "b": 1}, {"a": 4, "b": 3})),
        (SHARES_3_AND_2, all_reduce_of(MACHINES, {"a": 3, "b": 2})),
        (SHARES_4_AND_3, server_of({"a": 1, "b": 1}, {"a": 4, "b": 3})),
        (SHARES_3_AND_2, server_of(MACHINES, {"a": 3, "b": 2})),
    ],
)  # fmt: skip
def test_a_store_that_all_machines_share_reads_the_batch_once_in_every_family(
    cluster: dict[str, Any], block: dict[str, Any]
) -> None:
    dnn = {"zoo": "adam-mnist", "global_batch": 7, "sample_bytes": "100 kB"}
    found = predicted(dnn=dnn, cluster=cluster, objective="iteration_time", configuration=block, fix={})
    assert found.iteration_time_s == pytest.approx(7 * 100e3 / 2e6)

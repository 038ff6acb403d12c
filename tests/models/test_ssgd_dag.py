from collections import Counter
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cases.forms.dag_model import (
    AllReduce,
    Iteration,
    Kind,
    Prefetch,
    SsgdTask,
    all_reduce_spans_s,
    exposed_all_reduce_s,
    naive_time_s,
    run,
    steady_time_s,
    task_graph,
    wait_free_time_s,
)
from planner.errors import ModelError
from planner.models.input import Strategy

seconds = st.integers(0, 9).map(float) | st.floats(0, 10)
prefetches = st.sampled_from(Prefetch)
every_strategy = st.sampled_from(Strategy)
overlapping = st.sampled_from([Strategy.MXNET, Strategy.CAFFE_MPI])


def longest_path_s(graph: "nx.DiGraph[SsgdTask]") -> float:
    """Return the length of the longest path, lags included: no schedule is shorter, were resources unlimited."""
    end_s: dict[SsgdTask, float] = {}
    for task in graph:
        end_s[task] = max(map(end_s.__getitem__, graph.predecessors(task)), default=0.0) + task.lag_s + task.duration_s
    return max(end_s.values())


@st.composite
def iterations(draw: st.DrawFn, max_layers: int = 5) -> Iteration:
    """Layers with and without parameters, gradients fused now and then, and input that binds now and then."""
    layers = draw(st.lists(st.tuples(seconds, seconds, st.just(0.0) | seconds), min_size=1, max_size=max_layers))
    forward_s, backward_s, all_reduce_s = zip(*layers, strict=True)
    given_ = Iteration.layer_wise(
        forward_s=forward_s,
        backward_s=backward_s,
        all_reduce_s=all_reduce_s,
        read_s=draw(seconds | st.just(40.0)),
        copy_s=draw(seconds | st.just(30.0)),
        update_s=draw(st.just(0.0) | seconds),
    )
    return replace(given_, all_reduces=fused(given_.all_reduces)) if draw(st.booleans()) else given_


def fused(all_reduces: tuple[AllReduce, ...]) -> tuple[AllReduce, ...]:
    pairs = [all_reduces[index : index + 2] for index in range(0, len(all_reduces), 2)]
    return tuple(
        AllReduce(duration_s=sum(one.duration_s for one in pair), layers=tuple(one.layers[0] for one in pair))
        for pair in pairs
    )


THREE = Iteration.layer_wise(
    forward_s=[1, 2, 3], backward_s=[8, 1, 1], all_reduce_s=[3, 2, 4], read_s=5, copy_s=6, update_s=0.5
)


def edges_by_kind(strategy: Strategy, prefetch: Prefetch = Prefetch.PIPELINED) -> Counter[tuple[str, str, int]]:
    """Kinds of source and target, and how many iterations lie between, of two iterations on one device that stands for all."""
    graph = task_graph(THREE, strategy, num_iterations=2, prefetch=prefetch)
    return Counter((one.kind.value, other.kind.value, other.iteration - one.iteration) for one, other in graph.edges)


# -- the graph -------------------------------------------------------------------------------------------------------


def test_three_layers_on_four_devices_are_the_36_tasks_of_figure_1() -> None:
    graph = task_graph(THREE, Strategy.CAFFE_MPI, num_devices=4, is_expanded=True)
    kinds = Counter(task.kind for task in graph)
    assert kinds == {"read": 4, "copy": 4, "forward": 12, "backward": 12, "all_reduce": 3, "update": 1}
    assert sum(task.kind in (Kind.READ, Kind.COPY, Kind.ALL_REDUCE) for task in graph) == 4 + 4 + 3
    assert nx.is_directed_acyclic_graph(graph)


def test_a_gradient_is_sent_when_every_device_has_it() -> None:
    graph = task_graph(THREE, Strategy.CAFFE_MPI, num_devices=4, is_expanded=True)
    sent = [task for task in graph if task.kind is Kind.ALL_REDUCE]
    assert [task.layers for task in sent] == [(2,), (1,), (0,)]
    for task in sent:
        assert [before.layers for before in graph.predecessors(task)] == [task.layers] * 4


def test_the_graph_does_not_grow_with_equal_devices() -> None:
    sizes = {len(task_graph(THREE, Strategy.CNTK, num_devices=number)) for number in (2, 8, 1024)}
    assert sizes == {1 + 1 + 3 + 3 + 3 + 1}


def test_one_device_sends_nothing() -> None:
    graph = task_graph(THREE, Strategy.CAFFE_MPI, num_devices=1)
    assert not [task for task in graph if task.kind is Kind.ALL_REDUCE]
    assert run(graph).makespan_s == 5 + 6 + THREE.computation_s


def test_strategies_differ_in_their_edges_as_section_4_c_says() -> None:
    naive, cntk, mxnet, caffe_mpi = (edges_by_kind(one) for one in Strategy)
    assert naive["update", "read", 1] == 1
    assert naive["read", "read", 1] == naive["update", "copy", 1] == 0
    for eager in (cntk, mxnet, caffe_mpi):
        assert eager["read", "read", 1] == 1
        assert eager["update", "read", 1] == 0
    assert [one["update", "copy", 1] for one in (cntk, mxnet, caffe_mpi)] == [1, 1, 0]
    # The backward of layers 1, 2 and 3, and where gradients do not overlap that of layer 1 before every all-reduce.
    assert [one["backward", "all_reduce", 0] / 2 for one in (naive, cntk, mxnet, caffe_mpi)] == [5, 5, 3, 3]
    assert all(one["update", "forward", 1] == 1 for one in (naive, cntk, mxnet, caffe_mpi))


def test_a_single_thread_reads_on_after_the_copy() -> None:
    assert edges_by_kind(Strategy.CAFFE_MPI, Prefetch.SINGLE)["copy", "read", 1] == 1
    assert edges_by_kind(Strategy.CAFFE_MPI, Prefetch.SINGLE)["read", "read", 1] == 0
    assert edges_by_kind(Strategy.NAIVE, Prefetch.SINGLE) == edges_by_kind(Strategy.NAIVE, Prefetch.PIPELINED)


def test_nodes_stand_in_a_topological_order() -> None:
    graph = task_graph(THREE, Strategy.CNTK, num_iterations=3, num_devices=2, is_expanded=True)
    position = {task: index for index, task in enumerate(graph)}
    assert all(position[one] < position[other] for one, other in graph.edges)


@pytest.mark.parametrize(("num_iterations", "num_devices"), [(0, 2), (1, 0)])
def test_nothing_to_draw_is_refused(num_iterations: int, num_devices: int) -> None:
    with pytest.raises(ModelError, match=f"1 iteration and 1 device, not {num_iterations} and {num_devices}"):
        task_graph(THREE, Strategy.NAIVE, num_iterations=num_iterations, num_devices=num_devices)


# -- the schedule ----------------------------------------------------------------------------------------------------


@given(iterations(), overlapping, prefetches)
def test_one_iteration_scheduled_is_the_recursion(iteration: Iteration, strategy: Strategy, prefetch: Prefetch) -> None:
    done = run(task_graph(iteration, strategy, prefetch=prefetch))
    starts_s = [
        float(start)
        for task, start in zip(done.tasks, done.schedule.start_s, strict=True)
        if task.kind is Kind.ALL_REDUCE
    ]
    before_s = iteration.read_s + iteration.copy_s + sum(iteration.forward_s)
    assert starts_s == pytest.approx([before_s + start for start, _ in all_reduce_spans_s(iteration)])
    exposed_s = exposed_all_reduce_s(iteration)
    assert done.makespan_s == pytest.approx(iteration.read_s + iteration.copy_s + iteration.computation_s + exposed_s)


@given(iterations(), overlapping, seconds)
def test_a_buffer_that_waits_is_scheduled_as_the_recursion_has_it(
    iteration: Iteration, strategy: Strategy, lag_s: float
) -> None:
    waiting = replace(iteration, all_reduces=tuple(replace(one, lag_s=lag_s) for one in iteration.all_reduces))
    before_s = iteration.read_s + iteration.copy_s + iteration.computation_s
    assert run(task_graph(waiting, strategy)).makespan_s == pytest.approx(before_s + exposed_all_reduce_s(waiting))


@given(iterations(), st.sampled_from([Strategy.NAIVE, Strategy.CNTK]))
def test_without_overlap_all_communication_is_exposed(iteration: Iteration, strategy: Strategy) -> None:
    assert run(task_graph(iteration, strategy)).makespan_s == pytest.approx(naive_time_s(iteration))


@given(iterations(), every_strategy, prefetches, st.integers(1, 4))
def test_the_longest_path_bounds_the_schedule(
    iteration: Iteration, strategy: Strategy, prefetch: Prefetch, num_iterations: int
) -> None:
    graph = task_graph(iteration, strategy, num_iterations=num_iterations, prefetch=prefetch)
    assert longest_path_s(graph) <= run(graph).makespan_s * (1 + 1e-12)


def test_the_longest_path_forgets_that_the_network_sends_one_thing_at_a_time() -> None:
    queueing = Iteration.layer_wise(forward_s=[0, 0], backward_s=[1, 1], all_reduce_s=[5, 5])
    graph = task_graph(queueing, Strategy.CAFFE_MPI)
    assert (longest_path_s(graph), run(graph).makespan_s) == (7, 11)


@given(iterations(), overlapping)
def test_the_longest_path_is_the_schedule_where_all_reduces_are_chained(
    iteration: Iteration, strategy: Strategy
) -> None:
    graph = task_graph(iteration, strategy)
    graph.add_edges_from(pairwise([task for task in graph if task.kind is Kind.ALL_REDUCE]))
    assert longest_path_s(graph) == pytest.approx(run(graph).makespan_s)


@given(iterations(), every_strategy, prefetches, st.integers(2, 5))
def test_every_further_iteration_takes_the_steady_time_of_its_strategy(
    iteration: Iteration, strategy: Strategy, prefetch: Prefetch, num_iterations: int
) -> None:
    done = run(task_graph(iteration, strategy, num_iterations=num_iterations, prefetch=prefetch))
    steady_s = steady_time_s(iteration, strategy, prefetch)
    gaps_s = [after - before for before, after in pairwise(done.update_ends_s)]
    assert gaps_s == pytest.approx([steady_s] * (num_iterations - 1), abs=1e-9)
    assert done.steady_time_s == gaps_s[-1]


@given(iterations())
def test_with_a_single_prefetch_caffe_mpi_is_equation_5(iteration: Iteration) -> None:
    done = run(task_graph(iteration, Strategy.CAFFE_MPI, num_iterations=3, prefetch=Prefetch.SINGLE))
    assert done.steady_time_s == pytest.approx(wait_free_time_s(iteration, Prefetch.SINGLE), abs=1e-9)


def test_input_that_binds_is_the_sum_with_one_thread_and_the_longer_with_two() -> None:
    slow = replace(THREE, read_s=50, copy_s=40)
    single = run(task_graph(slow, Strategy.CAFFE_MPI, num_iterations=4, prefetch=Prefetch.SINGLE))
    pipelined = run(task_graph(slow, Strategy.CAFFE_MPI, num_iterations=4, prefetch=Prefetch.PIPELINED))
    assert (single.steady_time_s, pipelined.steady_time_s) == (90, 50)


@given(iterations(max_layers=3), every_strategy, prefetches, st.integers(2, 4))
def test_one_device_that_stands_for_all_runs_as_each_of_them(
    iteration: Iteration, strategy: Strategy, prefetch: Prefetch, num_devices: int
) -> None:
    collapsed, expanded = (
        run(
            task_graph(
                iteration,
                strategy,
                num_iterations=3,
                num_devices=num_devices,
                prefetch=prefetch,
                is_expanded=is_expanded,
            )
        )
        for is_expanded in (False, True)
    )
    assert expanded.update_ends_s == pytest.approx(collapsed.update_ends_s)


def test_a_steady_iteration_needs_two() -> None:
    with pytest.raises(ModelError, match="2 iterations at least, not 1"):
        _ = run(task_graph(THREE, Strategy.NAIVE)).steady_time_s

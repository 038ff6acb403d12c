"""Equations 1 to 6; the referees know nothing of types, explicit times or GST: a flow shop and a barrier walk."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cases.forms.gst import LayerTimes, cut_into_pieces, overlap_layers
from planner.channel import schedule
from planner.cost import Affine, Floats
from planner.errors import ModelError
from planner.models.servers import type_one_s, type_two_s
from tests.referee.gst import Steps, epoch_time_s, explicit_input_s, global_synchronization_times_s, tail_s

seconds = st.integers(0, 9).map(float)


def rows(num_rows: int, max_length: int = 7) -> st.SearchStrategy[Floats]:
    return st.lists(st.tuples(*[seconds] * num_rows), min_size=1, max_size=max_length).map(
        lambda drawn: np.array(drawn).T
    )


workers = (
    st.integers(1, 4)
    .flatmap(
        lambda num_workers: st.lists(
            st.lists(st.tuples(*[seconds] * 7), min_size=num_workers, max_size=num_workers), min_size=1, max_size=5
        )
    )
    .map(lambda drawn: np.array(drawn).T)
)  # process, worker, iteration


def flow_shop_ends(times_s: Floats) -> Floats:
    """When every job leaves every machine: longest paths of the precedence graph (machine by job)."""
    num_machines, num_jobs = times_s.shape
    graph: nx.DiGraph[tuple[int, int]] = nx.DiGraph()
    for machine, job in np.ndindex(num_machines + 1, num_jobs + 1):
        graph.add_node((machine, job))
        if machine and job:
            for before in ((machine - 1, job), (machine, job - 1)):
                graph.add_edge(before, (machine, job), weight=times_s[machine - 1, job - 1])
    longest: dict[tuple[int, int], float] = {}
    for node in nx.topological_sort(graph):
        longest[node] = max(
            (longest[one] + data["weight"] for one, _, data in graph.in_edges(node, data=True)), default=0.0
        )
    return np.array([[longest[machine + 1, job + 1] for job in range(num_jobs)] for machine in range(num_machines)])


def layers_of(times_s: Floats) -> LayerTimes:
    return LayerTimes(backward_s=times_s[0], push_s=times_s[1], aggregate_s=times_s[2], pull_s=times_s[3])


def steps_of(times_s: Floats) -> Steps:
    names = ("input_s", "forward_s", "backward_s", "push_s", "aggregate_s", "pull_s", "update_s")
    return Steps(**dict(zip(names, times_s, strict=True)))


# -- equations 3 to 6 ------------------------------------------------------------------------------------------------


@given(rows(4))
def test_explicit_times_are_the_critical_path_of_a_flow_shop_of_four_machines(times_s: Floats) -> None:
    backward, push, aggregate, pull = flow_shop_ends(times_s)[:, -1]
    found = overlap_layers(layers_of(times_s))
    assert found.backward_s == pytest.approx(backward)
    assert found.push_s == pytest.approx(push - backward)
    assert found.aggregate_s == pytest.approx(aggregate - push)
    assert found.pull_s == pytest.approx(pull - aggregate)
    assert found.backward_s + found.exposed_s == pytest.approx(pull)  # the invariant of eq. 6


@given(rows(4))
def test_what_is_exposed_lies_between_the_last_layers_own_and_everything(times_s: Floats) -> None:
    exposed_s = float(overlap_layers(layers_of(times_s)).exposed_s)
    assert times_s[1:, -1].sum() - 1e-9 <= exposed_s <= times_s[1:].sum() + 1e-9
    assert exposed_s >= times_s[1:].sum(axis=1).max() + times_s[0, 0] - times_s[0].sum() - 1e-9  # the busiest process


@given(rows(2))
def test_a_process_of_type_two_is_the_recursion_as_printed_and_the_single_channel(times_s: Floats) -> None:
    previous, durations = type_one_s(times_s[0]), times_s[1]
    end, ends = previous[0], []
    for ready, duration in zip(previous, durations, strict=True):
        end = max(ready, end) + duration
        ends.append(end)
    assert type_two_s(previous, durations) == pytest.approx(np.array(ends))
    channel = schedule(tuple(range(len(ends))), previous, durations, Affine(startup_s=0, per_byte_s=1))
    assert channel.end_s == pytest.approx(np.array(ends))


@given(rows(2))
def test_explicit_input_and_the_rest_sum_to_the_end_of_the_last_iteration(times_s: Floats) -> None:
    input_s, rest_s = times_s
    explicit_s = explicit_input_s(input_s, rest_s)
    assert explicit_s.sum() + rest_s.sum() == pytest.approx(flow_shop_ends(times_s)[-1, -1])
    assert explicit_s[0] == input_s[0]
    assert (explicit_s >= 0).all()


@given(rows(8))
def test_configurations_side_by_side_are_those_one_by_one(times_s: Floats) -> None:
    together = overlap_layers(layers_of(times_s.reshape(4, 2, -1)))
    for index in range(2):
        alone = overlap_layers(layers_of(times_s.reshape(4, 2, -1)[:, index]))
        assert together.exposed_s[index] == pytest.approx(float(alone.exposed_s))


def test_a_pipeline_by_hand() -> None:
    # Two layers: backward ends at 2 and 4, push at 5 and 8, aggregation at 6 and 9, pull at 8 and 11.
    found = overlap_layers(layers_of(np.array([[2.0, 2], [3, 3], [1, 1], [2, 2]])))
    assert [float(found.backward_s), float(found.push_s), float(found.aggregate_s), float(found.pull_s)] == [4, 4, 1, 2]


@given(rows(2, max_length=5), st.sampled_from([1.0, 3.0, 4.0, 100.0]))
def test_pieces_carry_all_bytes_and_all_time_in_order(drawn: Floats, piece_bytes: float) -> None:
    sizes, times = cut_into_pieces(drawn[0], drawn[1], piece_bytes)
    assert sizes.sum() == pytest.approx(drawn[0].sum())
    assert times.sum() == pytest.approx(drawn[1].sum())
    assert sizes.max() <= piece_bytes
    assert len(sizes) == np.maximum(np.ceil(drawn[0] / piece_bytes), 1).sum()


def test_pieces_by_hand_and_pieces_of_nothing() -> None:
    sizes, times = cut_into_pieces([9, 0, 4], [1, 2, 3], 4)
    assert sizes.tolist() == [4, 4, 1, 0, 4]
    assert times.tolist() == [1, 0, 0, 2, 3]
    with pytest.raises(ModelError, match="piece_bytes is 0"):
        cut_into_pieces([1], [1], 0)


@given(rows(4), st.sampled_from([1.0, 2.0, 5.0]))
def test_pieces_without_start_up_never_end_later(times_s: Floats, piece_bytes: float) -> None:
    # A layer's push, aggregation and pull take as long as it has bytes, in pieces or whole.
    sizes, whole_s = times_s[:2]
    cut, cut_s = cut_into_pieces(sizes, whole_s, piece_bytes)
    layers = overlap_layers(LayerTimes(backward_s=whole_s, push_s=sizes, aggregate_s=2 * sizes, pull_s=sizes))
    pieces = overlap_layers(LayerTimes(backward_s=cut_s, push_s=cut, aggregate_s=2 * cut, pull_s=cut))
    assert float(pieces.exposed_s) <= float(layers.exposed_s) + 1e-9


# -- equations 1 and 2 -----------------------------------------------------------------------------------------------


def walk(times_s: Floats) -> float:
    """Every process of every worker in turn; after aggregation all wait for the last (process, worker, iteration)."""
    num_workers, num_iterations = times_s.shape[1:]
    clock = [0.0] * num_workers
    for iteration in range(num_iterations):
        for worker in range(num_workers):
            for process in range(5):
                clock[worker] += times_s[process, worker, iteration]
        clock = [max(clock)] * num_workers
        for worker in range(num_workers):
            clock[worker] += times_s[5, worker, iteration] + times_s[6, worker, iteration]
    return max(clock)


@given(workers)
def test_an_epoch_is_a_walk_from_barrier_to_barrier(times_s: Floats) -> None:
    assert epoch_time_s(steps_of(times_s)) == pytest.approx(walk(times_s))


@given(workers)
def test_the_slowest_workers_own_sum_is_only_a_lower_bound(times_s: Floats) -> None:
    # The first two lines of eq. 2.
    own_s = times_s.sum(axis=(0, 2)).max()
    gst_s = global_synchronization_times_s(steps_of(times_s))
    tails_s = (times_s[5] + times_s[6])[:, -1]
    assert (gst_s.sum(axis=1) + tails_s).max() == pytest.approx(own_s)
    assert own_s <= epoch_time_s(steps_of(times_s)) + 1e-9


def test_two_workers_slow_in_turn_take_longer_than_either() -> None:
    forward_s = np.array([[5.0, 1], [1, 5]])
    times_s = np.stack([np.zeros((2, 2)), forward_s, *[np.zeros((2, 2))] * 5])
    assert times_s.sum(axis=(0, 2)).max() == 6
    assert epoch_time_s(steps_of(times_s)) == 10


@given(workers)
def test_equation_1_as_printed_loses_push_and_aggregation_after_the_first_iteration(times_s: Floats) -> None:
    steps = steps_of(times_s)
    lost = global_synchronization_times_s(steps) - global_synchronization_times_s(steps, is_printed=True)
    assert lost[:, 0] == pytest.approx(0)
    assert lost[:, 1:] == pytest.approx((times_s[3] + times_s[4])[:, 1:])
    assert epoch_time_s(steps, is_printed=True) <= epoch_time_s(steps) + 1e-9


@given(workers)
def test_one_worker_waits_for_nobody(times_s: Floats) -> None:
    alone = times_s[:, :1]
    assert epoch_time_s(steps_of(alone)) == pytest.approx(alone.sum())
    assert tail_s(steps_of(alone)) == pytest.approx(alone[5:, 0, -1].sum())

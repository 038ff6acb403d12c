import math
import pickle
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import LogLinear, affine_costs, log_linear_costs

from planner.cost import Affine, CheapestOf, Floats, TransferCost
from planner.errors import ModelError
from planner.models.communication import (
    ALL_REDUCES,
    Affines,
    MeasuredCurve,
    Participants,
    PiecewiseLogLinear,
    cheapest_of,
    delayed,
    double_binary_tree_all_reduces,
    ring_all_reduces,
    two_level_all_reduces,
)

VGG16_BYTES = 138_357_544 * 4
FlatAllReduce = Callable[..., Affines]
Hop = tuple[float, float]  # bytes/s and seconds
flat_algorithms = pytest.mark.parametrize("algorithm", [ring_all_reduces, double_binary_tree_all_reduces])
counts = st.integers(1, 64)
bandwidths = st.floats(1e6, 1e12)
latencies_s = st.floats(0, 1e-2)
links = st.tuples(bandwidths, latencies_s)
sizes = st.floats(1, 1e10)


def seconds(cost: TransferCost, size_bytes: float) -> float:
    return float(cost(np.array([size_bytes]))[0])


def two_level(
    n: int, g: int, inside: Hop, network: Hop, *, overhead_s: float = 0, reduce_bytes_per_s: float = math.inf
) -> Affine:
    return two_level_all_reduces(
        num_machines=[n],
        devices_per_machine=[g],
        inside_bytes_per_s=inside[0],
        network_bytes_per_s=network[0],
        inside_latency_s=inside[1],
        network_latency_s=network[1],
        overhead_s=overhead_s,
        reduce_bytes_per_s=reduce_bytes_per_s,
    ).at(0)


# -- published figures -------------------------------------------------------------------------------------------------


def test_equation_7_for_vgg16_on_32_workers_at_25_gbit() -> None:
    one_way = ring_all_reduces(num_devices=[32], bandwidth_bytes_per_s=3.125e9).at(0)
    assert seconds(one_way, VGG16_BYTES) == pytest.approx(0.3431, abs=5e-5)
    adding = ring_all_reduces(num_devices=[32], bandwidth_bytes_per_s=math.inf, reduce_bytes_per_s=13.45e12 * 4).at(0)
    assert seconds(adding, VGG16_BYTES) == pytest.approx(10e-6, rel=5e-3)
    whole = ring_all_reduces(
        num_devices=[32], bandwidth_bytes_per_s=3.125e9, overhead_s=0.00328, reduce_bytes_per_s=13.45e12 * 4
    ).at(0)
    parts = (one_way, adding)
    assert seconds(whole, VGG16_BYTES) == pytest.approx(0.00328 + sum(seconds(part, VGG16_BYTES) for part in parts))


# -- simulations that move real numbers --------------------------------------------------------------------------------


def pass_round(held: Floats, shift: int, *, adds: bool) -> None:
    """Let every device send a chunk to its neighbour, n - 1 times; ``held`` is device x chunk x number."""
    n = len(held)
    for step in range(n - 1):
        sent = [(device, (device - step + shift) % n) for device in range(n)]
        moved = [held[device, chunk].copy() for device, chunk in sent]
        for (device, chunk), numbers in zip(sent, moved, strict=True):
            neighbour = (device + 1) % n
            held[neighbour, chunk] = held[neighbour, chunk] + numbers if adds else numbers


def simulate_ring(held: Floats, *, bandwidth: float, latency_s: float, reduce_rate: float) -> float:
    """All-reduce ``held`` chunk by chunk; return the seconds, every step lasting as long as a chunk takes."""
    step_s = latency_s + held[0, 0].nbytes / bandwidth
    pass_round(held, 0, adds=True)
    pass_round(held, 1, adds=False)
    return float((len(held) - 1) * (2 * step_s + held[0, 0].nbytes / reduce_rate))


@given(st.integers(2, 7), bandwidths, latencies_s, bandwidths)
def test_ring_agrees_with_one_simulated_chunk_by_chunk(
    num_devices: int, bandwidth: float, latency_s: float, reduce_rate: float
) -> None:
    held = np.random.default_rng(0).integers(0, 9, (num_devices, num_devices, 3)).astype(float)
    total, size_bytes = held.sum(axis=0), held[0].nbytes
    took_s = simulate_ring(held, bandwidth=bandwidth, latency_s=latency_s, reduce_rate=reduce_rate)
    assert (held == total).all()
    cost = ring_all_reduces(
        num_devices=[num_devices], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s, reduce_bytes_per_s=reduce_rate
    ).at(0)
    assert seconds(cost, size_bytes) == pytest.approx(took_s)


@given(n=st.integers(1, 5), g=st.integers(1, 5), inside=links, network=links, reduce_rate=bandwidths)
def test_two_levels_agree_with_their_simulation(
    *, n: int, g: int, inside: Hop, network: Hop, reduce_rate: float
) -> None:
    if n * g == 1:
        return
    held = np.random.default_rng(1).integers(0, 9, (n, g, g, n, 2)).astype(float)  # machine, device, chunk, piece
    total, size_bytes = held.sum(axis=(0, 1)), held[0, 0].nbytes
    chunk_bytes = held[0, 0, 0].nbytes
    took_s = (g - 1) * (2 * (inside[1] + chunk_bytes / inside[0]) + chunk_bytes / reduce_rate)
    for machine in held:
        pass_round(machine, 0, adds=True)
    for chunk in range(g):  # a rail joins the devices that hold the same chunk; all rails share the machine's cards
        rail = held[:, (chunk - 1) % g, chunk].copy()
        rail_s = simulate_ring(rail, bandwidth=network[0] / g, latency_s=network[1], reduce_rate=reduce_rate)
        held[:, (chunk - 1) % g, chunk] = rail
    for machine in held:
        pass_round(machine, 1, adds=False)
    assert (held == total).all()
    cost = two_level(n, g, inside, network, reduce_bytes_per_s=reduce_rate)
    assert seconds(cost, size_bytes) == pytest.approx(took_s + rail_s)


# -- limits ------------------------------------------------------------------------------------------------------------


@given(counts, links, links, sizes)
def test_two_levels_equal_the_flat_ring_where_one_level_has_size_1(
    number: int, inside: Hop, network: Hop, size_bytes: float
) -> None:
    for n, g, (bandwidth, latency_s) in ((number, 1, network), (1, number, inside)):
        ring = ring_all_reduces(
            num_devices=[number], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s, overhead_s=1e-4
        ).at(0)
        both = two_level(n, g, inside, network, overhead_s=1e-4)
        assert seconds(both, size_bytes) == pytest.approx(seconds(ring, size_bytes), rel=1e-12)


@given(st.integers(2, 16), st.integers(2, 16), bandwidths, latencies_s)
def test_two_levels_of_equal_links_take_fewer_steps_than_a_ring_and_send_more_over_the_network(
    n: int, g: int, bandwidth: float, latency_s: float
) -> None:
    both = two_level(n, g, (bandwidth, latency_s), (bandwidth, latency_s))
    ring = ring_all_reduces(num_devices=[n * g], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s).at(0)
    assert both.startup_s <= ring.startup_s
    assert both.per_byte_s >= ring.per_byte_s
    scaled = two_level(n, g, (bandwidth, latency_s), (bandwidth * g, latency_s))  # a card for every device
    assert scaled.per_byte_s == pytest.approx(ring.per_byte_s)


def test_the_tree_meets_the_rings_bandwidth_on_many_devices_and_is_twice_it_on_two() -> None:
    numbers = [2, 3, 8, 64, 1024, 2**20]
    ring, tree = (
        algorithm(num_devices=numbers, bandwidth_bytes_per_s=1.0)
        for algorithm in (ring_all_reduces, double_binary_tree_all_reduces)
    )
    ratios = tree.per_byte_s / ring.per_byte_s
    assert ratios[0] == pytest.approx(2)
    assert ratios[-1] == pytest.approx(1, abs=1e-5)
    assert (np.diff(ratios) < 0).all()


@pytest.mark.parametrize(("num_devices", "num_hops"), [(2, 2), (3, 4), (8, 6), (9, 8), (1024, 20)])
def test_the_trees_latency_grows_with_its_depth(num_devices: int, num_hops: int) -> None:
    tree = double_binary_tree_all_reduces(num_devices=[num_devices], bandwidth_bytes_per_s=1.0, latency_s=1.0).at(0)
    assert tree.startup_s == pytest.approx(num_hops)


@flat_algorithms
@given(bandwidth=bandwidths, latency_s=latencies_s, size_bytes=sizes)
def test_one_device_has_nothing_to_send(
    algorithm: FlatAllReduce, bandwidth: float, latency_s: float, size_bytes: float
) -> None:
    cost = algorithm(num_devices=[1], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s, overhead_s=1.0).at(0)
    both = two_level(1, 1, (bandwidth, latency_s), (bandwidth, latency_s), overhead_s=1.0)
    assert seconds(cost, size_bytes) == seconds(both, size_bytes) == 0


@flat_algorithms
@given(number=counts, bandwidth=bandwidths, factor=st.floats(1, 10), latency_s=latencies_s, size_bytes=sizes)
def test_more_bandwidth_never_hurts_and_more_latency_never_helps(
    *, algorithm: FlatAllReduce, number: int, bandwidth: float, factor: float, latency_s: float, size_bytes: float
) -> None:
    def took_s(bandwidth: float, latency_s: float) -> float:
        cost = algorithm(num_devices=[number], bandwidth_bytes_per_s=bandwidth, latency_s=latency_s).at(0)
        assert seconds(cost, 0) == 0
        return seconds(cost, size_bytes)

    assert took_s(bandwidth * factor, latency_s) <= took_s(bandwidth, latency_s)
    assert took_s(bandwidth, latency_s) <= took_s(bandwidth, latency_s * factor)


@given(shape=st.tuples(st.integers(1, 8), st.integers(1, 8)), inside=links, network=links, size_bytes=sizes)
def test_more_bandwidth_on_either_level_never_hurts(
    shape: tuple[int, int], inside: Hop, network: Hop, size_bytes: float
) -> None:
    before = seconds(two_level(*shape, inside, network), size_bytes)
    assert seconds(two_level(*shape, (inside[0] * 3, inside[1]), network), size_bytes) <= before
    assert seconds(two_level(*shape, inside, (network[0] * 3, network[1])), size_bytes) <= before


def test_many_settings_at_once_are_what_each_is_alone() -> None:
    numbers, widths = [1, 2, 5], [1e9, 2e9, 3e9]
    together = ring_all_reduces(num_devices=numbers, bandwidth_bytes_per_s=widths, latency_s=1e-5, overhead_s=1e-4)
    for index, (number, width) in enumerate(zip(numbers, widths, strict=True)):
        alone = ring_all_reduces(num_devices=[number], bandwidth_bytes_per_s=width, latency_s=1e-5, overhead_s=1e-4)
        assert together.at(index) == alone.at(0)


# -- eq. 18 ------------------------------------------------------------------------------------------------------------


def test_piecewise_cost_follows_equation_18_jump_included() -> None:
    cost = PiecewiseLogLinear(log_slope_s=2, log_offset_s=1, per_byte_s=0.25, offset_s=-8, threshold_bytes=64)
    given_bytes = np.array([0, 1, 2, 32, 63.999999, 64, 128])
    expected = [0, 1, 3, 11, 2 * math.log2(63.999999) + 1, 8, 24]
    assert cost(given_bytes) == pytest.approx(np.array(expected))
    assert seconds(cost, 63) > seconds(cost, 64) + 4  # cheaper beyond the threshold: allowed, as it was fitted so


def test_piecewise_cost_never_falls_below_0() -> None:
    cost = PiecewiseLogLinear(log_slope_s=1, log_offset_s=-3, per_byte_s=1, offset_s=-20, threshold_bytes=16)
    assert cost(np.array([1.0, 4, 8, 15.9, 16, 20, 21])) == pytest.approx(
        np.array([0, 0, 0, math.log2(15.9) - 3, 0, 0, 1])
    )


@given(log_linear_costs, st.integers(0, 1000))
def test_piecewise_cost_agrees_with_equation_18_written_again(written: LogLinear, size_bytes: int) -> None:
    cost = PiecewiseLogLinear(
        log_slope_s=written.a1,
        log_offset_s=written.b1,
        per_byte_s=written.a2,
        offset_s=written.b2,
        threshold_bytes=written.threshold_bytes,
    )
    assert seconds(cost, size_bytes) == pytest.approx(seconds(written, size_bytes))


# -- measured curves ---------------------------------------------------------------------------------------------------

points = st.lists(
    st.tuples(st.integers(1, 2**34), st.floats(0, 10)), min_size=2, max_size=12, unique_by=lambda point: point[0]
).map(sorted)


def curve_of(table: Sequence[tuple[float, float]]) -> MeasuredCurve:
    return MeasuredCurve(size_bytes=tuple(size for size, _ in table), seconds=tuple(took for _, took in table))


@given(points)
def test_a_curve_passes_through_points_that_never_fall(table: list[tuple[int, float]]) -> None:
    table = [(size, took) for (size, _), took in zip(table, sorted(took for _, took in table), strict=True)]
    curve = curve_of(table)
    assert curve(np.array([size for size, _ in table], dtype=float)) == pytest.approx([took for _, took in table])


@given(points, st.lists(st.floats(1, 1e11), min_size=2, max_size=20).map(sorted))
def test_a_curve_never_falls_whatever_the_noise(table: list[tuple[int, float]], asked: list[float]) -> None:
    took_s = curve_of(table)(np.array(asked))
    assert (np.diff(took_s) >= -1e-12 * took_s[1:]).all()
    assert (took_s >= 0).all()


@given(points)
def test_noise_is_taken_out_by_pooling_adjacent_violators(table: list[tuple[int, float]]) -> None:
    blocks: list[list[float]] = []  # mean and number of points; merged while a block lies below the one before it
    for _, took in table:
        blocks.append([took, 1])
        while len(blocks) > 1 and blocks[-1][0] < blocks[-2][0]:
            mean, number = blocks.pop()
            blocks[-1] = [
                (blocks[-1][0] * blocks[-1][1] + mean * number) / (blocks[-1][1] + number),
                blocks[-1][1] + number,
            ]
    pooled = [mean for mean, number in blocks for _ in range(int(number))]
    assert curve_of(table)(np.array([size for size, _ in table], dtype=float)) == pytest.approx(pooled, abs=1e-9)


def test_between_points_a_curve_is_linear() -> None:
    curve = curve_of([(1000, 2), (3000, 4), (9000, 5)])
    assert curve(np.array([1000, 2000, 3000, 6000])) == pytest.approx(np.array([2, 3, 4, 4.5]))


def test_outside_its_points_a_curve_goes_on_sensibly() -> None:
    curve = curve_of([(100, 3), (2000, 5), (4000, 8), (8000, 17)])  # the last factor of four starts at 2000
    assert curve(np.array([0, 1, 99, 100])) == pytest.approx(np.array([0, 3, 3, 3]))
    assert curve(np.array([8000, 10_000, 18_000])) == pytest.approx(np.array([17, 21, 37]))


def test_a_curve_that_noise_left_flat_still_rises_beyond_its_end() -> None:
    curve = curve_of([(1000, 1), (4000, 9), (8000, 7)])  # pooled to 8 and 8
    assert curve(np.array([4000, 8000, 16_000])) == pytest.approx(np.array([8, 8, 16]))


def test_last_points_nearer_than_a_factor_of_two_make_no_slope() -> None:
    wide, narrow = curve_of([(1000, 1), (2000, 4)]), curve_of([(1000, 1), (1999, 4)])
    assert seconds(wide, 4000) == pytest.approx(4 + 3 / 1000 * 2000)
    assert seconds(narrow, 3998) == pytest.approx(8)  # the mean slope from zero


@pytest.mark.parametrize(
    ("sizes", "took", "message"),
    [
        ((), (), "at least two points of size and seconds; this one has 0 sizes and 0 seconds"),
        ((1.0,), (1.0,), "at least two points"),
        ((1.0, 2.0), (1.0, 2.0, 3.0), "2 sizes and 3 seconds"),
        ((0.0, 2.0), (1.0, 2.0), "sizes of a measured curve must be positive, finite and strictly ascending"),
        ((2.0, 2.0), (1.0, 2.0), "strictly ascending"),
        ((3.0, 2.0), (1.0, 2.0), "strictly ascending"),
        ((1.0, math.inf), (1.0, 2.0), "finite and strictly ascending"),
        ((1.0, math.nan), (1.0, 2.0), "finite and strictly ascending"),
        ((1.0, 2.0), (1.0, -2.0), "seconds of a measured curve must be finite and not negative"),
        ((1.0, 2.0), (1.0, math.nan), "seconds of a measured curve must be finite"),
        ((1.0, 2.0), (1.0, math.inf), "seconds of a measured curve must be finite"),
    ],
)
def test_a_table_that_is_no_curve_is_refused(sizes: tuple[float, ...], took: tuple[float, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        MeasuredCurve(size_bytes=sizes, seconds=took)


def test_curves_survive_the_trip_to_a_worker_process() -> None:
    curve = curve_of([(1, 2), (2, 1), (3, 4)])
    twin = pickle.loads(pickle.dumps(curve))
    assert twin == curve
    assert seconds(twin, 7) == pytest.approx(seconds(curve, 7))


# -- choosing and delaying ---------------------------------------------------------------------------------------------

any_cost = affine_costs | log_linear_costs


@given(st.lists(any_cost, min_size=1, max_size=4), st.lists(st.floats(0, 1000), min_size=1, max_size=6))
def test_the_cheapest_is_the_minimum_at_every_size(costs: list[TransferCost], asked: list[float]) -> None:
    given_bytes = np.array(asked)
    table = np.array([cost(given_bytes) for cost in costs])
    assert cheapest_of(costs)(given_bytes) == pytest.approx(table.min(axis=0))


def test_the_cheapest_is_affine_where_one_affine_cost_is_cheapest_at_all_sizes() -> None:
    best, dearer = Affine(startup_s=1, per_byte_s=1), Affine(startup_s=1, per_byte_s=2)
    assert cheapest_of([dearer, best, dearer]) is best
    assert cheapest_of([best]) is best
    crossing = Affine(startup_s=0, per_byte_s=2)
    assert cheapest_of([best, crossing]) == CheapestOf((best, crossing))


@given(any_cost, st.floats(0, 10), st.floats(0, 1000))
def test_a_delay_is_added_to_every_transfer_but_the_empty_one(
    cost: TransferCost, startup_s: float, size_bytes: float
) -> None:
    late = delayed(cost, startup_s)
    assert seconds(late, 0) == 0
    assert isinstance(late, Affine) is isinstance(cost, Affine)
    if size_bytes > 0:
        assert seconds(late, size_bytes) == pytest.approx(seconds(cost, size_bytes) + startup_s)


def participants(machines: int, devices: int, inside: Hop, network: Hop, *, overhead_s: float = 0) -> Participants:
    return Participants(
        num_devices=[machines * devices],
        num_machines=[machines],
        devices_per_machine=devices,
        network_bytes_per_s=network[0] if machines > 1 else math.inf,
        network_latency_s=network[1] if machines > 1 else 0.0,
        inside_bytes_per_s=inside[0],
        inside_latency_s=inside[1],
        overhead_s=overhead_s,
    )


@pytest.mark.parametrize("name", ALL_REDUCES)
@given(machines=st.integers(1, 9), devices=st.integers(1, 9), inside=links, network=links, size_bytes=sizes)
def test_an_all_reduce_gets_no_cheaper_on_more_machines(
    *, name: str, machines: int, devices: int, inside: Hop, network: Hop, size_bytes: float
) -> None:
    """The bounds of searches ask for the fewest machines of a box, and rely on this."""
    one, more = (
        ALL_REDUCES[name](participants(number, devices, inside, network, overhead_s=1e-4)).at(0)
        for number in (machines, machines + 1)
    )
    assert seconds(one, size_bytes) <= seconds(more, size_bytes) * (1 + 1e-12)
    assert machines * devices > 1 or seconds(one, size_bytes) == 0


@pytest.mark.parametrize(
    ("machines", "devices", "took_s"),
    [
        (1, 8, 1.125 * 80 / 40 + 2 * 0.25),  # up what each has and its part of the sum; down the sum
        (4, 1, 80 / 10 + 2 * 0.5),
        (4, 8, 1.125 * 80 / 40 + 80 / 10 + 2 * (0.25 + 0.5)),
        (1, 1, 0.0),
    ],
)
def test_switches_that_add_up_send_a_buffer_once(machines: int, devices: int, took_s: float) -> None:
    cost = ALL_REDUCES["in_network"](participants(machines, devices, (40.0, 0.25), (10.0, 0.5))).at(0)
    assert seconds(cost, 80.0) == pytest.approx(took_s)

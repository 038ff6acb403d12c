import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost import Floats
from planner.errors import ModelError
from planner.models.communication import double_binary_tree_all_reduces, ring_all_reduces, two_level_all_reduces
from planner.models.layouts import Layouts
from planner.models.tiers import (
    Group,
    Operation,
    Spread,
    Tier,
    all_reduces,
    all_to_alls,
    gathers,
    group_of,
    groups_of,
    next_group,
    operation_s,
    packed_group,
    send,
)

INSIDE = Tier(size=8, bandwidth_bytes_per_s=300e9, latency_s=3e-6)
NETWORK = Tier(size=64, bandwidth_bytes_per_s=25e9, latency_s=1e-5, num_rails=8)
TIERS = (INSIDE, NETWORK)
OPERATIONS: tuple[Operation, ...] = ("all_reduce", "gather", "all_to_all", "send")
operations = st.sampled_from(OPERATIONS)
powers = st.integers(0, 6).map(lambda power: 2**power)
sizes = st.floats(1, 1e10)
tiers_drawn = st.builds(
    lambda size, wide, narrow, rails, latency_s, over: (
        Tier(size=size, bandwidth_bytes_per_s=wide, latency_s=latency_s / 4),
        Tier(size=4, bandwidth_bytes_per_s=narrow, latency_s=latency_s, num_rails=rails, oversubscription=over),
        Tier(size=8, bandwidth_bytes_per_s=2 * narrow, latency_s=2 * latency_s, num_rails=2),
    ),
    powers,
    st.floats(1e9, 1e12),
    st.floats(1e8, 1e11),
    st.integers(1, 8),
    st.floats(0, 1e-3),
    st.floats(1, 4),
)


def group(tiers: tuple[Tier, ...], degree: int, stride: int = 1, num_devices: int | None = None) -> Group:
    ranks = degree * stride if num_devices is None else num_devices
    return group_of(tiers, ((np.array([degree]), np.array([stride])),), np.array([ranks]))


def one(seconds: Floats) -> float:
    (found,) = seconds
    return float(found)


def full(size_bytes: float) -> Floats:
    return np.array([size_bytes])


# -- one tier, two tiers: the formulas of the house --------------------------------------------------------------------


@given(st.integers(1, 64), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_one_tier_is_the_ring_and_the_tree(degree: int, bandwidth: float, latency_s: float) -> None:
    tier = Tier(size=64, bandwidth_bytes_per_s=bandwidth, latency_s=latency_s)
    levels, flat, tree = all_reduces(group((tier,), degree))
    shared = {"num_devices": [degree], "bandwidth_bytes_per_s": bandwidth, "latency_s": latency_s}
    ring, trees = ring_all_reduces(**shared), double_binary_tree_all_reduces(**shared)  # type: ignore[arg-type]
    for found, known in ((levels, ring), (flat, ring), (tree, trees)):
        assert found.startup_s == pytest.approx(known.startup_s)
        assert found.per_byte_s == pytest.approx(known.per_byte_s)


@given(powers, powers)
def test_all_devices_of_some_machines_are_the_two_level_all_reduce(machines: int, devices: int) -> None:
    tiers = (replace(INSIDE, size=devices), replace(NETWORK, num_rails=4))
    levels = all_reduces(group(tiers, machines * devices))[0]
    known = two_level_all_reduces(
        num_machines=[machines],
        devices_per_machine=[devices],
        inside_bytes_per_s=INSIDE.bandwidth_bytes_per_s,
        # A device uses the rails next to it, and no others.
        network_bytes_per_s=min(4, devices * max(1.0, 4 / devices)) * NETWORK.bandwidth_bytes_per_s,
        inside_latency_s=INSIDE.latency_s,
        network_latency_s=NETWORK.latency_s,
    )
    assert levels.startup_s == pytest.approx(known.startup_s)
    assert levels.per_byte_s == pytest.approx(known.per_byte_s)


def test_a_tensor_group_in_a_machine_and_a_data_group_across_have_the_links_that_they_share() -> None:
    layout = Layouts.one(tensor=8, data=16, pipeline=4)
    groups = groups_of(TIERS, layout)
    assert one(operation_s("all_reduce", groups["tensor"], full(1e9))) == pytest.approx(
        14 * 3e-6 + 2 * 7 / 8 * 1e9 / 300e9
    )
    # Eight data groups start in each machine, and share its eight rails.
    assert one(operation_s("gather", groups["data"], full(1e9))) == pytest.approx(15 * 1e-5 + 15 / 16 * 1e9 / 25e9)


def test_a_group_of_72_devices_in_one_domain_never_leaves_it() -> None:
    domain = (replace(INSIDE, size=72), NETWORK)
    inside = group(domain, 72, num_devices=144)
    assert inside.units.ravel().tolist() == [72, 1]
    # Sixteen members eight apart span two or three domains of 72.
    across = group(domain, 16, 8, 1152)
    assert across.units[1, 0] == 3


def test_a_lone_rail_of_a_machine_is_shared_by_its_devices() -> None:
    tiers = (INSIDE, replace(NETWORK, num_rails=1))
    assert group(tiers, 4, 8).share_bytes_per_s[1, 0] == pytest.approx(25e9 / 8)
    assert group(tiers, 4, 8).alone_bytes_per_s[1, 0] == pytest.approx(25e9 / 8)
    # A pipeline of all devices of a machine sends out of it from one device only.
    assert group(tiers, 16).alone_bytes_per_s[1, 0] == pytest.approx(25e9)


def test_first_and_last_stage_meet_on_the_outermost_tier_that_the_pipeline_crosses() -> None:
    inside, across = group(TIERS, 4, 2).ends(), group(TIERS, 16, 2).ends()
    assert inside.units.ravel().tolist() == [2, 1]
    assert across.units.ravel().tolist() == [1, 2]
    assert group(TIERS, 1, 2).ends().num_members.tolist() == [1]


# -- properties --------------------------------------------------------------------------------------------------------


@given(tiers_drawn, powers, powers, sizes)
def test_an_all_reduce_over_rings_is_a_reduce_scatter_and_an_all_gather(
    tiers: tuple[Tier, ...], degree: int, stride: int, size: float
) -> None:
    found = group(tiers, degree, stride)
    for whole, half in zip(all_reduces(found), gathers(found), strict=False):
        assert whole.startup_s == pytest.approx(2 * half.startup_s)
        assert whole.per_byte_s == pytest.approx(2 * half.per_byte_s)
    assert one(operation_s("all_reduce", found, full(size))) <= 2 * one(operation_s("gather", found, full(size))) * (
        1 + 1e-12
    )


@given(tiers_drawn, operations, powers, sizes)
def test_a_group_inside_a_machine_is_never_slower_than_one_across(
    tiers: tuple[Tier, ...], operation: Operation, degree: int, size: float
) -> None:
    machine = tiers[0].size
    inside = group((replace(tiers[0], size=degree * machine), *tiers[1:]), degree, machine)
    across = group(tiers, degree, machine)
    assert one(operation_s(operation, inside, full(size))) <= one(operation_s(operation, across, full(size))) * (
        1 + 1e-12
    )


@given(tiers_drawn, operations, powers, powers, sizes, st.floats(1, 10))
def test_more_bytes_never_take_less_time_and_more_bandwidth_never_more(
    tiers: tuple[Tier, ...], operation: Operation, degree: int, stride: int, size: float, factor: float
) -> None:
    wider = tuple(replace(tier, bandwidth_bytes_per_s=factor * tier.bandwidth_bytes_per_s) for tier in tiers)
    base = one(operation_s(operation, group(tiers, degree, stride), full(size)))
    assert one(operation_s(operation, group(tiers, degree, stride), full(factor * size))) >= base
    assert one(operation_s(operation, group(wider, degree, stride), full(size))) <= base


@given(tiers_drawn, st.sampled_from(("all_reduce", "gather", "send")), powers, powers, sizes)
def test_larger_groups_on_as_many_devices_are_never_quicker(
    tiers: tuple[Tier, ...], operation: Operation, degree: int, stride: int, size: float
) -> None:
    # One tier: over several, a larger group may leave a machine by more rails.
    small, large = (group(tiers[1:2], number, stride, 4096) for number in (degree, 2 * degree))
    assert one(operation_s(operation, small, full(size))) <= one(operation_s(operation, large, full(size))) * (
        1 + 1e-12
    )


@given(powers, powers, st.integers(1, 8), st.floats(1, 4))
def test_what_all_groups_of_a_machine_send_is_what_its_rails_carry(
    degree: int, stride: int, num_rails: int, oversubscription: float
) -> None:
    tiers = (INSIDE, replace(NETWORK, num_rails=num_rails, oversubscription=oversubscription, latency_s=0.0))
    found = group(tiers, degree, stride, max(degree * stride, 8))
    machines, members = found.units[1, 0], found.members[1, 0]
    levels = all_reduces(found)[0].per_byte_s[0]
    inside = ring_all_reduces(num_devices=[members], bandwidth_bytes_per_s=300e9).per_byte_s[0]
    carried_bytes = (levels - inside) * tiers[1].unit_bytes_per_s
    num_groups = 8 / members
    # A ring of n machines: each sends 2 (n - 1) / n of the buffer; every group of the machine has a buffer of its own.
    assert carried_bytes == pytest.approx(num_groups * 2 * (machines - 1) / machines)


@given(tiers_drawn, powers, powers)
def test_an_all_to_all_by_pairs_sends_what_leaves_each_unit(tiers: tuple[Tier, ...], degree: int, stride: int) -> None:
    found = group(tiers, degree, stride)
    pairs, rounds = all_to_alls(found)
    outermost = int(np.flatnonzero(found.is_crossed[:, 0])[-1]) if degree > 1 else 0
    leaving = 1 - found.members[outermost, 0] / degree
    assert pairs.per_byte_s[0] >= leaving / found.share_bytes_per_s[outermost, 0] * (1 - 1e-12)
    assert rounds.startup_s[0] <= pairs.startup_s[0] * (1 + 1e-12)


@pytest.mark.parametrize(("copies", "in_machine", "machines"), [(2, 2, 2), (3, 2, 3), (4, 1, 4), (2, 4, 1)])
def test_a_piece_for_several_members_travels_once_to_each_machine(copies: int, in_machine: int, machines: int) -> None:
    """Of every draw of the members that a piece of device 0 goes to: machines but its own that have any of them."""
    members = in_machine * machines
    wide = Tier(size=in_machine, bandwidth_bytes_per_s=math.inf)
    tiers = (wide, replace(NETWORK, latency_s=0.0)) if machines > 1 else (replace(INSIDE, latency_s=0.0), NETWORK)
    found, unit = group(tiers, members), in_machine if machines > 1 else 1
    draws = itertools.product(range(members), repeat=copies)
    reached = [len({one // unit for one in drawn} - {0}) for drawn in draws]
    (once, _), (each, _) = all_to_alls(found, Spread(copies)), all_to_alls(found)
    rate = found.even_bytes_per_s[1 if machines > 1 else 0, 0]
    assert once.per_byte_s * rate == pytest.approx([np.mean(reached) / copies])
    assert each.per_byte_s * rate == pytest.approx([1 - unit / members])
    assert once.startup_s == each.startup_s


@pytest.mark.parametrize(
    ("parts", "most_parts", "copies", "in_machine", "machines"),
    [(4, 2, 3, 1, 4), (2, 1, 2, 2, 4), (4, 3, 2, 2, 2), (4, 2, 1, 1, 4), (3, 3, 4, 1, 3)],
)
def test_a_piece_for_members_of_a_few_parts_reaches_fewer_machines(
    parts: int, most_parts: int, copies: int, in_machine: int, machines: int
) -> None:
    """Of every choice of parts and every draw of members of them; exact where a machine is a part or more has none."""
    members = in_machine * machines
    tiers = (Tier(size=in_machine, bandwidth_bytes_per_s=math.inf), replace(NETWORK, latency_s=0.0))
    tiers = tiers if in_machine > 1 else (replace(INSIDE, latency_s=0.0), NETWORK)
    found = group(tiers, members)
    reached = []
    for chosen in itertools.combinations(range(parts), most_parts):
        own = [one for one in range(members) if one * parts // members in chosen]
        reached += [len({one // in_machine for one in drawn}) for drawn in itertools.product(own, repeat=copies)]
    (few, _), (any_of, _) = all_to_alls(found, Spread(copies, parts, most_parts)), all_to_alls(found, Spread(copies))
    rate = found.even_bytes_per_s[1 if in_machine > 1 else 0, 0]
    expected = np.mean(reached) * (1 - 1 / machines) / copies
    assert few.per_byte_s * rate == pytest.approx([expected], rel=1e-9 if machines >= parts else 0.1)
    assert few.per_byte_s <= any_of.per_byte_s * (1 + 1e-12)


def test_what_reaches_a_machine_once_is_handed_on_inside() -> None:
    """With quick links between machines those inside count: all copies, but what comes to the right device at once."""
    tiers = (replace(INSIDE, size=4), replace(NETWORK, bandwidth_bytes_per_s=math.inf))
    members, copies = 16, 3
    draws = itertools.product(range(members), repeat=copies)
    reached = np.mean([len(set(drawn) - {0}) for drawn in draws]) / copies
    (once, _) = all_to_alls(group(tiers, members), Spread(copies))
    assert once.per_byte_s * 300e9 == pytest.approx([reached * (1 - 1 / 4)])


@pytest.mark.parametrize(("machines", "logical_bytes_per_s"), [(2, 43e9), (4, 58e9), (8, 51e9)])
def test_experts_on_several_machines_are_exchanged_as_fast_as_deepep_was_measured(
    machines: int, logical_bytes_per_s: float
) -> None:
    """On H800, by its README of 2025: 256 experts, 8 for a token on 4 machines at most; its own machine is counted."""
    inside = Tier(size=8, bandwidth_bytes_per_s=0.85 * 200e9)
    cards = Tier(size=64, bandwidth_bytes_per_s=0.85 * 50e9, num_rails=8)
    spread = Spread(copies=8, parts=machines, most_parts=min(machines, 4), handed_bytes_per_s=130e9)
    pairs, _ = all_to_alls(group((inside, cards), 8 * machines), spread)
    found = spread.reached(np.array([machines])) / spread.copies / pairs.per_byte_s
    assert found == pytest.approx([logical_bytes_per_s], rel=0.06)


@given(tiers_drawn, powers, powers, st.integers(1, 8), st.sampled_from([1e8, 1e10, 1e12]), st.integers(1, 2))
def test_what_is_handed_on_costs_where_a_tier_is_crossed_and_no_less_where_a_group_is_spread(
    tiers: tuple[Tier, ...], degree: int, stride: int, copies: int, rate: float, tier: int
) -> None:
    found, near = group(tiers, degree, stride), group(tiers, degree)
    plain, bounded = Spread(copies), Spread(copies, handed_bytes_per_s=rate, handed_from=tier)
    least, most = (np.array([way.per_byte_s for way in all_to_alls(found, one)]) for one in (plain, bounded))
    received = float(bounded.reached(np.array([degree]))[0]) * (1 - 1 / degree) / copies
    handed = received / rate if found.is_crossed[tier:].any() else 0.0
    assert most == pytest.approx(np.maximum(least, handed))
    assert found.is_crossed[tier:].any() or not near.is_crossed[tier:].any()


@given(tiers_drawn, operations, powers, sizes)
def test_a_group_of_one_and_no_bytes_cost_nothing(
    tiers: tuple[Tier, ...], operation: Operation, stride: int, size: float
) -> None:
    assert one(operation_s(operation, group(tiers, 1, stride), full(size))) == 0
    assert one(operation_s(operation, group(tiers, 8, stride), full(0.0))) == 0


def touched(size: int, degree: int, stride: int, num_devices: int) -> int:
    """Most units of ``size`` devices that a group touches, by looking at all groups."""
    block = degree * stride
    starts = [base + offset for base in range(0, num_devices, block) for offset in range(stride)]
    return max(len({(start + step * stride) // size for step in range(degree)}) for start in starts)


@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 6), st.integers(1, 12))
def test_no_group_touches_more_units_than_counted(size: int, degree: int, stride: int, copies: int) -> None:
    num_devices = degree * stride * copies
    tiers = (replace(INSIDE, size=size), NETWORK)
    counted = group(tiers, degree, stride, num_devices).units[1, 0]
    most = touched(size, degree, stride, num_devices)
    assert counted >= most
    if size % (degree * stride) == 0 or (size % stride == 0 and degree * stride % size == 0) or stride % size == 0:
        assert counted == most


def test_many_layouts_at_once_are_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    names = ("tensor", "context", "data", "pipeline")
    drawn = {name: 2 ** rng.integers(0, 4, size=40) for name in names}
    plain = {name: np.broadcast_to(array, 40) for name, array in Layouts.one().arrays().items()}
    order = rng.integers(0, 5, size=40)
    many = Layouts(**{**plain, **drawn, "expert": drawn["data"], "order": order})  # type: ignore[arg-type]
    together = groups_of(TIERS, many)
    for index in range(40):
        alone = groups_of(TIERS, many.of(np.array([index])))
        for name, found in together.items():
            for operation in OPERATIONS:
                assert operation_s(operation, found, np.full(40, 1e8))[index] == pytest.approx(
                    one(operation_s(operation, alone[name], full(1e8)))
                )


def test_a_pipeline_inside_a_machine_sends_over_its_own_link() -> None:
    (cost,) = send(group(TIERS, 4, 2))
    assert cost.startup_s.tolist() == [3e-6]
    assert cost.per_byte_s == pytest.approx([1 / 300e9])


def test_machines_of_one_device_exchange_over_the_network_alone() -> None:
    tiers = (Tier(size=1, bandwidth_bytes_per_s=math.inf), replace(NETWORK, num_rails=1))
    found = group(tiers, 8)
    assert one(operation_s("gather", found, full(1e9))) == pytest.approx(7 * 1e-5 + 7 / 8 * 1e9 / 25e9)
    assert one(operation_s("all_to_all", found, full(1e9))) == pytest.approx(7 * 1e-5 + 7 / 8 * 1e9 / 25e9)
    assert one(operation_s("send", found, full(1e9))) == pytest.approx(1e-5 + 1e9 / 25e9)


def test_a_cluster_without_tiers_is_refused() -> None:
    with pytest.raises(ModelError, match="at least one tier"):
        group((), 2)


@given(
    tiers_drawn,
    st.integers(1, 40),
    st.integers(0, 12),
    st.sampled_from([1, 2, 3, 6, 8]),
    st.sampled_from(["all_reduce", "gather"]),
    sizes,
    st.tuples(st.booleans(), st.booleans()),
)
def test_no_group_of_as_many_members_or_more_takes_less_than_one_that_fills_units(
    tiers: tuple[Tier, ...],
    fewest: int,
    more: int,
    stride: int,
    operation: Operation,
    size: float,
    adds: tuple[bool, ...],
) -> None:
    tiers = (tiers[0], *(replace(tier, reduces=is_added) for tier, is_added in zip(tiers[1:], adds, strict=True)))
    least = one(operation_s(operation, packed_group(tiers, np.array([fewest])), np.array([size])))
    assert least <= one(operation_s(operation, group(tiers, fewest + more, stride), np.array([size]))) * (1 + 1e-9)


def test_more_members_may_take_less_where_they_fill_units() -> None:
    some, all_of_two = (one(operation_s("all_reduce", group(TIERS, number), np.array([1e9]))) for number in (15, 16))
    assert some > 1.5 * all_of_two
    packed = one(operation_s("all_reduce", packed_group(TIERS, np.array([16])), np.array([1e9])))
    assert packed == pytest.approx(all_of_two, rel=0.02)  # but for latencies


@given(tiers_drawn, st.integers(2, 24), st.integers(1, 16), st.integers(1, 3), sizes)
def test_no_chain_of_as_great_a_stride_or_a_multiple_passes_anything_on_sooner_than_the_nearest_pair(
    tiers: tuple[Tier, ...], degree: int, stride: int, times: int, size: float
) -> None:
    least = one(operation_s("send", next_group(tiers, np.array([stride])), np.array([size])))
    for more in (0, 64):  # devices of other ranks
        chain = group(tiers, degree, stride * times, degree * stride * times + more)
        assert least <= one(operation_s("send", chain, np.array([size]))) * (1 + 1e-9)


def test_two_ranks_of_a_machine_pass_on_what_three_send_over_the_network() -> None:
    pair, three = (one(operation_s("send", group(TIERS, number, 1, 24), np.array([1e6]))) for number in (2, 3))
    assert one(operation_s("send", next_group(TIERS, np.array([1])), np.array([1e6]))) == pytest.approx(pair)
    assert three > 5 * pair

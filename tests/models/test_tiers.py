import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cluster import Cluster, Device, Link, MachineGroup, Switch
from planner.errors import ModelError
from planner.models.layouts import Layouts
from planner.models.tiers import DEGREES, ORDERS, Tier, axes_of, groups_of, operation_s, tiers_of
from planner.routes import routes_of

GPU = Device(name="gpu")
INSIDE = Link(bandwidth_bytes_per_s=300e9, latency_s=3e-6)
RAIL = Link(bandwidth_bytes_per_s=25e9, latency_s=1e-5)
UPLINK = Link(bandwidth_bytes_per_s=400e9, latency_s=1e-6)


def machines(name: str, count: int, devices: int = 8, nics: int = 8) -> MachineGroup:
    return MachineGroup(name=name, count=count, device=GPU, devices_per_machine=devices, inside=INSIDE, num_nics=nics)


def under_leaves(*counts: int) -> Cluster:
    groups = [machines(f"m{index}", count) for index, count in enumerate(counts)]
    leaves = [Switch(name=f"leaf{index}") for index in range(len(counts))]
    links = [(f"m{index}", f"leaf{index}", RAIL) for index in range(len(counts))]
    links += [(f"leaf{index}", "spine", UPLINK) for index in range(len(counts))]
    return Cluster("leaves", [*groups, *leaves, Switch(name="spine")], links)


# -- tiers -------------------------------------------------------------------------------------------------------------


def test_machines_on_one_switch_are_two_tiers_with_a_rail_for_each_network_card() -> None:
    tiers = tiers_of(Cluster("c", [machines("m", 16), Switch(name="s")], [("m", "s", RAIL)]))
    assert [(tier.size, tier.bandwidth_bytes_per_s, tier.num_rails) for tier in tiers] == [(8, 300e9, 1), (16, 25e9, 8)]
    assert tiers[1].unit_bytes_per_s == pytest.approx(200e9)
    assert [tier.latency_s for tier in tiers] == [3e-6, 1e-5]


def test_one_machine_is_one_tier_and_a_domain_of_72_is_as_large() -> None:
    (tier,) = tiers_of(Cluster("c", [machines("m", 1, devices=72)], []))
    assert tier.size == 72


def test_leaf_switches_with_equal_machines_are_a_tier_of_their_own() -> None:
    tiers = tiers_of(under_leaves(4, 4, 4))
    assert [tier.size for tier in tiers] == [8, 4, 3]
    assert tiers[2].bandwidth_bytes_per_s == pytest.approx(400e9)
    assert tiers[2].latency_s == pytest.approx(1.2e-5)


def test_another_network_counts_as_the_narrowest_place_of_a_ring_through_it() -> None:
    uneven = under_leaves(4, 3)
    tiers = tiers_of(uneven)
    assert len(tiers) == 2
    assert tiers[1].size == 7
    assert tiers[1].unit_bytes_per_s == pytest.approx(routes_of(uneven).ring(7).bandwidth_bytes_per_s)


def test_unlike_machines_are_refused_with_their_names() -> None:
    mixed = Cluster(
        "c", [machines("a", 1), machines("b", 1, devices=4), Switch(name="s")], [("a", "s", RAIL), ("b", "s", RAIL)]
    )
    with pytest.raises(ModelError, match="a, b differ"):
        tiers_of(mixed)


@pytest.mark.parametrize(
    "change",
    [{"size": 0}, {"num_rails": 0}, {"bandwidth_bytes_per_s": 0.0}, {"latency_s": -1.0}, {"oversubscription": 0.5}],
)
def test_a_tier_that_cannot_be_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(ModelError):
        Tier(**{"size": 8, "bandwidth_bytes_per_s": 1e9, **change})  # type: ignore[arg-type]  # one type a key


# -- which ranks exchange ----------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> Layouts:
    """One layout; powers of two, so that experts divide what they are spread over."""
    sizes = {name: 2 ** draw(st.integers(0, 2)) for name in DEGREES}
    most = sizes["context"] * sizes["data"]
    expert = draw(st.sampled_from([2**power for power in range(most.bit_length())]))
    return Layouts.one(**sizes, expert=expert, order=draw(st.integers(0, len(ORDERS) - 1)))


def ranks(axes: tuple[tuple[np.ndarray, np.ndarray], ...]) -> list[int]:
    """The members of the group of rank 0."""
    found = [0]
    for degree, stride in axes:
        found = [rank + int(stride[0]) * step for step in range(int(degree[0])) for rank in found]
    return sorted(found)


@given(layouts())
def test_ranks_are_numbered_by_nested_degrees_from_the_innermost_outwards(layout: Layouts) -> None:
    axes = axes_of(layout)
    inside = 1
    for name in ORDERS[int(layout.order[0])]:
        ((degree, stride),) = axes[name]
        assert stride[0] == inside
        inside *= int(degree[0])
    assert inside == layout.num_devices[0]


@given(layouts())
def test_experts_and_their_copies_divide_the_replicas_between_them(layout: Layouts) -> None:
    axes = axes_of(layout)
    experts, copies = ranks(axes["expert"]), ranks(axes["expert_replicas"])
    assert len(experts) == layout.expert[0]
    assert sorted(one + other for one in experts for other in copies) == ranks(axes["replicas"])


@given(layouts())
def test_all_degrees_together_are_every_device_once(layout: Layouts) -> None:
    axes = axes_of(layout)
    together = tuple(axis for name in DEGREES for axis in axes[name])
    assert ranks(together) == list(range(int(layout.num_devices[0])))


@pytest.mark.parametrize(("count", "gain"), [(2, 1.0), (16, 2 * 15 / 16)])
def test_switches_that_add_up_halve_the_bytes_of_an_all_reduce_between_machines_and_of_nothing_else(
    count: int, gain: float
) -> None:
    size, layout, seconds = np.array([1e12]), Layouts.one(data=count, tensor=8), {}
    for reduces in (False, True):
        cluster = Cluster("c", [machines("m", count), Switch(name="s", reduces=reduces)], [("m", "s", RAIL)])
        found = tiers_of(cluster)
        assert [one.reduces for one in found] == [False, reduces]
        groups = groups_of(found, layout)
        seconds[reduces] = [float(operation_s(way, groups["replicas"], size)[0]) for way in ("all_reduce", "gather")]
    assert seconds[False][0] / seconds[True][0] == pytest.approx(gain, rel=1e-3)
    assert seconds[False][1] == seconds[True][1]
